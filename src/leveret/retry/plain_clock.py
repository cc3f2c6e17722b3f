"""A clock made of two plain functions, one that tells the time and one that waits: what `RetryWorker` is given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from leveret.ports import Timer

#: Linux's clock that goes on while the machine is suspended; elsewhere `time.monotonic` is what there is.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class PlainClock:
    """A clock of two plain functions.

    Args:
        clock: the wall clock. Where it is `time.time` itself, spans are measured by the clock that runs from boot, so
            that no jump of the wall clock changes them; any other is a test's or a simulation's, and measures both.
        sleep: waits.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[object]]) -> None:
        self._clock = clock
        self._sleep = sleep

    def now(self) -> float:
        """Wall clock, epoch seconds."""
        return self._clock()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        if self._clock is not time.time:
            return self._clock()
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* on the running loop after *seconds* of the loop's own time."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Wait as *sleep* does."""
        await self._sleep(seconds)
