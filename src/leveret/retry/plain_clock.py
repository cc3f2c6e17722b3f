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
        clock: the wall clock. Spans are measured so that no jump of it changes them: by the clock that runs from boot
            where it is `time.time`, by `monotonic` where it is a method of an object that has one. Any other function
            measures both.
        sleep: waits.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], Awaitable[object]]) -> None:
        whole = None if clock is time.time else getattr(clock, "__self__", None)
        self._now = clock
        self._sleep = sleep
        self._monotonic: Callable[[], float] = (
            _boot_time if clock is time.time else getattr(whole, "monotonic", clock)
        )
        self._call_later: Callable[[float, Callable[[], object]], Timer] | None = getattr(
            whole, "call_later", None
        )

    def now(self) -> float:
        """Wall clock, epoch seconds."""
        return self._now()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* on the running loop after *seconds*, by the loop's own time where the clock has no timers."""
        if self._call_later is not None:
            return self._call_later(seconds, callback)
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Wait as *sleep* does."""
        await self._sleep(seconds)


def _boot_time() -> float:
    return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)
