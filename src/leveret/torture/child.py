"""Child: a process of the torture's own, told what to be in one argument, and what to do in lines on its input.

A child never outlives who started it: not one that works, not one that is paused, not one that is just starting. So its
second argument is its parent's number.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import select
import signal
import sys
import threading
import traceback
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from leveret.core.errors import LeveretError
from leveret.proof.record import AnyEvent, FileRecord

T = TypeVar("T")

#: What a child is to do; "do" says what, the rest how.
Command = dict[str, Any]

#: Of prctl, from linux/prctl.h: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG: Final = 1
#: Begins the names of the threads in a loop's own pool. They come one by one whenever none is idle, up to a bound of
#: Python's, and so say nothing of who keeps starting threads.
_POOL: Final = "asyncio_"
#: Seconds in which a child must answer; it does in a few milliseconds, unless the machine is very busy.
ANSWER: Final = 60.0
#: How a child ends whose parent was gone before it could notice.
_ORPHANED: Final = 1
#: How a child ends that cannot write down what it sees.
_NO_RECORD: Final = 1
#: Bytes at the end of a log that its last line is looked for in.
_LAST: Final = 4096


class ChildGone(LeveretError):
    """A child ended instead of answering."""


class ChildRecord(FileRecord):
    """The record of a child, which ends with it: a handler that cannot write would fail softly, and run again."""

    def write(self, event: AnyEvent) -> None:
        """Append one line; where it does not get there, the process ends."""
        try:
            super().write(event)
        except OSError:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(_NO_RECORD)


# ── In the child ──────────────────────────────────────────────────────────────────────────────────────────────────────


def told(kind: type[T]) -> T:
    """What the child was told at its start."""
    return msgspec.json.decode(sys.argv[1], type=kind)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the child's main function; the child ends when its parent does."""
    if sys.platform == "linux":
        # A paused process does not see that its input has ended; this signal reaches it all the same.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The signal says nothing of a parent that was gone before.
    if os.getppid() != int(sys.argv[2]):
        os._exit(_ORPHANED)
    threading.Thread(target=_end_with_input, daemon=True).start()
    asyncio.run(main())


def _end_with_input() -> None:
    """End this process once nobody holds the other end of its input, whatever else it is at; what comes is not read."""
    held = select.poll()
    held.register(sys.stdin, 0)
    held.poll()
    os._exit(0)


async def serve(
    obey: Callable[[Command], Awaitable[Mapping[str, Any]]], *, ready: Mapping[str, Any] | None = None
) -> None:
    """Say that all is ready, then obey command after command. When the input ends, so does the process, at once."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    _say(ready or {})
    async for line in lines:
        _say(await obey(msgspec.json.decode(line)))
    os._exit(0)


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def figures(*, collects: bool = False) -> dict[str, float]:
    """What this process uses, in all its threads.

    Args:
        collects: leave out what only waits for Python's collector: it comes and goes by thousands of objects.
    """
    if collects:
        gc.collect()
    objects = gc.get_objects()
    # The class of what isinstance() asks may be that of something else, which may be gone.
    loops = [each for each in objects if issubclass(type(each), asyncio.BaseEventLoop) and each.is_running()]
    with Path("/proc/self/statm").open() as statm:
        pages = int(statm.read().split()[1])
    return {
        "memory": float(pages * os.sysconf("SC_PAGE_SIZE")),
        "files": float(sum(1 for _ in Path("/proc/self/fd").iterdir())),
        "threads": float(sum(not thread.name.startswith(_POOL) for thread in threading.enumerate())),
        "tasks": float(sum(len(asyncio.all_tasks(loop)) for loop in loops)),
        "timers": float(sum(map(_timers, loops))),
        "objects": float(len(objects)),
    }


def _timers(loop: asyncio.AbstractEventLoop) -> int:
    """How many are to ring. A loop keeps those that were cancelled until they are more than the others."""
    return sum(not timer.cancelled() for timer in tuple(getattr(loop, "_scheduled", ())))


async def until_signalled(*works: asyncio.Future[None]) -> None:
    """Return once the process is asked to stop.

    Raises:
        Exception: what one of these has raised meanwhile, none of which ends by itself.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def ask() -> None:
        if not asked.done():
            asked.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    ended, _ = await asyncio.wait([asked, *works], return_when=asyncio.FIRST_COMPLETED)
    for work in ended:
        work.result()


# ── In the parent ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Child:
    """A child, from its parent's side.

    Args:
        module: that it runs, or the words that start it.
        told: its first argument.
        log: file that its standard error is appended to.
        environment: on top of the parent's.
    """

    def __init__(
        self,
        module: str | Sequence[str],
        told: msgspec.Struct,
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        started = [sys.executable, "-m", module] if isinstance(module, str) else [*module]
        self._words: Final = [*started, msgspec.json.encode(told).decode(), str(os.getpid())]
        self._log: Final = log
        self._environment: Final = {**os.environ, **(environment or {})}
        self._process: Process | None = None
        self._turn: Final = asyncio.Lock()

    async def start(self) -> None:
        """Start it; it is not ready yet."""
        with self._log.open("ab") as log:
            # A session of its own: Ctrl+C is for us alone, who end the child when it is time.
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def process(self) -> Process:
        """The process.

        Raises:
            ChildGone: it is not started yet.
        """
        if self._process is None:
            raise ChildGone(f"{' '.join(self._words[:3])} has not been started")
        return self._process

    @property
    def last_words(self) -> str:
        """The last line of its log, and where that is."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LAST))
            lines = log.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "none")
        return f"its last words, in {self._log}: {said}"

    @property
    def running(self) -> bool:
        """Whether it has been started, and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def ready(self, patience: float = ANSWER) -> dict[str, Any]:
        """What it says when it is ready.

        Raises:
            ChildGone: it ended before.
            TimeoutError: it takes longer.
        """
        async with self._turn:
            return await self._answer(patience)

    async def ask(self, do: str, *, patience: float = ANSWER, **how: Any) -> dict[str, Any]:
        """Have it do something, and return what it says to that.

        Raises:
            ChildGone: it has ended.
            TimeoutError: it takes longer.
        """
        async with self._turn:
            stdin = _piped(self.process.stdin)
            try:
                stdin.write(msgspec.json.encode({"do": do, **how}) + b"\n")
                await stdin.drain()
            except ConnectionError as error:
                raise ChildGone(f"{' '.join(self._words[:3])} has ended") from error
            return await self._answer(patience)

    async def _answer(self, patience: float) -> dict[str, Any]:
        line = await asyncio.wait_for(_piped(self.process.stdout).readline(), patience)
        if not line.endswith(b"\n"):
            raise ChildGone(f"{' '.join(self._words[:3])} has ended; {self.last_words}")
        return msgspec.json.decode(line, type=dict[str, Any])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; harmless where it has ended."""
        if self.running:
            self.process.send_signal(number)

    async def ended(self) -> int:
        """Return with its exit code once it has ended."""
        return await self.process.wait()

    async def kill(self) -> None:
        """End it at once; harmless where it has ended."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            await self._process.wait()


def _piped(stream: T | None) -> T:
    """The stream of a process that was started with pipes."""
    if stream is None:
        raise AssertionError("a child is started with pipes, and this one has none")
    return stream
