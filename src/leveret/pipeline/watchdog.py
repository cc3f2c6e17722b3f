"""Watchdog: notices from a thread of its own that a handler blocks the event loop, and names the line (B06)."""

from __future__ import annotations

import asyncio
import linecache
import re
import sys
import threading
from collections.abc import Awaitable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

from leveret.pipeline.parts import log
from leveret.ports import Threads

#: Seconds between looks.
EVERY: Final = 1.0
#: So many looks in a row without an answer, and it is told. A loop that only has much to do answers sooner, and the
#: shortest heartbeat in common use has not failed by then.
TOLD_AFTER: Final = 3

_CALLED: Final = re.compile(r"(?:await\s+)?([\w.]+)\s*\(")


class Watchdog:
    """Warns once of each time that the event loop stands still, with the worker and the line that hold it up.

    A blocked loop cannot tell so itself, and no heartbeat goes out meanwhile. The thread goes by real time, whatever
    clock the world has, so it belongs into the real world only.

    Args:
        handlers: whose code is which worker's, by name.
        threads: one of them is taken.
        every: seconds between looks.

    Example:
        watchdog = Watchdog({charge.__code__: "charge"}, threads=world.threads(1, "leveret-watchdog"))
        watchdog.start()
        await watchdog.stop()
    """

    def __init__(self, handlers: Mapping[CodeType, str], *, threads: Threads, every: float = EVERY) -> None:
        self._handlers: Final = handlers
        self._threads: Final = threads
        self._every: Final = every
        self._ending: Final = threading.Event()
        self._ended: Awaitable[None] | None = None
        #: The number of the last question that the loop has answered; written by the loop, read by the thread.
        self._answered = 0

    def start(self) -> None:
        """Watch the running loop, which must be this thread's."""
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        self._ended = self._threads.run(lambda: self._watch(loop, thread))

    async def stop(self) -> None:
        """Watch no more. Idempotent."""
        self._ending.set()
        ended, self._ended = self._ended, None
        if ended is not None:
            await ended
            self._threads.close()

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        asked = missed = 0
        # Looks are counted, not seconds: while the machine is suspended nobody looks.
        while not self._ending.wait(self._every):
            if self._answered == asked:
                asked, missed = asked + 1, 0
                try:
                    loop.call_soon_threadsafe(self._answer, asked)
                except RuntimeError:
                    # The loop was closed, and nobody stopped us before.
                    return
                continue
            missed += 1
            if missed == TOLD_AFTER:
                said = self._holdup(thread, missed * self._every)
                if self._answered != asked:
                    log.warning("%s", said, extra={"action": "loop_blocked"})

    def _answer(self, number: int) -> None:
        self._answered = number

    def _holdup(self, thread: int, seconds: float) -> str:
        """Who holds the loop up, and where."""
        stack = list(_frames(sys._current_frames().get(thread)))  # noqa: SLF001 - there is no other way to look
        for frame in stack:
            worker = self._handlers.get(frame.f_code)
            if worker is not None:
                return (
                    f"{worker} has blocked the event loop for {seconds:g} s ({_place(frame)}); make it a plain def. "
                    "Nothing else runs in this process meanwhile, and no heartbeat goes to the broker"
                )
        where = f" ({_place(stack[0])})" if stack else ""
        return (
            f"the event loop has been blocked for {seconds:g} s, by no worker's handler{where}. Nothing else runs in "
            "this process meanwhile, and no heartbeat goes to the broker. Await, or use a thread: asyncio.to_thread"
        )


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The innermost frame first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    """`time.sleep at shop.py:21`, or without the call where the source is not there or no call stands there."""
    code, line = frame.f_code, frame.f_lineno
    place = f"{Path(code.co_filename).name}:{line}"
    position = next(islice(code.co_positions(), frame.f_lasti // 2, None), None)
    column = None if position is None else position[2]
    if position is None or column is None or position[0] != line:
        return place
    # Columns count bytes.
    source = linecache.getline(code.co_filename, line).encode()[column:].decode(errors="replace")
    called = _CALLED.match(source)
    return place if called is None else f"{called[1]} at {place}"
