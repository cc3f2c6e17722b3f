"""MemoryStore: retries, dead letters, acts, start counts and leases in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.errors import StoreUnavailable
from leveret.stores.memory.acts import MemoryActs
from leveret.stores.memory.data import MemoryData
from leveret.stores.memory.lease import MemoryRetryLease, lease_state
from leveret.stores.memory.letters import MemoryLetters
from leveret.stores.memory.retries import MemoryRetries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports import Clock, Lease, LeaseState


class MemoryStore(MemoryRetries, MemoryLetters, MemoryActs):
    """The store that keeps nothing beyond its process: for tests, demos and simulations.

    It keeps the same contract as the others; one event loop uses it.

    Args:
        clock: tells the time.
        data: what it holds. Give the same `MemoryData` to another store to simulate a restart, or a second process.

    Example:
        data = MemoryData()
        store = MemoryStore(clock=clock, data=data)
        await store.open()
        await store.put([entry])  # [Placed(written=True, due_in=30.0)]
        restarted = MemoryStore(clock=clock, data=data)
    """

    def __init__(self, *, clock: Clock, data: MemoryData | None = None) -> None:
        self.clock = clock
        self._given = data is not None
        self._data = data if data is not None else MemoryData()
        self._is_open = False

    def __repr__(self) -> str:
        return "<MemoryStore memory://>"

    @property
    def display(self) -> str:
        """`memory://`."""
        return "memory://"

    @property
    def shared(self) -> bool:
        """False: one process."""
        return False

    @property
    def lasting(self) -> bool:
        """Whether its data was given to it: then they can be given to another one."""
        return self._given

    async def open(self, *, create: bool = True) -> None:
        """Open it."""
        self._is_open = True

    async def close(self) -> None:
        """Close it; what it holds stays in its data. Idempotent."""
        self._is_open = False

    def lease(self, name: str) -> Lease:
        """The lease of that name."""
        return MemoryRetryLease(name=name, clock=self.clock, data=self._data)

    async def leases(self, namespace: str | None) -> Mapping[str, LeaseState]:
        """Every lease of the namespace (None: all), by name."""
        time = self.clock.monotonic()
        return {
            name: lease_state(row, time)
            for name, row in sorted(self._open().leases.items())
            if namespace is None or name.startswith(f"{namespace}/")
        }

    async def namespaces(self) -> list[str]:
        """Every namespace that it holds something of, sorted."""
        data = self._open()
        found = {namespace for namespace, _ in [*data.retries, *data.letters]}
        found |= {namespace for namespace, _, _ in data.starts} | {
            act.namespace for act in data.acts.values()
        }
        return sorted(found | {name.partition("/")[0] for name in data.leases if "/" in name})

    async def document_collections(self) -> list[str]:
        """None: documents in memory lie in stores of their own."""
        return []

    async def check(self) -> Mapping[str, Any]:
        """What lies in it; there is no schema and no file to check."""
        data = self._open()
        return {
            "integrity": "ok",
            "waiting": len(data.retries),
            "dead": sum(letter.state == "dead" for letter in data.letters.values()),
        }

    def _open(self) -> MemoryData:
        if not self._is_open:
            raise StoreUnavailable("the store memory:// is not open: call `await store.open()` first")
        return self._data
