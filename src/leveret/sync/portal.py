"""Portal: one event loop on a daemon thread of its own, to which any other thread hands work.

All of its own state is swapped at once where the process forks: the child has the parent's memory, and none of its
threads. What the child holds of the parent's loop is never touched again, since the two share its wake-up pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeVar

from leveret.core.errors import LeveretError, TransportUnavailableError

R = TypeVar("R")

#: Seconds that the loop's thread gets to end at `close`.
_END: Final = 2.0

#: What children hold of their parents: never used, never cleaned up, since cleaning up would reach the parent.
_inherited: Final[list[object]] = []
_portals: Final[weakref.WeakSet[Portal]] = weakref.WeakSet()


class Portal:
    """A loop on a thread of its own, started when first needed; a fresh one in a process that was forked off.

    Args:
        name: of the thread.
        owner: what the errors call it, such as `RabbitMQTransport`.
        forked: told in a child, before anything else runs there.

    Example:
        >>> portal = Portal("example", owner="the example", forked=lambda: None)
        >>> async def work() -> int:
        ...     return 42
        >>> portal.call(work())
        42
        >>> portal.close()
    """

    def __init__(self, name: str, *, owner: str, forked: Callable[[], object]) -> None:
        self._name: Final = name
        self._owner: Final = owner
        self._forked: Final = forked
        self._closed = False
        self._start_afresh()
        _portals.add(self)

    def _start_afresh(self) -> None:
        self._starting = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._calls: deque[Callable[[], object]] = deque()
        #: Whether the loop has been woken, and has not looked yet.
        self._woken = False

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its loop has ended."""
        loop = self._loop
        return self._closed or (loop is not None and loop.is_closed())

    @property
    def running(self) -> bool:
        """Whether its thread was started."""
        return self._loop is not None

    def check_thread(self) -> None:
        """Whoever is about to wait for the loop must not stand on it.

        Raises:
            LeveretError: called on the loop's own thread, which would wait for itself for ever.
        """
        if self._on_its_thread():
            raise LeveretError(
                f"{self._owner} was called on its own I/O thread, which would wait for itself for ever. Nothing was "
                "sent. Call it from a thread of your own (queue.SimpleQueue hands the work over)"
            )

    def _on_its_thread(self) -> bool:
        thread = self._thread
        # A thread that was started after ours has ended may bear its number.
        return thread is not None and thread.ident == threading.get_ident() and thread.is_alive()

    def submit(self, call: Callable[[], object]) -> None:
        """Have *call* made on the loop. Any thread; it takes no lock, so that it may happen in a `__del__` as well.

        Raises:
            TransportUnavailableError: it is closed, or the interpreter is ending.
            LeveretError: called on the loop's own thread.
        """
        loop = self._loop
        if loop is None:
            loop = self._start()
        elif self._closed or sys.is_finalizing():
            raise self._unavailable()
        self.check_thread()
        self._calls.append(call)
        # One wake-up serves all that is handed over until the loop looks.
        if not self._woken:
            self._woken = True
            try:
                loop.call_soon_threadsafe(self._look)
            except RuntimeError:
                raise self._unavailable() from None

    def call(self, work: Coroutine[Any, Any, R], *, within: float | None = None) -> R:
        """Run *work* on the loop, and wait for what comes of it.

        Args:
            work: a coroutine, made and not awaited yet.
            within: seconds after which it is cancelled; None: never.

        Raises:
            TimeoutError: it took longer.
            TransportUnavailableError: the portal is closed, or was closed meanwhile.
            LeveretError: called on the loop's own thread.
            Exception: whatever *work* raises.
        """
        try:
            waiter = self.start(work)
        except BaseException:
            work.close()
            raise
        try:
            return waiter.result(within)
        except TimeoutError:
            # One of the work's own is handed on as it is.
            if waiter.done():
                raise
            waiter.cancel()
            raise TimeoutError(f"no answer within {within} s") from None
        except BaseException:
            waiter.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run *work* on the loop, and do not wait. Raises as `submit` does."""
        waiter: Future[R] = Future()

        def begin() -> None:
            task = asyncio.ensure_future(work)

            def ended(_: object) -> None:
                error = self._unavailable() if task.cancelled() else task.exception()
                # Whoever waited may have given up at this very moment.
                with contextlib.suppress(InvalidStateError):
                    if error is not None:
                        waiter.set_exception(error)
                    else:
                        waiter.set_result(task.result())

            task.add_done_callback(ended)
            waiter.add_done_callback(lambda _: self._cancel(task) if waiter.cancelled() else None)

        self.submit(begin)
        return waiter

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        loop = self._loop
        if loop is not None and not task.done():
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                # The loop is closed, and with it went the task.
                return

    def _look(self) -> None:
        # Taken back first: what is handed over from here on wakes the loop again, or is found right now.
        self._woken = False
        calls = self._calls
        try:
            while calls:
                calls.popleft()()
        finally:
            # One that raised is told by the loop, and takes none of the others along.
            if calls and self._loop is not None:
                self._loop.call_soon(self._look)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._closed or sys.is_finalizing():
                raise self._unavailable()
            if self._loop is not None:
                return self._loop
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run, args=(loop,), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                loop.close()
                # Python 3.12 and later start no thread once the interpreter is ending.
                raise TransportUnavailableError(
                    f"{self._owner} cannot start its I/O thread ({error}): nothing was sent. Use it once before the "
                    "program ends, and it works in atexit too"
                ) from error
            self._thread = thread
            self._loop = loop
            return loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            # What was handed over last is begun, so that whoever waits for it is told that it was cancelled.
            loop.call_soon(self._look)
            loop.run_until_complete(asyncio.sleep(0))
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=_END))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def close(self, farewell: Coroutine[Any, Any, object] | None = None, *, within: float = 10.0) -> None:
        """End the loop and its thread. Idempotent; whoever still waits for the loop is told that it is closed.

        Args:
            farewell: run on the loop before, where it runs at all.
            within: seconds that it may take.

        Raises:
            LeveretError: called on the loop's own thread.
        """
        if farewell is not None and self._on_its_thread():
            farewell.close()
        self.check_thread()
        with self._starting:
            closed, self._closed = self._closed, True
        loop, thread = self._loop, self._thread
        if closed or loop is None or thread is None or sys.is_finalizing():
            if farewell is not None:
                farewell.close()
            return
        done = allocate_lock()
        done.acquire()

        def goodbye() -> None:
            if farewell is None:
                done.release()
            else:
                asyncio.ensure_future(farewell).add_done_callback(lambda _: done.release())

        loop.call_soon_threadsafe(goodbye)
        done.acquire(timeout=within)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_END + 1)

    def _unavailable(self) -> TransportUnavailableError:
        why = "was closed" if self._closed else "ended with the interpreter"
        return TransportUnavailableError(f"{self._owner} {why}: nothing was sent")

    def left_by_fork(self) -> None:
        """In a child: put aside what is the parent's, and begin anew."""
        _inherited.append((self._loop, self._thread, self._calls, self._starting))
        self._start_afresh()
        self._forked()


def inherited(thing: object) -> None:
    """Keep, in a child, what is its parent's: never used, never cleaned up."""
    _inherited.append(thing)


def _in_the_child() -> None:
    for portal in list(_portals):
        portal.left_by_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_the_child)
