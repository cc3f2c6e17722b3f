"""Leases in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.ports import Grant, LeaseState
from leveret.stores.boot_time import boot_time
from leveret.stores.memory.data import LeaseRow, MemoryData

if TYPE_CHECKING:
    from leveret.ports import Clock


class MemoryRetryLease:
    """A lease among holders in this process: one at a time, each take-over under a higher term.

    Args:
        name: one lease a name.
        clock: tells the time; None: the clock that runs from boot.
        data: what it lies in; leases that compete share it.

    Example:
        lease = MemoryRetryLease()
        await lease.acquire_or_renew("one", now=0.0, expires_at=30.0)  # True
        await lease.acquire_or_renew("two", now=0.0, expires_at=30.0)  # False
    """

    def __init__(
        self, *, clock: Clock | None = None, name: str = "retry_worker", data: MemoryData | None = None
    ) -> None:
        self.name = name
        self._time = boot_time if clock is None else clock.monotonic
        self._data = data if data is not None else MemoryData()

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """Claim an expired lease or extend this holder's, for `expires_at - now` seconds by the store's clock.

        Returns:
            Whether *holder_id* holds it now.
        """
        time = self._time()
        row = self._data.leases.setdefault(self.name, LeaseRow("", 0, 0.0))
        if row.holder != holder_id:
            if row.holder and row.expires > time:
                return False
            row.holder = holder_id
            row.term += 1
        row.expires = time + (expires_at - now)
        return True

    async def grant(self, holder_id: str) -> Grant | None:
        """Proof that *holder_id* holds the lease, with its term; None where it does not, or its time is over."""
        row = self._data.leases.get(self.name)
        if row is None or row.holder != holder_id or row.expires <= self._time():
            return None
        return Grant(self.name, holder_id, row.term)

    async def release(self, holder_id: str) -> None:
        """Give it up at once; harmless where *holder_id* does not hold it. The term stays."""
        row = self._data.leases.get(self.name)
        if row is not None and row.holder == holder_id:
            row.holder = ""

    async def state(self) -> LeaseState | None:
        """Who holds it (nobody: an empty name), or None where nobody ever did."""
        row = self._data.leases.get(self.name)
        return None if row is None else lease_state(row, self._time())


def lease_state(row: LeaseRow, time: float) -> LeaseState:
    """What can be said of a lease at *time*."""
    return LeaseState(row.holder, row.term, row.expires - time if row.holder else 0.0)
