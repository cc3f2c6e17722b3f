"""The schema of a PostgreSQL store: is it ours, how old is it, and the way forward."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import psycopg

from leveret.core.errors import NotFound, StoreRefused
from leveret.stores.errors import newer_schema
from leveret.stores.sql.scripts import scripts

Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

#: Schemas that other things lie in.
TAKEN: Final = frozenset({"public", "information_schema"})

#: Whoever migrates a leveret schema of a database holds this advisory lock with the schema's hash: "lvrt" in ASCII.
_LOCK: Final = 0x6C767274


def newest() -> int:
    """The schema version that this leveret writes."""
    return len(scripts("postgres"))


async def version(connection: Connection, schema: str, display: str) -> int:
    """The version of what lies in *schema*, 0 where nothing does.

    Raises:
        StoreRefused: what lies there is another program's.
    """
    found = await connection.execute(
        "SELECT relname FROM pg_catalog.pg_class WHERE relkind IN ('r', 'v', 'm', 'p', 'f')"
        " AND relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %s) ORDER BY relname",
        (schema,),
    )
    tables = [name for (name,) in await found.fetchall()]
    if not tables:
        return 0
    if not {"schema_version", "retry", "dead_letter", "lease"} <= set(tables):
        raise StoreRefused(
            f"in {display}, the schema {schema} holds another program's tables ({', '.join(tables[:5])}), no leveret "
            "store. Name another one: ?schema=…"
        )
    row = await (await connection.execute(f'SELECT max(version) FROM "{schema}".schema_version')).fetchone()
    return int(row[0] or 0) if row else 0


async def prepare(connection: Connection, schema: str, display: str, *, create: bool) -> None:
    """Make sure that *schema* is a store of ours and of this release; make it, or bring it forward, where it is not.

    Raises:
        NotFound: there is none, and *create* is False.
        StoreRefused: it is another program's, or of a newer leveret, or the database does not speak UTF-8.
    """
    if await _is_right(connection, schema, display, create=create):
        return
    async with connection.transaction():
        await connection.execute("SELECT set_config('statement_timeout', '0', true)")
        await connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK, schema))
        # Looked at again under the lock: another process may have migrated in the meantime.
        found = await version(connection, schema, display)
        if found == 0:
            there = await connection.execute(
                "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (schema,)
            )
            # Not IF NOT EXISTS: that asks for the right to create schemas also where one is there.
            if await there.fetchone() is None:
                await connection.execute(f'CREATE SCHEMA "{schema}"')
        for step in range(found, newest()):
            await connection.execute(scripts("postgres")[step])
            await connection.execute("DELETE FROM schema_version")
            await connection.execute("INSERT INTO schema_version (version) VALUES (%s)", (step + 1,))


async def _is_right(connection: Connection, schema: str, display: str, *, create: bool) -> bool:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreRefused(
            f"the database {display} is encoded in {encoding}, and leveret needs UTF8: createdb -E UTF8 -T template0 …"
        )
    found = await version(connection, schema, display)
    if found > newest():
        raise newer_schema(display, found, newest())
    if found == 0 and not create:
        raise NotFound(
            f"there is no store at {display}: the database has no leveret schema {schema}. `leveret run` creates it"
        )
    return found == newest()
