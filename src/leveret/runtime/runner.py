"""Runner: an open app at work. Workers, suspects, retry worker and keeper, signals, and a graceful stop (P7)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from leveret.core.errors import BrokerError, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.dead_letters.keeper import Keeper
from leveret.pipeline.broker_watch import BrokerWatch
from leveret.pipeline.consumer import WorkerConsumer
from leveret.pipeline.delivery import Road
from leveret.pipeline.gate import Gate
from leveret.pipeline.long_runs import LongRuns
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import Publisher
from leveret.pipeline.suspects import LOOK_EVERY, Suspects
from leveret.pipeline.waiting_watch import WaitingWatch
from leveret.pipeline.watch import Watch
from leveret.pipeline.watchdog import Watchdog
from leveret.pipeline.worker import WorkerSpec, codes_of
from leveret.ports import Threads
from leveret.retry.schedule import HORIZON
from leveret.retry.service import ACTS_EVERY, RetryService
from leveret.rpc.endpoint import RpcEndpoint, RpcSpec
from leveret.runtime.plan import WorkerPlan

#: Seconds in which a second signal is the first once more: `timeout` sends one to a process and to its group.
ONE_SIGNAL = 0.1
#: Seconds between looks whether everything is idle.
IDLE_LOOK = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """How the services of a process behave."""

    grace: float = 30.0
    lease_ttl: float = 30.0
    overdue_rate: float | None = 1000.0
    acts_every: float = ACTS_EVERY
    #: Seconds between looks for suspects, and how far ahead what waits is loaded.
    suspects_every: float = LOOK_EVERY
    horizon: float = HORIZON
    #: False: delays are exact, whatever the policies say.
    jitter: bool = True
    #: Whether the broker and runs that last are looked at now and then; a clock that jumps years would look for ever.
    watches: bool = False
    #: Whether a thread watches, by real time, that no handler blocks the event loop.
    watchdog: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a graceful stop came to."""

    #: Messages whose handlers were finished within the grace.
    finished: int
    #: Messages that went back to their queues without having been started.
    returned: int
    #: Messages whose handlers were ended; the broker delivers them again.
    dropped: int


