"""PostgresStore: retries, dead letters, acts, start counts and leases in a schema of a PostgreSQL database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.stores.postgres import schema
from leveret.stores.postgres.acts import PostgresActs
from leveret.stores.postgres.columns import text_of
from leveret.stores.postgres.connections import PATIENCE, Connections
from leveret.stores.postgres.lease import PostgresRetryLease, state_of
from leveret.stores.postgres.letters import PostgresLetters
from leveret.stores.postgres.namespaces import NAMESPACES_OF
from leveret.stores.postgres.retries import PostgresRetries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports import Lease, LeaseState
    from leveret.stores.postgres.connections import Connection


class PostgresStore(PostgresRetries, PostgresLetters, PostgresActs):
    """The store for several hosts: a schema in a PostgreSQL database, where the server's clock judges what is due.

    What a call has written is committed when it returns. A server that is away, takes no writes, has no connection
    left or does not answer in time is `StoreUnavailable`; the store works again by itself when the cause is gone. Where
    it did not answer, what was asked for may be done or not, and can be asked for again. Data that PostgreSQL cannot
    hold is `StoreRefused`.

    Args:
        url: `postgresql://user:password@host:5432/database?schema=leveret`, with whatever else libpq knows
            (`sslmode=verify-full`, several hosts with commas and `target_session_attrs=read-write`).
        patience: seconds that a call may take.

    Raises:
        ConfigError: the URL cannot be read, or its schema is no name for one.

    Example:
        store = PostgresStore("postgresql://shop:secret@db-1/shop")
        await store.open()
        await store.put([entry])  # [Placed(written=True, due_in=30.0)]
        await store.close()
    """

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        self.connections = Connections(url, patience=patience)

    def __repr__(self) -> str:
        return f"<PostgresStore {self.display}>"

    @property
    def display(self) -> str:
        """Where it is, without password."""
        return self.connections.display

    @property
    def shared(self) -> bool:
        """True: as many hosts as reach the server."""
        return True

    @property
    def lasting(self) -> bool:
        """True: it is on the server's disk."""
        return True

    async def open(self, *, create: bool = True) -> None:
        """Connect, bring the schema forward, and create it where asked to; the database itself must be there.

        Raises:
            NotFound: there is no such schema, and *create* is False.
            StoreUnavailable: the server cannot be reached, or this user has not the rights.
            StoreRefused: the schema is another program's, or of a newer leveret; or the database is not UTF-8.
        """
        await self.connections.open(create=create)

    async def close(self) -> None:
        """Let calls come to their end, then disconnect. Idempotent."""
        await self.connections.close()

    def lease(self, name: str) -> Lease:
        """The lease of that name."""
        return PostgresRetryLease(self, name=name)

    async def leases(self, namespace: str | None) -> Mapping[str, LeaseState]:
        """Every lease of the namespace (None: all), by name."""
        found = await self.connections.fetch(
            "SELECT name, holder, term, expires - epoch_now() FROM lease ORDER BY name"
        )
        return {
            text_of(name): state_of(*state)
            for name, *state in found
            if namespace is None or text_of(name).startswith(f"{namespace}/")
        }

    async def namespaces(self) -> list[str]:
        """Every namespace that it holds something of, sorted."""
        tables = ("retry", "dead_letter", "act", "start_count")
        found = await self.connections.fetch(
            f"WITH RECURSIVE {', '.join(NAMESPACES_OF.format(table=table) for table in tables)} "
            + " UNION ALL ".join(f"SELECT namespace FROM of_{table}" for table in tables)
        )
        leases = await self.connections.fetch("SELECT name FROM lease WHERE strpos(name, '/') > 0")
        return sorted(
            {text_of(name) for (name,) in found} | {text_of(name).partition("/")[0] for (name,) in leases}
        )

    async def document_collections(self) -> list[str]:
        """Every collection of documents in the schema, sorted."""
        found = await self.connections.fetch("SELECT DISTINCT collection FROM document")
        return sorted(text_of(name) for (name,) in found)

    async def check(self) -> Mapping[str, Any]:
        """Schema version, integrity ("ok", or what is wrong), size in bytes, what lies in it, and if we may write."""

        async def ask(connection: Connection) -> dict[str, Any]:
            version = await schema.version(connection, self.connections.schema, self.display)
            invalid = await connection.execute(
                "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid"
                " WHERE relnamespace = %s::regnamespace AND NOT indisvalid",
                (f'"{self.connections.schema}"',),
            )
            complaints = [
                f"the index {name} is not valid: REINDEX it" for (name,) in await invalid.fetchall()
            ]
            found = await connection.execute(
                "SELECT (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class"
                " WHERE relkind = 'r' AND relnamespace = %s::regnamespace),"
                " (SELECT count(*) FROM retry), (SELECT count(*) FROM dead_letter WHERE state = 'dead'),"
                " current_setting('transaction_read_only') = 'off' AND has_table_privilege('retry', 'INSERT')"
                " AND has_table_privilege('retry', 'UPDATE') AND has_table_privilege('retry', 'DELETE')",
                (f'"{self.connections.schema}"',),
            )
            size, waiting, dead, writable = await found.fetchone() or (0, 0, 0, False)
            return {
                "schema": version,
                "newest_schema": schema.newest(),
                "integrity": "; ".join(complaints) or "ok",
                "bytes": size,
                "waiting": waiting,
                "dead": dead,
                "writable": writable,
            }

        return await self.connections.run(ask)
