"""Keeper: moves dead letters from the dead-letter queue into the store, and replays what people ask for (D2, D3)."""

from __future__ import annotations

import asyncio

from leveret.core.dead_letter import DeadLetter
from leveret.dead_letters.growth import Growth
from leveret.dead_letters.intake import LetterIntake
from leveret.dead_letters.replay import Replays
from leveret.pipeline.parts import Parts
from leveret.ports import Grant
from leveret.retry.service import ACTS_EVERY, TermService, all_until_one_ends


class Keeper(TermService):
    """Keeps the dead letters of one namespace, while it holds the keeper lease."""

    def __init__(self, parts: Parts, *, ttl: float, acts_every: float = ACTS_EVERY) -> None:
        super().__init__(parts, lease="keeper", ttl=ttl, askers=(parts.names.dead_letters,))
        self._acts_every = acts_every
        self._replays = Replays(parts, self.keeper)
        self._growth = Growth(parts)
        self.intake: LetterIntake | None = None
        #: RPC requests that expired in their queue: nobody waits for them, so they are counted and not kept.
        self.expired_requests = 0

    @property
    def quiet(self) -> bool:
        """Whether it works, and nothing is in hand."""
        return (
            self.intake is not None
            and self.intake.begun
            and self.intake.in_hand == 0
            and not self._replays.busy
        )

    async def work(self, grant: Grant) -> None:
        """Take letters in, obey replays."""
        intake = self.intake = LetterIntake(self.parts, kept=self._kept, expired=self._count_expired)
        try:
            await all_until_one_ends([
                asyncio.create_task(intake.run()),
                asyncio.create_task(self._growth.watch()),
                asyncio.create_task(self.act_when_asked(grant, self._replays.obey, self._acts_every)),
            ])  # fmt: skip
        finally:
            self.intake = None

    async def finish(self) -> None:
        """Keep and ack the batch in hand, finish the replay window in hand."""
        taking_in = [] if self.intake is None else [self.intake.finish()]
        await asyncio.gather(*taking_in, self._replays.finish())

    def _kept(self, letter: DeadLetter) -> None:
        self._growth.count()
        self._replays.kept(letter)

    def _count_expired(self) -> None:
        self.expired_requests += 1
