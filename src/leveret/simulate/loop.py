# ruff: noqa: SLF001 - a loop of one's own is made of what BaseEventLoop keeps to itself
"""An event loop whose time is virtual and whose order comes from a seed, with several simulated processes on it."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")


class Nothing(Exception):
    """Nothing is left that could ever happen, and somebody still waits."""


class Body:
    """What the loop knows of a simulated process: whether it lives, and whether it is stopped.

    Attributes:
        alive: nothing of a dead one ever runs again, no `finally` either, as after `kill -9`.
        stopped: nothing of it runs now; what should have is kept for later, as after `kill -STOP`.
    """

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.alive = True
        self.stopped = False
        #: What should have run while it was stopped.
        self.parked: list[Any] = []
        #: Held, so that no collector closes a dead one's coroutines, which would run their `finally`.
        self.tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"


#: Whose code runs: each callback bears the process in its context.
BODY: Final[contextvars.ContextVar[Body | None]] = contextvars.ContextVar("leveret_simulated", default=None)


class _Handle(asyncio.TimerHandle):
    """A call that is to come, and whose it is: as asyncio's own, without what that keeps for debugging."""

    __slots__ = ("body",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._when = when
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None
        self.body: Final = self._context.get(BODY)

    def cancel(self) -> None:
        self._cancelled = True
        # What they hold on to goes now, not when the time has come.
        self._callback = self._args = None  # type: ignore[assignment]


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready; where nothing is, time is that of the next timer.

    What is ready in one process runs in the order that asyncio promises. In a turn of the loop, whose comes first is
    drawn: they stand for loops of their own.

    Args:
        chance: all that is not promised comes from here.

    Raises:
        Nothing: nothing is ready, no timer runs, and what should end has not.
    """

    # What BaseEventLoop keeps, and every loop of the standard library builds on.
    _ready: deque[Any]
    _stopping: bool

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._elapsed = 0.0
        #: By when they are due, then in the order in which they were set.
        self._timers: list[tuple[float, int, Any]] = []
        self._number = itertools.count()
        #: What asyncio was told that nobody caught, of processes that live.
        self.complaints: list[str] = []
        #: Every process that ever began.
        self.bodies: list[Body] = []
        self.set_exception_handler(self._complain)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._elapsed

    def start(self, body: Body, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have a process begin its work."""
        self.bodies.append(body)
        context = contextvars.copy_context()
        context.run(BODY.set, body)
        return context.run(self.create_task, work)

    def close(self) -> None:
        """End it. No process lives on, and none of them is held any more."""
        super().close()
        self._timers.clear()
        for body in self.bodies:
            body.alive = False
            body.parked.clear()
            body.tasks.clear()

    def look_at(self, task: asyncio.Task[Any]) -> None:
        """Complain where a process has ended with an error, which nobody else would look at."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.complaints.append(f"a process ended with {error!r}")

    def go_on(self, body: Body) -> None:
        """Let a stopped process go on, with all that it should have done meanwhile."""
        body.stopped = False
        parked, body.parked = body.parked, []
        self._ready.extend(parked)

    # As those of BaseEventLoop, without what they check; they are called a hundred thousand times in a run.

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call it in the next turn."""
        handle = _Handle(self._elapsed, callback, args, self, context)
        self._ready.append(handle)
        return handle

    #: There is no other thread.
    call_soon_threadsafe = call_soon

    def create_task(self, work: Any, **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """Begin a task of the process whose code runs."""
        task = asyncio.Task(work, loop=self, **options)
        body = BODY.get()
        if body is not None:
            body.tasks.append(task)
            # What is dead is let go of at the end, pending.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it at that time."""
        handle = _Handle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._number), handle))
        return handle

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Nothing("nothing is left that could happen")
            self._elapsed = max(self._elapsed, timers[0][0])
        while timers and timers[0][0] <= self._elapsed:
            ready.append(heapq.heappop(timers)[2])
        turn = list(ready)
        ready.clear()
        if len(turn) > 1:
            turn = self._in_drawn_order(turn)
        for handle in turn:
            if handle._cancelled:
                continue
            body = handle.body
            if body is not None:
                if not body.alive:
                    continue
                if body.stopped:
                    body.parked.append(handle)
                    continue
            handle._run()

    def _in_drawn_order(self, turn: list[Any]) -> list[Any]:
        by_body: dict[Body | None, list[Any]] = {}
        for handle in turn:
            by_body.setdefault(handle.body, []).append(handle)
        if len(by_body) == 1:
            return turn
        processes = list(by_body.values())
        self._chance.shuffle(processes)
        return [handle for handles in processes for handle in handles]

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        task = context.get("task")
        # What waits for an answer when its process is killed never hears it: only tasks of the living may complain.
        if task is not None and not any(task in body.tasks for body in self.bodies if not body.alive):
            self.complaints.append(f"{context.get('message')}: {context.get('exception')!r} ({task!r})")

    # What a loop with sockets would do.

    def _process_events(self, events: object) -> None:
        """There are none."""


class VirtualClock:
    """The clocks of one process: time of the loop, and a wall clock that may be moved.

    Args:
        loop: whose time it is.
        start: the wall clock's first reading, epoch seconds.
    """

    def __init__(self, loop: VirtualLoop, start: float = 1_750_000_000.0) -> None:
        self._loop = loop
        self._ahead = start

    def now(self) -> float:
        """Wall clock, epoch seconds."""
        return self._ahead + self._loop.time()

    def monotonic(self) -> float:
        """Seconds that no jump moves."""
        return self._loop.time()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call *callback* once *seconds* have passed."""
        return self._loop.call_later(max(0.0, seconds), callback)

    async def sleep(self, seconds: float) -> None:
        """Return once *seconds* have passed."""
        await asyncio.sleep(max(0.0, seconds))

    def jump(self, seconds: float) -> None:
        """Move the wall clock."""
        self._ahead += seconds
