"""TestLeveret: an app on a memory broker, a memory store and a clock that a test moves."""

# ruff: noqa: SLF001 - it stands in for the real world of an app, which no user should be tempted to do

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from leveret.app import Leveret
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import LeveretError
from leveret.core.retry_entry import RetryEntry
from leveret.core.run import Run
from leveret.core.topology import Names
from leveret.runtime.opening import Stand
from leveret.runtime.runner import Knobs, Runner
from leveret.runtime.world import DaemonThreads
from leveret.stores.memory import MemoryData, MemoryStore
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.ledger import Ledger, Published
from leveret.testing.settling import Settling
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker

#: Jumps after which `run_until_idle` takes it that there is no end.
MOST_JUMPS: Final = 10_000
#: Seconds between what leveret does by the clock alone (renewals, looks, refills): a month must pass quickly.
HOUSEKEEPING: Final = 3600.0


class TestLeveret:
    """The app itself, with everything around it replaced: broker and store in memory, and time that a test moves.

    Handlers run as they do in production, on the same code path; the app is as it was once the block is left. Leaving
    it without an exception makes sure that every message that was accepted is done, waiting, dead or in a queue.

    Handlers are waited for, also those that talk to a real server or run in a thread. A handler that should take long
    sleeps on `t.clock`: that passes when the test lets time pass, and a worker's timeout strikes on the same clock.

    A message type that another app takes needs a queue here too, or its publish is unroutable:
    `t.broker.declare_queue("invoices")`, `t.broker.bind("shop.events", "invoices", "order.charged")`.

    Args:
        app: the app, not open. Where it names no namespace, it is `test`.
        start: the clock's first reading, an aware datetime.
        seed: of ids and randomness.
        jitter: True: delays are spread as the policies say. False: they are exact.
        fail_fast: raise, where a test waits, what a handler raised and nobody foresaw: no `SoftFailure` or
            `HardFailure`, not named in `retry_on`, and no timeout.

    Attributes:
        app: the app.
        clock: a `FakeClock`.
        broker: a `MemoryBroker`: `refuse_next()`, `lose_next_confirm()`, `lose_next_ack()`, `stop()`, `block()`.
        handover: awaited at each hand-over point with its name (`leveret.core.handover`) and the message's id.

    Raises:
        LeveretError: at `async with`: the app is open already.
        ValueError: *start* is no aware datetime.

    Example:
        >>> async def test_a_card_service_that_is_down_is_asked_again():
        ...     async with TestLeveret(app) as t:
        ...         await t.publish("order.placed", {"id": 1, "cents": 500})
        ...         [entry] = t.waiting("charge")
        ...         await t.advance(seconds=entry.due_in)
        ...         assert t.runs("charge")[-1].outcome == "done"
    """

    # pytest would take a class of this name for a collection of tests.
    __test__ = False

    def __init__(
        self,
        app: Leveret,
        *,
        start: datetime | None = None,
        seed: int = 0,
        jitter: bool = False,
        fail_fast: bool = True,
    ) -> None:
        if start is not None and (not isinstance(start, datetime) or start.tzinfo is None):
            raise ValueError(
                f"start={start!r}: expected an aware datetime, such as datetime(2026, 1, 1, tzinfo=UTC)"
            )
        self.app: Final = app
        self.clock: Final = FakeClock() if start is None else FakeClock(start.timestamp())
        self.broker: Final = MemoryBroker()
        self.handover: Callable[[str, str | None], Awaitable[None]] | None = None
        self._jitter = jitter
        self._fail_fast = fail_fast
        self._world = replace(fake_world(seed, self.clock), threads=DaemonThreads, reached=self._reached)
        self._data = MemoryData()
        self._store = MemoryStore(clock=self.clock, data=self._data)
        self._transport: MemoryTransport | None = None
        self._names = Names(app._config.namespace or "test")
        self._ledger: Ledger | None = None
        self._stack: AsyncExitStack | None = None
        self._runs: list[Run] = []
        self._unforeseen: list[BaseException] = []
        self._settling = Settling(self.clock, self.broker, self._runner)

    # ── Coming and going ──────────────────────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        app = self.app
        if app._open is not None or app._stand is not None:
            raise LeveretError(
                f"{app!r} is open already; TestLeveret opens it itself, on a broker and store of its own"
            )
        exchange = app._config.exchange.name if app._config.exchange is not None else self._names.events
        self._ledger = Ledger(self._names, exchange, list(app._workers))
        self.broker.on_publish.append(self._ledger.took)
        app._stand = Stand(
            world=self._world,
            transport=self._new_transport,
            store=self._new_store,
            knobs=self._knobs,
            namespace=self._names.namespace,
        )
        app._watchers.append(self._ran)
        self.clock.settle = self._settle
        try:
            await self._begin()
            await self._settle()
        except BaseException:
            try:
                await self._die()
            finally:
                self._restore()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self._settle()
        finally:
            try:
                await self._leave()
            finally:
                self._restore()
        if kind is None and self._ledger is not None:
            self._ledger.check(self.broker, self._data)

    def _new_transport(self) -> MemoryTransport:
        self._transport = MemoryTransport(self.broker, world=self._world)
        return self._transport

    def _new_store(self) -> MemoryStore:
        self._store = MemoryStore(clock=self.clock, data=self._data)
        return self._store

    def _knobs(self, knobs: Knobs) -> Knobs:
        return replace(
            knobs,
            # What is overdue after a crash goes at once: a rate would need the clock to move.
            overdue_rate=None,
            lease_ttl=24 * HOUSEKEEPING,
            acts_every=HOUSEKEEPING,
            suspects_every=HOUSEKEEPING,
            horizon=HOUSEKEEPING,
            jitter=self._jitter,
        )

    async def _begin(self) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(self.app.running())
        self._stack = stack

    async def _leave(self) -> None:
        """Stop gracefully where nothing is in hand; what is waits for time to pass, or hangs, and is dropped."""
        if self._settling.quiet():
            await self._end()
        else:
            await self._die()

    async def _die(self) -> None:
        """End everything at once: first the connection, so that nothing is acked on the way."""
        if self._transport is not None:
            self._transport.abort()
        runner = self._runner()
        if runner is not None:
            await runner.drop()
        await self._end()

    async def _end(self) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    def _restore(self) -> None:
        self.app._stand = None
        self.app._watchers.remove(self._ran)
        self.clock.settle = None

    # ── What a test does ──────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(self, type: Any, payload: Any = None, /, **options: Any) -> str:
        """Publish as `app.publish` does, and return the id when every handler has settled.

        It returns even where a retry waits, and where a message is kept in hand until time passes. Where the broker
        gives no answer (`lose_next_confirm`, `block`), time passes until the publish's own deadline.

        Raises:
            LeveretError, ValueError: as `app.publish` says.
            BaseException: what a handler raised and nobody foresaw, the original object (`fail_fast`).
            TimeoutError: a handler still runs after 30 s of real time.
        """
        publishing = asyncio.ensure_future(self.app.publish(type, payload, **options))
        try:
            while not publishing.done():
                await idle()
                wait = self.clock.next_timer
                if not publishing.done() and wait is not None:
                    await self._settling.move(wait)
        finally:
            publishing.cancel()
        id = publishing.result()
        await self._settle()
        return id

    async def advance(
        self,
        span: timedelta | None = None,
        /,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> None:
        """Let time pass. What is due comes back in its order, and settles before time goes on.

        Raises:
            ValueError, TypeError: time cannot go back; a bare number does not say what it counts.
            BaseException: what a handler raised and nobody foresaw (`fail_fast`); the clock stands where that was.
            TimeoutError: a handler still runs after 30 s of real time, and no timeout of its own ends it.

        Example:
            await t.advance(minutes=1, seconds=30)
            await t.advance(timedelta(days=1))
        """
        if span is not None and not isinstance(span, timedelta):
            raise TypeError(
                f"advance({span!r}): of what? Write advance(seconds={span!r}), or give a timedelta"
            )
        total = seconds + 60 * minutes + 3600 * hours + 86400 * days
        if span is not None:
            total += span.total_seconds()
        if not 0 <= total < float("inf"):
            raise ValueError(
                f"advance by {total!r} s: expected 0 or more seconds; time does not go back here"
            )
        await self._settling.move(total)

    async def run_until_idle(self) -> None:
        """Jump from due time to due time until nothing waits; what is held by hand stays.

        Raises:
            AssertionError: there seems to be no end, with what waits: a handler that never succeeds and spends no
                attempts (`counted=False`), or a queue that is gone.
            BaseException, TimeoutError: as `advance` says.
        """
        await self._settle()
        for _ in range(MOST_JUMPS):
            wait = self._next()
            if wait is None:
                return
            await self._settling.move(wait)
        waiting = [entry for entry in self.waiting() if entry.state != "held"]
        named = "; ".join(
            f"{entry.type} for {entry.worker or 'its first publish'} (…{(entry.message_id or '')[-6:]}), "
            f"failure {entry.failure}: {entry.state_reason or entry.reason}"
            for entry in waiting[:3]
        )
        raise AssertionError(
            f"run_until_idle: after {MOST_JUMPS} jumps something waits all the same: {named or 'a message in hand'}. "
            "A handler that never succeeds and spends no attempt (counted=False) has no end; use advance()."
        )

    async def crash(self) -> None:
        """Kill the app and start it again, on the same broker and the same stored data; returns when all has settled.

        Nothing in hand is acked: it comes back, flagged as redelivered. Handlers are cancelled where they stand; a
        plain `def` runs on in its thread, and nobody listens. The lifespan is left and entered again.

        Raises:
            BaseException, TimeoutError: as `publish` says.
        """
        await self._die()
        await self._begin()
        await self._settle()

    # ── What a test looks at ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def now(self) -> datetime:
        """The time on the clock, UTC."""
        return datetime.fromtimestamp(self.clock.now(), UTC)

    @property
    def store(self) -> MemoryStore:
        """The app's store; another one, on the same data, after a crash."""
        return self._store

    def waiting(self, worker: str | None = None) -> list[RetryEntry]:
        """What waits, the next due first: `attempt` says how many runs were counted, `due_in` counts from now.

        Args:
            worker: whose; None: all, also what waits for its first publish.
        """
        now = self.clock.now()
        entries = [self._data.retries[place[1:]][0] for place in self._data.in_order(self._names.namespace)]
        return [
            # A wall clock is known to a quarter of a microsecond.
            replace(entry, due_in=round(entry.due_at - now, 6))
            for entry in entries
            if worker in (None, entry.worker)
        ]

    def dead(self, worker: str | None = None) -> list[DeadLetter]:
        """Dead letters, the oldest first, with their bodies; not those that were replayed or discarded.

        Args:
            worker: whose; None: all.
        """
        letters = [letter for letter in self._data.letters.values() if letter.state == "dead"]
        found = [letter for letter in letters if worker in (None, letter.worker)]
        return sorted(found, key=lambda letter: letter.died_at)

    def runs(self, worker: str | None = None) -> list[Run]:
        """What became of each delivery, in the order in which they were settled.

        Args:
            worker: whose; None: all.
        """
        return [run for run in self._runs if worker in (None, run.worker)]

    def published(self, type: str | None = None) -> list[Published]:
        """What reached the data exchange, results included; retries go straight to their queue and are not among it.

        Args:
            type: of this message type; None: all.
        """
        everything = self._ledger.published if self._ledger is not None else []
        return [message for message in everything if type in (None, message.type)]

    # ── Watching ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ran(self, run: Run) -> None:
        self._runs.append(run)
        if self._ledger is not None:
            self._ledger.ran(run)
        if self._fail_fast and run.unexpected and run.error is not None:
            self._unforeseen.append(run.error)

    async def _reached(self, point: str, message_id: str | None) -> None:
        self._settling.reached(point)
        if self.handover is not None:
            await self.handover(point, message_id)

    def _runner(self) -> Runner | None:
        return self.app._open.runner if self.app._open is not None else None

    async def _settle(self) -> None:
        await self._settling.settled()
        if self._unforeseen:
            error = self._unforeseen[0]
            self._unforeseen.clear()
            raise error

    def _next(self) -> float | None:
        """Seconds until something should happen; None where nothing waits."""
        now = self.clock.now()
        due = [
            max(0.0, try_at - now)
            for try_at, *_ in self._data.in_order(self._names.namespace)
            if try_at < float("inf")
        ]
        if due and due[0] > 0:
            return due[0]
        if due or not self._settling.quiet():
            return self.clock.next_timer
        return None