class Runner:
    """Works for an open app, from `start` to `stop`."""

    def __init__(
        self,
        parts: Parts,
        publisher: Publisher,
        plans: Sequence[WorkerPlan],
        *,
        rpcs: Sequence[RpcSpec] = (),
        state: Any,
        retry_worker: bool,
        keeper: bool,
        knobs: Knobs,
    ) -> None:
        self._parts = parts
        self._knobs = knobs
        gate = Gate()
        self._threads: list[Threads] = []
        roads = [
            Road(
                plan.spec,
                parts,
                publisher,
                gate,
                policy=plan.policy,
                threads=self._threads_for(plan.spec),
                state=state,
                random=parts.world.random if knobs.jitter else None,
            )
            for plan in plans
        ]
        self.consumers = [WorkerConsumer(road, parts) for road in roads]
        self.endpoints = [
            RpcEndpoint(spec, parts, publisher, threads=self._threads_for(spec), state=state) for spec in rpcs
        ]
        self._takers: list[WorkerConsumer | RpcEndpoint] = [*self.consumers, *self.endpoints]
        self.suspects = Suspects(roads, parts, look_every=knobs.suspects_every)
        self._watches: list[Watch | Watchdog] = []
        if knobs.watches:
            self._watches += [
                LongRuns([*roads, *self.endpoints], parts.world.clock),
                BrokerWatch(self._takers, parts),
                WaitingWatch(parts),
            ]
        if knobs.watchdog:
            self._watches.append(self._watchdog())
        self.retry_service = (
            RetryService(
                parts,
                publisher,
                ttl=knobs.lease_ttl,
                overdue_rate=knobs.overdue_rate,
                acts_every=knobs.acts_every,
                horizon=knobs.horizon,
            )
            if retry_worker
            else None
        )
        self.keeper = Keeper(parts, ttl=knobs.lease_ttl, acts_every=knobs.acts_every) if keeper else None

    def _threads_for(self, spec: WorkerSpec | RpcSpec) -> Threads | None:
        if spec.is_async:
            return None
        at_once = spec.concurrency if isinstance(spec, WorkerSpec) else spec.prefetch
        threads = self._parts.world.threads(at_once, f"leveret-{spec.name}")
        self._threads.append(threads)
        return threads

    def _watchdog(self) -> Watchdog:
        names: dict[CodeType, str] = {}
        specs: list[WorkerSpec | RpcSpec] = [consumer.road.spec for consumer in self.consumers]
        specs += [endpoint.spec for endpoint in self.endpoints]
        for spec in specs:
            for code in codes_of(spec.handler):
                # One function may serve several workers, and one decorator several functions.
                names[code] = f"{names[code]} or {spec.name}" if code in names else spec.name
        return Watchdog(names, threads=self._parts.world.threads(1, "leveret-watchdog"))

    async def start(self) -> None:
        """Begin: first those who keep what fails, then the workers."""
        for service in (self.retry_service, self.keeper):
            if service is not None:
                service.start()
        for taker in self._takers:
            await taker.start()
        if self.consumers:
            self.suspects.start()
        for watch in self._watches:
            watch.start()

    def nudge(self) -> None:
        """An act was written: the holder, if it is here, looks at once."""
        for service in (self.retry_service, self.keeper):
            if service is not None:
                service.nudged.set()

    @property
    def in_hand(self) -> int:
        """Messages in hand."""
        return sum(taker.in_hand for taker in self._takers) + self.suspects.in_hand

    @property
    def running(self) -> int:
        """Messages in a handler, or in a step after it."""
        return sum(taker.running for taker in self._takers) + self.suspects.in_hand

    async def idle(self) -> bool:
        """Whether every queue is empty, nothing runs and nothing waits."""
        if self.in_hand:
            return False
        names = self._parts.names
        queues = [names.retry_queue, names.dead_letters]
        for consumer in self.consumers:
            queues += [consumer.road.queue, names.suspects(consumer.road.spec.name)]
        queues += [endpoint.queue for endpoint in self.endpoints]
        for queue in queues:
            state = await self._parts.transport.queue_state(queue)
            if state is not None and state.ready:
                if queue == names.dead_letters and self.keeper is None:
                    continue
                return False
        if self.keeper is not None and self.keeper.working and not self.keeper.quiet:
            return False
        retries = self.retry_service
        if retries is not None and (retries.in_hand or (retries.working and not retries.quiet)):
            return False
        return (
            await self._parts.store.count_entries(Filter(namespace=names.namespace)) == 0 and not self.in_hand
        )

    async def until_idle(self) -> None:
        """Return once everything is idle: twice in a row, so that nothing was just passing from hand to hand."""
        quiet = 0
        while quiet < 2:
            try:
                quiet = quiet + 1 if await self.idle() else 0
            except (BrokerError, StoreUnavailable) as error:
                # They come back, and then there may be something to do.
                log.info("cannot tell whether all is idle: %s", error, extra={"action": "idle"})
                quiet = 0
            await self._parts.world.clock.sleep(IDLE_LOOK)

    async def stop(self, stopping: Callable[[int], object] = lambda _: None) -> Stopped:
        """Stop taking, return what has not started, finish what runs within the grace, release the leases.

        Args:
            stopping: told how many still run.
        """
        for watch in self._watches:
            # Nobody is to be told that what we stop ourselves is lost.
            await watch.stop()
        await self.suspects.stop()
        returned = sum(await asyncio.gather(*(taker.stop() for taker in self._takers)))
        running = self.running
        stopping(running)
        dropped = 0
        finishing = [asyncio.ensure_future(taker.finish()) for taker in self._takers]
        finishing.append(asyncio.ensure_future(self.suspects.finish()))
        over = asyncio.Event()
        late: asyncio.Future[Any] = asyncio.ensure_future(over.wait())
        timer = self._parts.world.clock.call_later(self._knobs.grace, over.set)
        everything: asyncio.Future[Any] = asyncio.gather(*finishing)
        try:
            await asyncio.wait([everything, late], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            late.cancel()
            if not everything.done():
                everything.cancel()
                dropped = sum([await taker.drop() for taker in self._takers])
                dropped += await self.suspects.drop()
                with contextlib.suppress(asyncio.CancelledError):
                    await everything
            for service in (self.retry_service, self.keeper):
                if service is not None:
                    await service.stop()
            for threads in self._threads:
                threads.close()
        return Stopped(running - dropped, returned, dropped)

    async def drop(self) -> None:
        """End everything at once, as a kill would: nothing is acked, no lease is released."""
        for taker in self._takers:
            await taker.drop()
        await self.suspects.drop()
        for service in (self.retry_service, self.keeper):
            if service is not None:
                await service.stop(release=False)
        for watch in self._watches:
            await watch.stop()


@contextlib.asynccontextmanager
async def on_signals(stop: Callable[[], object], *, wanted: bool) -> AsyncIterator[None]:
    """Let SIGINT and SIGTERM call *stop*; a second one ends the process at once, and nothing undone is acked."""
    loop = asyncio.get_running_loop()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    first: float | None = None

    def received(number: int) -> None:
        nonlocal first
        if first is not None and loop.time() - first < ONE_SIGNAL:
            return
        if first is not None:
            log.warning("second signal: stopped at once; what was in hand is delivered again")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)
        first = loop.time()
        stop()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
