"""Leases in the SQLite file, and the proof of one that guards what its holder does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from leveret.ports import Grant, LeaseState
from leveret.stores.boot_time import boot_time
from leveret.stores.leases import check_held
from leveret.stores.sqlite.file import BUSY_TIMEOUT, SqliteFile

if TYPE_CHECKING:
    import sqlite3

    from leveret.ports import Clock
    from leveret.stores.sqlite.documents import SqliteDocumentStore
    from leveret.stores.sqlite.store import SqliteStore

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> str:
    """What tells this start of the machine from others: its clock begins anew. Empty where the system cannot tell."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def check_grant(connection: sqlite3.Connection, grant: Grant | None) -> None:
    """Make sure, within a transaction, that the grant holds.

    Raises:
        LeaseLost: somebody else holds the lease by now, or it was released.
    """
    if grant is None:
        return
    row = connection.execute("SELECT holder, term FROM lease WHERE name = ?", (grant.lease,)).fetchone()
    check_held(grant, row)


class SqliteRetryLease:
    """A lease in a SQLite file: one holder at a time, each take-over under a higher term.

    Its time is the clock that runs from boot: a jump of the wall clock neither frees it nor makes it last.

    Args:
        store: an open store, or the path of a file, which is then opened (and created) at first use.
        name: one lease a name.
        clock: what tells the time, with a path; None: the clock that runs from boot. A store has its own.

    Example:
        lease = SqliteRetryLease(store, name="shop/retry")
        await lease.acquire_or_renew("host/4711", now=0.0, expires_at=30.0)  # True
    """

    def __init__(
        self,
        store: SqliteStore | SqliteDocumentStore | str | os.PathLike[str],
        *,
        name: str = "retry_worker",
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self._boot = this_boot()
        self._own: SqliteFile | None = None
        if isinstance(store, (str, os.PathLike)):
            self._file = self._own = SqliteFile(store, busy_timeout=BUSY_TIMEOUT)
        else:
            self._file, clock = store.file, store.clock
        self._time = boot_time if clock is None else clock.monotonic

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """Claim an expired lease or extend this holder's, for `expires_at - now` seconds by the store's clock.

        Returns:
            Whether *holder_id* holds it now.
        """
        ttl = expires_at - now

        def ask(connection: sqlite3.Connection) -> bool:
            time = self._time()
            row = connection.execute(
                "SELECT holder, term, expires, ttl, boot FROM lease WHERE name = ?", (self.name,)
            ).fetchone()
            if row is None:
                term = 1
            elif row[0] == holder_id and row[4] == self._boot:
                term = row[1]
            elif self._left(row, time) <= 0:
                term = row[1] + 1
            else:
                return False
            connection.execute(
                "INSERT OR REPLACE INTO lease (name, holder, term, expires, ttl, boot) VALUES (?, ?, ?, ?, ?, ?)",
                (self.name, holder_id, term, time + ttl, ttl, self._boot),
            )
            return True

        return await (await self._opened()).write(ask)

    async def grant(self, holder_id: str) -> Grant | None:
        """Proof that *holder_id* holds the lease, with its term; None where it does not, or its time is over."""
        row = await self._row()
        if row is None or row[0] != holder_id or self._left(row, self._time()) <= 0:
            return None
        return Grant(self.name, holder_id, row[1])

    async def release(self, holder_id: str) -> None:
        """Give it up at once; harmless where *holder_id* does not hold it. The term stays."""

        def ask(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE lease SET holder = '', expires = 0, ttl = 0 WHERE name = ? AND holder = ?",
                (self.name, holder_id),
            )

        await (await self._opened()).write(ask)

    async def state(self) -> LeaseState | None:
        """Who holds it (nobody: an empty name), or None where nobody ever did."""
        row = await self._row()
        if row is None:
            return None
        return LeaseState(row[0], row[1], self._left(row, self._time()))

    async def close(self) -> None:
        """Close the file where the lease has opened it itself; a store is left open. Idempotent."""
        if self._own is not None:
            await self._own.close()

    async def _row(self) -> tuple[str, int, float, float, str] | None:
        def ask(connection: sqlite3.Connection) -> tuple[str, int, float, float, str] | None:
            row: tuple[str, int, float, float, str] | None = connection.execute(
                "SELECT holder, term, expires, ttl, boot FROM lease WHERE name = ?", (self.name,)
            ).fetchone()
            return row

        return await (await self._opened()).read(ask)

    async def _opened(self) -> SqliteFile:
        if self._own is not None:
            await self._own.open(create=True)
        return self._file

    def _left(self, row: tuple[str, int, float, float, str], time: float) -> float:
        return seconds_left(row[2], row[3], row[4], time=time, boot=self._boot)


def seconds_left(expires: float, ttl: float, lease_boot: str, *, time: float, boot: str) -> float:
    """Seconds that a lease still lasts; 0 or less: it is free.

    One of another boot is free, and so is one that would last longer than was ever asked for: its clock was another.
    """
    left = expires - time
    return 0.0 if lease_boot != boot or left > ttl else left
