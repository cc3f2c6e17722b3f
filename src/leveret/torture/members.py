"""Members: the processes of a shop, from outside. Each is started again under another name whenever it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from leveret.proof.record import FileRecord, Healed, machine_seconds
from leveret.torture.child import Child, ChildGone
from leveret.torture.process import Told

#: Seconds until a process that has ended is started again, as who watches over processes does it.
AGAIN: Final = 0.3
#: Seconds that a process which was asked to stop gives what runs, as `shutdown_grace` says by default.
GRACE: Final = 30.0
#: Seconds in which it must have ended: its grace, and some.
STOP: Final = GRACE + 15
#: Seconds in which it must be ready: a broker or a store that is struck keeps it waiting, for longer than any blow.
UP: Final = 240.0
#: Lives in a row that end as none should, after which it gets no other one.
LIVES: Final = 3
#: Exit codes of processes that were killed, or asked to stop before they could listen.
_STRUCK: Final = {-signal.SIGKILL, -signal.SIGTERM}


class Member:
    """One process of the shop, in all its lives.

    Args:
        name: such as `workers-1`.
        told: what its process is told; name and seed are those of a life.
        folder: of logs.
        record: where its successors are said to be at work.
        failed: told in a sentence of a life that ended as none should.
        runs: the module, or the words that start something else.
    """

    def __init__(
        self,
        name: str,
        told: Told,
        *,
        folder: Path,
        record: FileRecord,
        failed: Callable[[str], object],
        runs: str | Sequence[str] = "leveret.torture.process",
    ) -> None:
        self.name: Final = name
        self.life = 0
        self._told: Final = told
        self._folder: Final = folder
        self._record: Final = record
        self._failed: Final = failed
        self._runs: Final = runs
        self._child: Child | None = None
        #: Set while it is ready, and once it gets no other life.
        self._known: Final = asyncio.Event()
        #: Why it gets no other life.
        self._given_up = ""
        self._over = False
        self._asked_to_stop = False
        self._task: asyncio.Task[None] | None = None
        #: Blows at it that are over once its successor works.
        self._blows: list[str] = []

    @property
    def by(self) -> str:
        """Its name in this life."""
        return f"{self.name} {self.life}"

    @property
    def child(self) -> Child:
        """The process of this life."""
        if self._child is None:
            raise ChildGone(f"{self.name} has not been started")
        return self._child

    @property
    def is_up(self) -> bool:
        """Whether it has said that it is ready, and has not ended since."""
        return self._known.is_set() and not self._given_up

    def start(self) -> None:
        """Begin its first life, and the next one whenever one has ended."""
        self._task = asyncio.create_task(self._watch(), name=self.name)

    async def up(self, patience: float = UP) -> None:
        """Return once it is ready.

        Raises:
            ChildGone: it gets no other life.
            TimeoutError: it takes longer.
        """
        try:
            await asyncio.wait_for(self._known.wait(), patience)
        except TimeoutError:
            raise TimeoutError(self.not_ready(patience)) from None
        if self._given_up:
            raise ChildGone(self._given_up)

    def not_ready(self, patience: float) -> str:
        """That it is not, in words."""
        words = "" if self._child is None else f"; {self._child.last_words}"
        return f"{self.by} is not ready after {patience:g} s{words}"

    async def ask(self, do: str, **how: Any) -> dict[str, Any] | None:
        """Have the process of this life do something; None where it has ended."""
        if not self.is_up:
            return None
        try:
            return await self.child.ask(do, **how)
        except ChildGone:
            return None

    def heals_when_back(self, fault: str) -> None:
        """That fault is over once its next life works."""
        self._blows.append(fault)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        if number == signal.SIGTERM:
            self._asked_to_stop = True
        if self._child is not None:
            self._child.signal(number)

    async def back(self, life: int) -> None:
        """Return once a later life than that is ready, or there is none to come.

        Raises:
            TimeoutError: it takes longer than any fault.
        """
        until = machine_seconds() + UP
        while self.life <= life or not self.is_up:
            if self._over:
                return
            if machine_seconds() > until:
                raise TimeoutError(self.not_ready(UP))
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Ask it to stop, for good; kill it where it does not."""
        self._over = True
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=STOP)
            if not done:
                self._failed(f"{self.by} had not stopped {STOP:g} s after it was asked to")
                await self.kill()

    async def kill(self) -> None:
        """End it at once, for good."""
        self._over = True
        if self._child is not None:
            await self._child.kill()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # ── Lives ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """One life after the other. What keeps ending as none should does not get better, and would for ever."""
        wrong = 0
        while not self._over:
            self.life += 1
            self._asked_to_stop = False
            self._child = Child(
                self._runs,
                msgspec.structs.replace(self._told, by=self.by, seed=self._told.seed * 1000 + self.life),
                log=self._folder / f"{self.name}.log",
            )
            wrong = 0 if await self._live(self._child) else wrong + 1
            if wrong == LIVES:
                self._given_up = (
                    f"{self.name} is not started again: {LIVES} lives in a row have ended as none should"
                )
                self._failed(self._given_up)
                self._over = True
                self._known.set()
                return
            await asyncio.sleep(AGAIN)

    async def _live(self, child: Child) -> bool:
        """One life; whether it ended as it may."""
        try:
            await child.start()
        except OSError as error:
            self._failed(f"{self.by} cannot be started: {error}")
            return False
        with contextlib.suppress(ChildGone):
            # A broker or a store that is away keeps it waiting as long as it likes.
            await child.ready(patience=3600.0)
            self._known.set()
            for fault in (*self._blows, f"deadly {self.name} {self.life - 1}"):
                self._record.write(Healed(at=self._record.now(), by=self._record.by, fault=fault))
            self._blows.clear()
        code = await child.ended()
        self._known.clear()
        if code in _STRUCK or (code == 0 and self._asked_to_stop):
            return True
        self._failed(f"{self.by} ended with {code}; {child.last_words}")
        return False


async def ask_all(members: Collection[Member], do: str, **how: Any) -> Mapping[str, dict[str, Any]]:
    """Have each of them that is up do something; what they say, by name in this life."""
    asked = [(member, member.by) for member in members if member.is_up]
    answers = await asyncio.gather(*(member.ask(do, **how) for member, _ in asked), return_exceptions=True)
    return {by: answer for (_, by), answer in zip(asked, answers, strict=True) if isinstance(answer, dict)}
