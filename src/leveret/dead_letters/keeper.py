"""Keeper: moves dead letters from the dead-letter queue into the store, and replays what people ask for (D2, D3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from leveret.core import handover
from leveret.core.alarm import RETRY_STORE_UNAVAILABLE, Alarm
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import StoreRefused, StoreUnavailable
from leveret.dead_letters.reading import is_expired_request, read
from leveret.dead_letters.replay import Replays
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import held_backoff
from leveret.ports import Delivery, Grant
from leveret.retry.intake import consume_exclusively
from leveret.retry.service import ACTS_EVERY, TermService, all_until_one_ends

PREFETCH = 1000
BATCH = 200


class Keeper(TermService):
    """Keeps the dead letters of one namespace, while it holds the keeper lease."""

    def __init__(self, parts: Parts, *, ttl: float, acts_every: float = ACTS_EVERY) -> None:
        super().__init__(parts, lease="keeper", ttl=ttl)
        self._acts_every = acts_every
        self._received: list[Delivery] = []
        self._arrived = asyncio.Event()
        self._replays = Replays(parts, self.keeper)
        #: Letters in hand, unacked.
        self.in_hand = 0
        #: RPC requests that expired in their queue: nobody waits for them, so they are counted and not kept.
        self.expired_requests = 0
        self._consuming = False
        self._closing = False
        #: Set between two batches.
        self._between = asyncio.Event()
        self._between.set()

    @property
    def quiet(self) -> bool:
        """Whether it works, and nothing is in hand."""
        return self._consuming and self.in_hand == 0 and not self._replays.busy

    async def work(self, grant: Grant) -> None:
        """Take letters in, obey replays."""
        await all_until_one_ends([
            asyncio.create_task(self._keep()),
            asyncio.create_task(self.act_when_asked(self._replays.obey, self._acts_every)),
        ])  # fmt: skip

    async def _keep(self) -> None:
        self._received, self.in_hand = [], 0
        self._arrived.clear()
        subscription = await consume_exclusively(
            self.parts, self.parts.names.dead_letters, self._take, prefetch=PREFETCH
        )
        self._consuming = True
        batch: list[Delivery] = []
        try:
            while True:
                await self._arrived.wait()
                batch = self._received[:BATCH]
                del self._received[:BATCH]
                if not self._received:
                    self._arrived.clear()
                self._between.clear()
                await self._store([delivery for delivery in batch if not delivery.stale])
                self.in_hand -= len(batch)
                self._between.set()
                if self._closing:
                    await asyncio.get_running_loop().create_future()
        finally:
            self._consuming = False
            await subscription.cancel()
            # What was settled already stays settled.
            for delivery in (*batch, *self._received):
                delivery.requeue()

    async def finish(self) -> None:
        """Keep and ack the batch in hand, finish the replay window in hand."""
        self._closing = True
        await asyncio.gather(self._between.wait(), self._replays.finish())

    def _take(self, delivery: Delivery) -> None:
        if self._closing:
            delivery.requeue()
            return
        self.in_hand += 1
        self._received.append(delivery)
        self._arrived.set()

    async def _store(self, deliveries: Sequence[Delivery]) -> None:
        taken: list[tuple[Delivery, DeadLetter]] = []
        for delivery in deliveries:
            if is_expired_request(delivery):
                self.expired_requests += 1
                delivery.ack()
                continue
            letter = read(
                delivery,
                namespace=self.parts.names.namespace,
                events=self.parts.exchange.name,
                now=self.parts.world.clock.now(),
                new_id=self.parts.world.new_id,
            )
            taken.append((delivery, letter))
        if taken:
            await self._put(taken)

    async def _put(self, taken: Sequence[tuple[Delivery, DeadLetter]]) -> None:
        """Store these, then ack; what the store refuses is halved until the culprit stands alone, and stays in hand."""
        alarms, about = self.parts.alarms, f"{self.parts.names.namespace} keeper"
        for wait in held_backoff():
            try:
                await self.parts.store.keep([letter for _, letter in taken])
            except (StoreUnavailable, StoreRefused) as error:
                if isinstance(error, StoreRefused) and len(taken) > 1:
                    middle = len(taken) // 2
                    await asyncio.gather(self._put(taken[:middle]), self._put(taken[middle:]))
                    return
                alarms.emit(
                    Alarm(
                        code=RETRY_STORE_UNAVAILABLE,
                        title=f"dead letters cannot be stored; they wait in {self.parts.names.dead_letters}",
                        about=about,
                        fields={"store": self.parts.store.display, "error": str(error)},
                    )
                )
                log.warning(
                    "dead letters cannot be stored, again in %g s: %s", wait, error, extra={"action": "held"}
                )
                await self.parts.world.clock.sleep(wait)
                taken = [one for one in taken if not one[0].stale]
                if not taken:
                    return
            else:
                break
        alarms.resolved(RETRY_STORE_UNAVAILABLE, about)
        for delivery, letter in taken:
            if self.parts.world.reached is not None:
                await self.parts.reach(handover.KEEPER_STORED, letter.message_id)
            delivery.ack()
            self._replays.kept(letter)
