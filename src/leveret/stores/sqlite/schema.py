"""The schema of a SQLite store: is this file ours, how old is it, and the way forward."""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import TYPE_CHECKING

from leveret.core.errors import NotFound, StoreRefused
from leveret.stores.errors import newer_schema
from leveret.stores.sql.scripts import scripts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Marks a file as leveret's: "lvrt" in ASCII. SQLite keeps it in the file's header.
APPLICATION_ID = 0x6C767274


@cache
def migrations() -> tuple[tuple[str, ...], ...]:
    """The statements of each migration, the first one first."""
    return tuple(tuple(_statements(script)) for script in scripts("sqlite"))


def newest() -> int:
    """The schema version that this leveret writes."""
    return len(migrations())


def version(connection: sqlite3.Connection) -> int:
    """The schema version of the file, 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def recognise(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Make sure that the file is a store of ours, or an empty one that may become it. Changes nothing.

    Raises:
        NotFound: it is empty, and *create* is False.
        StoreRefused: it is another program's, or of a newer leveret.
    """
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    found = version(connection)
    if mark == APPLICATION_ID:
        if found > newest():
            raise newer_schema(path, found, newest())
        return
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 5")
    ]
    if mark != 0 or found != 0 or tables:
        holds = f" (tables: {', '.join(tables)})" if tables else ""
        raise StoreRefused(
            f"{path} is a SQLite database of another program{holds}, not a leveret store. Name another file"
        )
    if not create:
        raise NotFound(f"there is no store at {path}: the file is empty. `leveret run` creates it")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file forward to the newest schema, each migration in one transaction; nothing where it is there."""
    while version(connection) < newest():
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Looked at again under the lock: another process may have migrated in the meantime.
            step = version(connection)
            if step < newest():
                for statement in migrations()[step]:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {step + 1}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
