"""The store of a simulation: the memory store as though on another machine, and faults at its calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from leveret.core.errors import StoreUnavailable
from leveret.ports import Clock, Grant, LeaseState
from leveret.stores.memory import MemoryData, MemoryRetryLease, MemoryStore

#: What changes something; the rest only reads.
WRITES: Final = frozenset(
    [
        "put",
        "remove",
        "postpone",
        "unblock",
        "reschedule",
        "hold",
        "move",
        "bury",
        "keep",
        "claim",
        "replayed",
        "set_state",
        "edit",
        "ask",
        "report",
        "count_start",
        "forget_starts",
        "acquire_or_renew",
        "release",
    ]
)
READS: Final = frozenset(
    [
        "upcoming",
        "next_due",
        "take",
        "entries",
        "count_entries",
        "entry",
        "letters",
        "count_letters",
        "groups",
        "letter",
        "asked",
        "act",
        "leases",
        "grant",
        "state",
    ]
)


@dataclass(slots=True)
class StoreHost:
    """The machine that the store runs on, and what befalls it.

    Attributes:
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
    #: How many calls it has answered.
    calls: int = field(default=0)

    async def serve(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Do a call as this machine does now."""
        self.calls += 1
        if self.shared:
            await asyncio.sleep(self.chance.uniform(0.0002, 0.002) + self.slow)
        elif self.slow:
            await asyncio.sleep(self.slow)
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
            await asyncio.sleep(self.chance.uniform(0.0002, 0.002))
        return answer


class FaultyStore(MemoryStore):
    """A memory store whose calls go through its machine."""

    def __init__(self, host: StoreHost) -> None:
        super().__init__(clock=host.clock, data=host.data)
        self._host: Final = host

    @property
    def shared(self) -> bool:
        """As its machine says."""
        return self._host.shared

    async def open(self, *, create: bool = True) -> None:
        """Open it."""
        await self._host.serve("open", super().open)

    def lease(self, name: str) -> FaultyLease:
        """The lease of that name."""
        return FaultyLease(name, self._host)


class FaultyLease(MemoryRetryLease):
    """A lease whose calls go through the store's machine."""

    def __init__(self, name: str, host: StoreHost) -> None:
        super().__init__(name=name, clock=host.clock, data=host.data)
        self._host: Final = host

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """As the lease does."""
        renew = super().acquire_or_renew
        held: bool = await self._host.serve("acquire_or_renew", lambda: renew(holder_id, now, expires_at))
        return held

    async def grant(self, holder_id: str) -> Grant | None:
        """As the lease does."""
        grant = super().grant
        granted: Grant | None = await self._host.serve("grant", lambda: grant(holder_id))
        return granted

    async def release(self, holder_id: str) -> None:
        """As the lease does."""
        release = super().release
        await self._host.serve("release", lambda: release(holder_id))

    async def state(self) -> LeaseState | None:
        """As the lease does."""
        state = super().state
        told: LeaseState | None = await self._host.serve("state", state)
        return told


def _through_the_host(name: str) -> Callable[..., Awaitable[Any]]:
    whole = getattr(MemoryStore, name)

    async def call(self: FaultyStore, *arguments: Any, **options: Any) -> Any:
        return await self._host.serve(name, lambda: whole(self, *arguments, **options))

    return call


for _name in sorted((WRITES | READS) - set(vars(MemoryRetryLease))):
    setattr(FaultyStore, _name, _through_the_host(_name))
