"""SqliteStore: retries, dead letters, acts, start counts and leases in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.ports import LeaseState
from leveret.stores.sqlite import schema
from leveret.stores.sqlite.acts import SqliteActs
from leveret.stores.sqlite.columns import text_of
from leveret.stores.sqlite.file import BUSY_TIMEOUT, SqliteFile
from leveret.stores.sqlite.lease import SqliteRetryLease, seconds_left, this_boot
from leveret.stores.sqlite.letters import SqliteLetters
from leveret.stores.sqlite.namespaces import namespaces_of
from leveret.stores.sqlite.retries import SqliteRetries

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Mapping

    from leveret.ports import Clock, Lease


class SqliteStore(SqliteRetries, SqliteLetters, SqliteActs):
    """The embedded store: one SQLite file, which worker, dashboard and shell may use at once, on one host.

    What a call has written is on disk when it returns (write-ahead log, full sync). Waiting for a locked file is
    bounded and ends in `StoreUnavailable`, as do a full disk, a file that may only be read, and one that was removed
    or replaced while it was open; the store works again by itself when the cause is gone. Data that SQLite cannot
    hold is `StoreRefused`.

    Args:
        path: the file. A relative one is taken from the folder of this moment.
        clock: tells the time.
        busy_timeout: seconds to wait for a file that somebody else has locked.

    Raises:
        ConfigError: the path is empty or `:memory:`.

    Example:
        store = SqliteStore("leveret.db", clock=clock)
        await store.open()
        await store.put([entry])  # [Placed(written=True, due_in=30.0)]
        await store.close()
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Clock, busy_timeout: float = BUSY_TIMEOUT
    ) -> None:
        self.file = SqliteFile(path, busy_timeout=busy_timeout)
        self.clock = clock

    def __repr__(self) -> str:
        return f"<SqliteStore {self.display}>"

    @property
    def display(self) -> str:
        """Where it is: `sqlite:///` and the path."""
        return f"sqlite:///{self.file.path}"

    @property
    def shared(self) -> bool:
        """False: one host at a time."""
        return False

    @property
    def lasting(self) -> bool:
        """True: it is a file."""
        return True

    async def open(self, *, create: bool = True) -> None:
        """Open it, migrate it forward, and create it where asked to.

        Raises:
            NotFound: not there, and *create* is False.
            StoreUnavailable: it cannot be opened.
            StoreRefused: it is another program's database, or one of a newer leveret.
        """
        await self.file.open(create=create)

    async def close(self) -> None:
        """Serve what was asked for, then close. Idempotent."""
        await self.file.close()

    def lease(self, name: str) -> Lease:
        """The lease of that name."""
        return SqliteRetryLease(self, name=name)

    async def leases(self, namespace: str | None) -> Mapping[str, LeaseState]:
        """Every lease of the namespace (None: all), by name."""

        def ask(connection: sqlite3.Connection) -> dict[str, LeaseState]:
            time, boot = self.clock.monotonic(), this_boot()
            found = connection.execute(
                "SELECT name, holder, term, expires, ttl, boot FROM lease ORDER BY name"
            )
            return {
                name: LeaseState(holder, term, seconds_left(expires, ttl, its_boot, time=time, boot=boot))
                for name, holder, term, expires, ttl, its_boot in found
                if namespace is None or name.startswith(f"{namespace}/")
            }

        return await self.file.read(ask)

    async def namespaces(self) -> list[str]:
        """Every namespace that it holds something of, sorted."""

        def ask(connection: sqlite3.Connection) -> list[str]:
            found = {
                namespace
                for table in ("retry", "dead_letter", "act", "start_count")
                for namespace in namespaces_of(connection, table)
            }
            leases = connection.execute("SELECT name FROM lease WHERE instr(name, '/') > 0")
            return sorted(found | {text_of(name).partition("/")[0] for (name,) in leases})

        return await self.file.read(ask)

    async def document_collections(self) -> list[str]:
        """Every collection of documents in the file, sorted."""

        def ask(connection: sqlite3.Connection) -> list[str]:
            found = connection.execute("SELECT DISTINCT collection FROM document")
            return sorted(text_of(name) for (name,) in found)

        return await self.file.read(ask)

    async def check(self) -> Mapping[str, Any]:
        """Schema version, integrity ("ok", or what SQLite complains of), size in bytes, and what lies in it."""

        def ask(connection: sqlite3.Connection) -> dict[str, Any]:
            complaints = [words for (words,) in connection.execute("PRAGMA quick_check(10)")]
            return {
                "schema": schema.version(connection),
                "newest_schema": schema.newest(),
                "integrity": "; ".join(complaints),
                "bytes": self.file.path.stat().st_size,
                "waiting": connection.execute("SELECT count(*) FROM retry").fetchone()[0],
                "dead": connection.execute(
                    "SELECT count(*) FROM dead_letter WHERE state = 'dead'"
                ).fetchone()[0],
            }

        return await self.file.read(ask)
