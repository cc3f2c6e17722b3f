"""The run: publish the plan, deliver it, let the retry worker die half-way, and watch until all is accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from leveret.app import Counts, Leveret
from leveret.core.urls import BrokerUrl, StoreUrl
from leveret.demo.endpoint import Endpoint
from leveret.demo.ledger import Ledger, account
from leveret.demo.pipeline import ASKED, LEASE, make_app
from leveret.demo.plan import plan
from leveret.demo.retry_process import RetryProcess
from leveret.retry.dispatch import Lateness

#: Publishing takes about so many seconds, but never less than so many a second.
PUBLISHING: Final = 10.0
SLOWEST: Final = 100.0
#: Seconds between two batches of the publisher, and between two looks at the counts.
TICK: Final = 0.05
LOOK: Final = 0.2
#: Seconds that the dying retry worker gets to be in the middle of something, and for which nobody takes its place.
STRIKE: Final = 3.0
AWAY: Final = 2.0
#: With nothing queued, running or waiting, seconds until what is missing from the ledger is called lost; it might just
#: be passing from hand to hand.
MISSING: Final = 3.0
#: Seconds without any change, on the slowest machine, after which the run is ended as it is.
STUCK: Final = 30.0
#: Ids read from the store at once.
PAGE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How things stand."""

    #: Since the start.
    seconds: float
    total: int
    published: int
    #: Messages that the endpoint has taken.
    delivered: int
    counts: Counts
    #: Seconds until the next retry is due; None: none waits.
    next_due: float | None
    lateness: Lateness
    #: Requests by the endpoint's answer.
    answers: Mapping[str, int]

    @property
    def settled(self) -> int:
        """Messages that have come to their end."""
        return min(self.total, self.delivered + self.counts.dead)


class View(Protocol):
    """Whoever watches the demo."""

    def show(self, moment: Moment) -> None:
        """How things stand now; told several times a second."""

    def tell(self, text: str) -> None:
        """Something happened just now."""


class Demo:
    """One run of the demo.

    Args:
        namespace, broker, store: where it runs; the broker is one that two connections of this process can share.
        seed: gives the same webhooks and answers again.
        count: webhooks, besides the two that no endpoint ever sees.
        view: told how it goes.
    """

    def __init__(
        self, namespace: str, *, broker: BrokerUrl, store: StoreUrl, seed: int, count: int, view: View
    ) -> None:
        self._app: Leveret = make_app(namespace, broker=broker, store=store)
        self._retry_process: Callable[[], RetryProcess] = lambda: RetryProcess(
            namespace, broker=broker, store=store, ttl=LEASE
        )
        self._retrying = self._retry_process()
        self._endpoint = Endpoint()
        self._seed = seed
        self._count = count
        self._view = view
        self._began = time.monotonic()
        self._total = count + 2
        #: The publisher's own list.
        self._published: list[str] = []
        self._half_way = asyncio.Event()
        self._lateness = Lateness(0.0, 0.0, 0.0)

    async def run(self) -> Ledger:
        """Run it to its end, and account for every message."""
        async with self._endpoint, self._app, self._app.running(retry_worker=False):
            await self._retrying.start()
            works = [asyncio.create_task(self._publish()), asyncio.create_task(self._die_half_way())]
            try:
                return await self._watch(works)
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
                await self._retrying.stop()

    async def _publish(self) -> None:
        bodies = plan(self._seed, self._count, self._endpoint.url)
        rate = max(SLOWEST, self._count / PUBLISHING)
        began = time.monotonic()
        while len(self._published) < len(bodies):
            by_now = min(len(bodies), 1 + int((time.monotonic() - began) * rate))
            for body in bodies[len(self._published) : by_now]:
                self._published.append(await self._app.publish(ASKED, body))
            await asyncio.sleep(TICK)

    async def _die_half_way(self) -> None:
        """Let the retry worker die between a publish and its delete, and start another one a little later."""
        await self._half_way.wait()
        self._retrying.stand_still()
        # Where nothing comes due in that time, it dies idle.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._retrying.between.wait(), STRIKE)
        await self._retrying.die()
        waiting = await self._app.retries.count()
        self._view.tell(f"retry worker dropped without clean-up, {waiting} waiting")
        await asyncio.sleep(AWAY)
        self._retrying = self._retry_process()
        await self._retrying.start()
        overdue = await self._retrying.overdue()
        late = f": {overdue} are overdue and go first" if overdue else ""
        self._view.tell(f"started again{late}")

    # ── Watching ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self, works: list[asyncio.Task[None]]) -> Ledger:
        changed = calm = time.monotonic()
        before: tuple[object, ...] = ()
        while True:
            for work in works:
                if work.done():
                    # What went wrong in it ends the run.
                    work.result()
            moment = await self._moment()
            self._view.show(moment)
            if moment.settled >= self._total / 2:
                self._half_way.set()
            now = time.monotonic()
            seen = (moment.published, moment.delivered, moment.counts, moment.answers)
            if seen != before:
                before, changed = seen, now
            counts = moment.counts
            if counts.queued or counts.running or counts.waiting or not all(work.done() for work in works):
                calm = now
            elif (ledger := await self._account(counts)).waiting:
                # It was passing from hand to hand when all was counted.
                calm = now
            elif ledger.lost == 0 or now - calm > MISSING:
                return ledger
            if now - changed > STUCK:
                return await self._account(counts)
            await asyncio.sleep(LOOK)

    async def _moment(self) -> Moment:
        counts = await self._app.counts()
        soonest = await self._app.retries.list(limit=1)
        lateness = self._retrying.lateness()
        if lateness.max:
            # One that has just started has nothing to say yet.
            self._lateness = lateness
        return Moment(
            seconds=time.monotonic() - self._began,
            total=self._total,
            published=len(self._published),
            delivered=len(self._endpoint.taken),
            counts=counts,
            next_due=soonest[0].due_in if len(soonest) else None,
            lateness=self._lateness,
            answers=self._endpoint.answers,
        )

    async def _account(self, counts: Counts) -> Ledger:
        taken: Counter[str] = self._endpoint.taken
        return account(
            self._published,
            taken,
            await _ids(self._app.dead_letters.list),
            await _ids(self._app.retries.list),
            on_the_way=counts.queued + counts.running,
        )


async def _ids(pages: Callable[..., Any]) -> set[str]:
    """The message ids of a whole listing."""
    ids: set[str] = set()
    after: str | None = None
    while True:
        page = await pages(limit=PAGE, after=after)
        ids.update(entry.message_id for entry in page)
        after = page.after
        if after is None:
            return ids
