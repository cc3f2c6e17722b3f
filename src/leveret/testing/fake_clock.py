"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

#: Timers this close to where the clock was moved to are due: ten steps of 0.1 s do not add up to 1.0 exactly, and
#: what is counted from the wall clock is known to a quarter of a microsecond only.
_ROUNDING = 1e-6
#: A task that spins on `sleep(0)` never leaves the loop idle; after so many turns time goes on all the same.
_MOST_TURNS = 10_000
#: How often others get a turn on a loop that does not tell whether anything is about to run.
_BLIND_TURNS = 50


class FakeTimer:
    """A pending call of a `FakeClock`."""

    __slots__ = ("_callback", "_loop", "cancelled", "context", "due")

    def __init__(self, due: float, callback: Callable[[], object]) -> None:
        self.due = due
        self.cancelled = False
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        # As asyncio does it: the call sees the context variables of whoever asked for it.
        self.context = contextvars.copy_context()

    def cancel(self) -> None:
        """Do not make the call; harmless when it was made or cancelled already."""
        self.cancelled = True

    def make(self) -> None:
        """Have the loop make the call in its next turn, unless it is cancelled by then."""
        if not self._loop.is_closed():
            self._loop.call_soon(self._call, context=self.context)

    def _call(self) -> None:
        if not self.cancelled:
            self._callback()


class FakeClock:
    """Time that passes only when told to: hours in milliseconds, and the same every time.

    Args:
        start: the wall clock's first reading, epoch seconds.
        settle: awaited after each step of `advance`, for work that the loop cannot see (threads).

    Example:
        >>> import asyncio
        >>> async def an_hour_in_no_time() -> float:
        ...     clock = FakeClock(start=1000.0)
        ...     nap = asyncio.create_task(clock.sleep(3600))
        ...     await clock.advance(3600)
        ...     await nap
        ...     return clock.now()
        >>> asyncio.run(an_hour_in_no_time())
        4600.0
    """

    def __init__(
        self, start: float = 1_750_000_000.0, *, settle: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.settle = settle
        self._wall_ahead = start
        self._elapsed = 0.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._asleep: dict[FakeTimer, None] = {}
        self._numbered = 0

    def now(self) -> float:
        """Wall clock, epoch seconds: moved by `advance` and by `jump`."""
        return self._wall_ahead + self._elapsed

    def monotonic(self) -> float:
        """Seconds since the clock was made: moved by `advance` alone."""
        return self._elapsed

    def call_later(self, seconds: float, callback: Callable[[], object]) -> FakeTimer:
        """Call *callback* on the running loop once the clock was advanced by *seconds*; 0: at its next step."""
        timer = FakeTimer(self._elapsed + max(0.0, seconds), callback)
        self._numbered += 1
        heapq.heappush(self._timers, (timer.due, self._numbered, timer))
        return timer

    async def sleep(self, seconds: float) -> None:
        """Return once the clock was advanced by *seconds*; 0 lets others run."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not awake.done():
                awake.set_result(None)

        timer = self.call_later(seconds, wake)
        self._asleep[timer] = None
        try:
            await awake
        finally:
            del self._asleep[timer]
            timer.cancel()

    def asleep(self) -> Iterator[contextvars.Context]:
        """The contexts in which somebody sleeps on this clock now, waiting for time to pass and for nothing else."""
        return (timer.context for timer in self._asleep)

    @property
    def next_timer(self) -> float | None:
        """Seconds until the next timer, None where there is none."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - self._elapsed) if self._timers else None

    async def advance(self, seconds: float) -> None:
        """Let *seconds* pass, from timer to timer in their order; what one sets off has settled before time goes on.

        Raises:
            ValueError: *seconds* is negative: this clock's monotonic time never goes back. `jump` moves the wall clock.
        """
        if not seconds >= 0:
            raise ValueError(
                f"advance({seconds!r}): expected 0 or more seconds; jump() moves the wall clock back"
            )
        target = self._elapsed + seconds
        await self._settled()
        while self.next_timer is not None and self._timers[0][0] <= target + _ROUNDING:
            self._elapsed = max(self._elapsed, self._timers[0][0])
            while self._timers and self._timers[0][0] <= self._elapsed:
                heapq.heappop(self._timers)[2].make()
            await self._settled()
        self._elapsed = max(self._elapsed, target)
        await self._settled()

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or (negative) back, as an administrator or a time server would. No timer moves."""
        self._wall_ahead += seconds

    async def _settled(self) -> None:
        await idle()
        if self.settle is not None:
            await self.settle()


async def idle() -> bool:
    """Let the loop run until nothing else is about to; False where something always is."""
    # asyncio's own loops keep what is about to run in `_ready`. There is no public way to ask, and without asking a
    # fixed number of turns is either wasted or too few.
    about_to_run: Any = getattr(asyncio.get_running_loop(), "_ready", None)
    if about_to_run is None:
        for _ in range(_BLIND_TURNS):
            await asyncio.sleep(0)
        return True
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        if not about_to_run:
            return True
    return False
