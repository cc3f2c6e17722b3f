"""Which namespaces a table holds something of, found by jumping from one to the next along its index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.stores.sqlite.columns import exact, text_of

if TYPE_CHECKING:
    import sqlite3


def namespaces_of(connection: sqlite3.Connection, table: str, wanted: str | None = None) -> list[str]:
    """The namespaces of *table*; only *wanted* where one is named, whether it is there or not."""
    if wanted is not None:
        return [wanted]
    found: list[str] = []
    sql = f"SELECT namespace FROM {table}"  # noqa: S608 - a table of ours
    row = connection.execute(f"{sql} ORDER BY namespace LIMIT 1").fetchone()
    while row is not None:
        found.append(text_of(row[0]))
        row = connection.execute(
            f"{sql} WHERE namespace > ? ORDER BY namespace LIMIT 1", (exact(found[-1]),)
        ).fetchone()
    return found
