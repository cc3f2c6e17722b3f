"""The world as it is: the system's clock, randomness, ids and threads."""

from __future__ import annotations

import asyncio
import contextvars
import os
import queue
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from leveret.ports import Timer, World

R = TypeVar("R")

#: Seconds after which a long timer looks at the boot clock again.
LOOK_AGAIN = 5.0

#: Linux's clock that goes on while the machine is suspended; elsewhere `time.monotonic` is what there is.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


#: The bits of a UUID that say its variant and version, RFC 9562; all others are random.
_VERSION_4 = 0x0000_0000_0000_4000_8000_0000_0000_0000
_NOT_FIXED = 0xFFFF_FFFF_FFFF_0FFF_3FFF_FFFF_FFFF_FFFF


class SystemClock:
    """The system's clocks."""

    def now(self) -> float:
        """Wall clock, epoch seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since boot, suspended time included where the system can tell."""
        return time.monotonic() if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* on the running loop after *seconds*, also where the machine was suspended meanwhile."""
        loop = asyncio.get_running_loop()
        if seconds <= LOOK_AGAIN:
            return loop.call_later(seconds, callback)
        return _LongTimer(self, loop, self.monotonic() + seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Return after *seconds*."""
        if seconds <= LOOK_AGAIN:
            await asyncio.sleep(seconds)
            return
        awake = asyncio.Event()
        timer = self.call_later(seconds, awake.set)
        try:
            await awake.wait()
        finally:
            timer.cancel()


class _LongTimer:
    """A timer that looks at the boot clock now and then: the loop's own clock stands still while the machine sleeps."""

    def __init__(
        self, clock: SystemClock, loop: asyncio.AbstractEventLoop, due: float, callback: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._due = due
        self._callback = callback
        self._handle = loop.call_later(LOOK_AGAIN, self._look)

    def _look(self) -> None:
        left = self._due - self._clock.monotonic()
        if left <= 0:
            self._callback()
        else:
            self._handle = self._loop.call_later(min(left, LOOK_AGAIN), self._look)

    def cancel(self) -> None:
        """Do not make the call."""
        self._handle.cancel()


class DaemonThreads:
    """Threads for plain handlers. Daemon ones: a handler that never ends must not keep the process from ending."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def run(self, call: Callable[[], R]) -> Awaitable[R]:
        """Run *call* in a thread, with the caller's context variables."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[R] = loop.create_future()
        context = contextvars.copy_context()

        def settle(result: R | None, error: BaseException | None) -> None:
            self._busy -= 1
            if answer.cancelled():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result: R | None = None
            failed: BaseException | None = None
            try:
                result = context.run(call)
            except BaseException as error:  # noqa: BLE001 — handed on to whoever waits
                failed = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, failed)

        if self._busy >= len(self._threads) and len(self._threads) < self._size:
            self._add_thread()
        self._busy += 1
        self._calls.put(work)
        return answer

    def _add_thread(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system has none left: those that are there take the call in their turn.
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        """Let idle threads end; one that runs ends with its call."""
        for _ in self._threads:
            self._calls.put(None)


def random_uuid() -> str:
    """A UUIDv4 as text, in half the time of `str(uuid.uuid4())`: each message gets one, and nobody needs the object.

    Example:
        >>> import uuid
        >>> uuid.UUID(random_uuid()).version
        4
    """
    return uuid_text(int.from_bytes(os.urandom(16)))


def uuid_text(bits: int) -> str:
    """A UUIDv4 of 128 random bits as text.

    Example:
        >>> uuid_text(2**128 - 1)
        'ffffffff-ffff-4fff-bfff-ffffffffffff'
    """
    bits = bits & _NOT_FIXED | _VERSION_4
    digits = f"{bits:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def system_world() -> World:
    """The real world."""
    return World(
        clock=SystemClock(),
        random=random.Random(),
        new_id=random_uuid,
        threads=DaemonThreads,
    )


def holder_name(world: World) -> str:
    """Who this process is to others, as shown by `status`: host/pid, and some letters that make it one of its kind."""
    from leveret.core.envelope import HOST

    return f"{HOST}/{os.getpid()}/{world.random.getrandbits(24):06x}"
