"""RetryService: keeps soft-failed messages until they are due, while it holds the lease; otherwise it stands by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from leveret.core.errors import LeaseLost, StoreUnavailable
from leveret.core.retry_entry import Due
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import Publisher
from leveret.ports import Grant
from leveret.retry.acts import RetryActs
from leveret.retry.dispatch import ASKERS, Dispatch, Lateness
from leveret.retry.intake import Intake
from leveret.retry.lease import LeaseKeeper, Standing
from leveret.retry.republish import TransportRepublisher
from leveret.retry.schedule import HORIZON

#: Seconds that batches in hand get at a graceful stop; what is then unfinished goes on with the next holder.
FINISH_SECONDS = 5.0
#: Seconds between looks for acts in the store, where nobody in this process nudges.
ACTS_EVERY = 0.5


class TermService:
    """Works while it holds a lease: one term of work after another, each from scratch.

    A subclass gives `work`, which runs until it is cancelled (the lease went, or we stop) or raises.

    Args:
        parts: what the verbs share.
        lease: which one.
        ttl: seconds that it lasts.
        askers: who asks the store within a term, and no more when that has ended.
    """

    def __init__(self, parts: Parts, *, lease: str, ttl: float, askers: Sequence[str] = ()) -> None:
        self.parts = parts
        self.nudged = asyncio.Event()
        self.keeper = LeaseKeeper(
            parts.store.lease(f"{parts.names.namespace}/{lease}"),
            holder=parts.holder,
            ttl=ttl,
            clock=parts.world.clock,
            gained=self._gained,
            lost=self._lost,
            away=self._store_is_away,
        )
        self._lease = lease
        self._askers = askers
        self._work: asyncio.Task[None] | None = None
        #: Every term that has not ended yet; at most one of them works, the others come to their end.
        self._terms: set[asyncio.Task[None]] = set()

    @property
    def working(self) -> bool:
        """Whether it holds the lease and works."""
        return self._work is not None

    @property
    def has_to_finish(self) -> bool:
        """Whether there may be something in hand that a graceful stop brings to its end."""
        return self._work is not None and self.keeper.holds

    async def work(self, grant: Grant) -> None:
        """One term of work."""
        raise AssertionError(f"{type(self).__name__} does not say how to work")

    async def finish(self) -> None:
        """Bring what is in hand to its end, and begin nothing new; called before a graceful stop."""

    def start(self) -> None:
        """Ask for the lease, and work whenever it is held."""
        self.keeper.start()

    async def standing(self) -> Standing:
        """Who holds the lease."""
        return await self.keeper.standing()

    def _store_is_away(self, why: str | None) -> None:
        """Nobody works without a lease: that the store is away is told here, also before the first term."""
        condition, who = self.parts.store_condition, f"{self._lease} lease"
        if why is not None:
            namespace = self.parts.names.namespace
            title = f"the {who} of {namespace} cannot be asked for; what fails waits in its queue"
            condition.failed(who, title, why)
        elif self._work is not None:
            condition.over_for(who)
        else:
            # Whatever a term could not do is the affair of the next one, here or elsewhere.
            condition.over_for(who, *self._askers)

    def _gained(self, grant: Grant) -> None:
        log.info("%s holds the %s lease (term %d)", self.parts.holder, self._lease, grant.term)
        self._work = asyncio.create_task(
            self._term(grant, list(self._terms)), name=f"leveret {self._lease} term {grant.term}"
        )
        self._terms.add(self._work)
        self._work.add_done_callback(self._ended)

    def _lost(self, why: str) -> None:
        log.info("%s gives up the %s lease: %s", self.parts.holder, self._lease, why)
        if self._work is not None:
            self._work.cancel()

    def _ended(self, term: asyncio.Task[None]) -> None:
        self._terms.discard(term)
        if self._work is term:
            self._work = None

    async def _term(self, grant: Grant, before: Sequence[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
        while True:
            try:
                await self.work(grant)
            except LeaseLost as error:
                log.warning("%s: %s", self._lease, error)
                # The keeper finds out at its next renewal, and ends this term or starts another.
                await self.parts.world.clock.sleep(1.0)
            except StoreUnavailable as error:
                log.warning("%s: the store is away: %s", self._lease, error)
                await self.parts.world.clock.sleep(1.0)
            except Exception:  # noqa: BLE001 - a fault of leveret's own, logged with all that is known
                log.exception("%s failed; it starts over in a second", self._lease)
                await self.parts.world.clock.sleep(1.0)

    async def stop(self, *, release: bool = True) -> None:
        """Stop working, then give up the lease; not *release*: as a kill would, with everything left as it is."""
        if release and self.has_to_finish:
            await self._finish_in_time()
        await self._end_work()
        await self.keeper.stop(release=release)
        await self._end_work()

    async def _end_work(self) -> None:
        for term in self._terms:
            term.cancel()
        if self._terms:
            await asyncio.wait(list(self._terms))

    async def _finish_in_time(self) -> None:
        over = asyncio.Event()
        timer = self.parts.world.clock.call_later(FINISH_SECONDS, over.set)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(self.finish()),
            asyncio.create_task(over.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            timer.cancel()
            for task in tasks:
                task.cancel()

    async def act_when_asked(
        self, grant: Grant, obey: Callable[[Grant], Awaitable[object]], every: float
    ) -> None:
        """Look for acts, again and again, until cancelled."""
        while True:
            # Cleared before the look: what is asked for while it lasts is looked for at once.
            self.nudged.clear()
            if self.keeper.holds_as(grant):
                try:
                    await obey(grant)
                except StoreUnavailable as error:
                    # The acts stay written. Whoever has messages in hand waits by itself, and is not ended for this.
                    log.info("%s: cannot look for acts: %s", self._lease, error, extra={"action": "acts"})
            timer = self.parts.world.clock.call_later(every, self.nudged.set)
            await self.nudged.wait()
            timer.cancel()


async def all_until_one_ends(works: Sequence[asyncio.Task[None]]) -> None:
    """Run these side by side; the first that raises ends all, and cancelling this cancels all."""
    try:
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in works:
            task.cancel()
        await asyncio.wait(works)


class RetryService(TermService):
    """The retry worker of one namespace: intake, schedule, republish, acts.

    Where several hosts may use the store at once, it takes envelopes in as a standby too: persisting needs no lease.
    """

    def __init__(
        self,
        parts: Parts,
        publisher: Publisher,
        *,
        ttl: float,
        overdue_rate: float | None,
        acts_every: float = ACTS_EVERY,
        horizon: float = HORIZON,
    ) -> None:
        # Where hosts share the store, envelopes are taken in beside the terms.
        within = ASKERS if parts.store.shared else (*ASKERS, parts.names.retry_queue)
        super().__init__(parts, lease="retry", ttl=ttl, askers=within)
        self._horizon = horizon
        self._publisher = publisher
        self._overdue_rate = overdue_rate
        self._acts_every = acts_every
        self.dispatch: Dispatch | None = None
        self.intake: Intake | None = None
        #: What was published in this term and is not removed yet: where the work starts over, it must not go again.
        self._published: dict[tuple[str, int], asyncio.Future[None] | None] = {}
        self._published_in = 0
        #: Takes envelopes in beside the terms, on a store that hosts share.
        self._taking_in: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask for the lease, and take envelopes in as soon as this store allows it."""
        if self.parts.store.shared:
            self._taking_in = asyncio.create_task(self._take_in(), name="leveret retry intake")
        super().start()

    async def work(self, grant: Grant) -> None:
        """Take envelopes in, let what is due out, obey acts."""
        if grant.term != self._published_in:
            # Somebody else was at work in between, and has dealt with what was left.
            self._published, self._published_in = {}, grant.term
        dispatch = Dispatch(
            self.parts,
            TransportRepublisher(self.parts),
            self.keeper,
            grant,
            overdue_rate=self._overdue_rate,
            horizon=self._horizon,
            published=self._published,
            storing=self._storing,
        )
        self.dispatch = dispatch
        acts = RetryActs(self.parts, dispatch)
        try:
            works = [dispatch.run(), self.act_when_asked(grant, acts.obey, self._acts_every)]
            if self._taking_in is None:
                works.insert(0, self._intake_for(dispatch.add).run())
            await all_until_one_ends([asyncio.create_task(work) for work in works])
        finally:
            self.dispatch = None
            if self._taking_in is None:
                self.intake = None

    def _storing(self, key: str, failure: int) -> bool:
        return self.intake is not None and self.intake.storing(key, failure)

    def _intake_for(self, scheduled: Callable[[Due], object]) -> Intake:
        self.intake = Intake(self.parts, self._publisher, scheduled=scheduled)
        return self.intake

    async def _take_in(self) -> None:
        """Take envelopes in, whoever holds the lease; a holder elsewhere finds in the store what is written here."""
        while True:
            try:
                await self._intake_for(self._schedule).run()
            except Exception:  # noqa: BLE001 - a fault of leveret's own, logged with all that is known
                log.exception("the retry intake failed; it starts over in a second")
                await self.parts.world.clock.sleep(1.0)

    def _schedule(self, due: Due) -> None:
        if self.dispatch is not None:
            self.dispatch.add(due)

    @property
    def has_to_finish(self) -> bool:
        """Whether there may be something in hand that a graceful stop brings to its end."""
        return self._taking_in is not None or super().has_to_finish

    async def finish(self) -> None:
        """Store and ack the batch in hand, remove what was republished."""
        finishing = [] if self.intake is None else [self.intake.finish()]
        if self.dispatch is not None:
            finishing.append(self.dispatch.finish())
        await asyncio.gather(*finishing)

    async def _end_work(self) -> None:
        await super()._end_work()
        if self._taking_in is not None:
            self._taking_in.cancel()
            await asyncio.wait([self._taking_in])

    @property
    def in_hand(self) -> int:
        """Envelopes in hand that are not stored and acked yet; of a standby too."""
        return 0 if self.intake is None else self.intake.in_hand

    @property
    def quiet(self) -> bool:
        """Whether nothing is in hand and nothing is due."""
        return (
            self.dispatch is not None
            and self.intake is not None
            and self.in_hand == 0
            and self.dispatch.quiet
        )

    def lateness(self) -> Lateness:
        """How late republished messages were in this term."""
        return self.dispatch.lateness() if self.dispatch is not None else Lateness(0.0, 0.0, 0.0)
