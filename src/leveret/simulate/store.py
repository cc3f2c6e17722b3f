"""The store of a simulation: the memory store as though on another machine, and what befalls that machine."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from leveret.core.errors import StoreUnavailable
from leveret.ports import Clock, Store
from leveret.proof.serving import WRITES, served
from leveret.stores.memory import MemoryData, MemoryStore

#: Seconds that a call, or its answer, is under way.
NETWORK: Final = (0.0002, 0.002)


@dataclass(slots=True)
class StoreHost:
    """The machine that the store runs on, and what befalls it.

    Attributes:
        clock: by which the store judges what is due and whose lease is over.
        shared: whether all processes may use it, as PostgreSQL; else as a SQLite file, whose holder is alone.
        down: nothing is answered but that it is down.
        full: nothing can be written, all can be read.
        slow: seconds that each call takes longer.
        lies: so many of the next writes are done, and said to have failed.
    """

    data: MemoryData
    clock: Clock
    chance: random.Random
    shared: bool
    down: bool = False
    full: bool = False
    slow: float = 0.0
    lies: int = 0
    #: In which its calls run that are no process's any more.
    _machine: contextvars.Context = field(default_factory=contextvars.copy_context, init=False)

    def store(self) -> Store:
        """The store, as a process sees it."""
        return served(_Store(self), self.serve)

    async def serve(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Do a call as this machine does now.

        Raises:
            StoreUnavailable: it does not, or says so.
        """
        under_way = self.slow + self._network()
        if not under_way:
            return await self._do(name, call)
        # What was sent is done, whether whoever sent it still waits for the answer or not. A machine of its own does it
        # for a dead process too; a SQLite file is written by a thread, which dies with its process.
        whose = self._machine if self.shared else None
        doing = asyncio.get_running_loop().create_task(self._do(name, call, under_way), context=whose)
        doing.add_done_callback(_hear, context=whose)
        return await asyncio.shield(doing)

    async def _do(self, name: str, call: Callable[[], Awaitable[Any]], under_way: float = 0.0) -> Any:
        if under_way:
            await asyncio.sleep(under_way)
        if self.down:
            raise StoreUnavailable("the simulated store is down")
        if name not in WRITES:
            return await call()
        if self.full:
            raise StoreUnavailable("the disk of the simulated store is full")
        answer = await call()
        if self.lies:
            self.lies -= 1
            raise StoreUnavailable("the simulated store gave no answer in time; it may have done it")
        if self.shared:
            await asyncio.sleep(self._network())
        return answer

    def _network(self) -> float:
        """Seconds on the way there, or back."""
        return self.chance.uniform(*NETWORK) if self.shared else 0.0


def _hear(doing: asyncio.Task[Any]) -> None:
    """Look at an error that nobody may wait for any more."""
    if not doing.cancelled():
        doing.exception()


class _Store(MemoryStore):
    """A memory store on that machine."""

    def __init__(self, host: StoreHost) -> None:
        super().__init__(clock=host.clock, data=host.data)
        self._shared: Final = host.shared

    @property
    def shared(self) -> bool:
        """As its machine says."""
        return self._shared
