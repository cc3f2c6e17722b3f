"""Documents, one at a time, in the SQLite file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.stores.documents import matches
from leveret.stores.sql.documents import PAGE, TableDocuments
from leveret.stores.sqlite.columns import exact
from leveret.stores.sqlite.file import BUSY_TIMEOUT, SqliteFile
from leveret.stores.sqlite.lease import SqliteRetryLease

if TYPE_CHECKING:
    import os
    import sqlite3
    from collections.abc import Mapping, Sequence

    from leveret.ports import Clock, Lease

#: A document that is written anew keeps its place, so that whoever goes through all of them comes to an end.
_PUT = (
    "INSERT INTO document (collection, id, body) VALUES (?, ?, ?)"
    " ON CONFLICT (collection, id) DO UPDATE SET body = excluded.body"
)
_GET = "SELECT body FROM document WHERE collection = ? AND id = ?"


class SqliteDocumentStore(TableDocuments):
    """Documents in a SQLite file, which is opened (and created) at first use. What a call has written is on disk.

    Args:
        path: the file; it may be that of a leveret store.
        collection_name: which documents of that file.
        doc_id_field: the field that holds a document's id.
        clock: tells its leases the time; None: the clock that runs from boot.

    Example:
        store = SqliteDocumentStore("leveret.db", collection_name="retries", doc_id_field="retry_key")
        await store.insert({"retry_key": "a", "fire_at": 5.0})  # 'a'
        await store.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        collection_name: str,
        doc_id_field: str = "doc_id",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(collection_name=collection_name, doc_id_field=doc_id_field)
        self.file = SqliteFile(path, busy_timeout=BUSY_TIMEOUT)
        self.clock = clock

    def __repr__(self) -> str:
        return f"<SqliteDocumentStore {self._collection} in {self.file.path}>"

    async def insert(self, doc: Mapping[str, Any], overwrite_existing: bool = False) -> str:
        doc_id, text = self.written(doc)

        def ask(connection: sqlite3.Connection) -> None:
            if not overwrite_existing and connection.execute(_GET, self._named(doc_id)).fetchone():
                raise self.there_already(doc_id)
            connection.execute(_PUT, (*self._named(doc_id), text))

        await (await self._opened()).write(ask)
        return doc_id

    async def upsert_many(self, docs: Sequence[Mapping[str, Any]]) -> list[str]:
        texts = [self.written(doc) for doc in docs]

        def ask(connection: sqlite3.Connection) -> None:
            connection.executemany(_PUT, [(*self._named(doc_id), text) for doc_id, text in texts])

        await (await self._opened()).write(ask)
        return [doc_id for doc_id, _ in texts]

    async def update(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        def ask(connection: sqlite3.Connection) -> None:
            row = connection.execute(_GET, self._named(doc_id)).fetchone()
            if row is None:
                raise self.not_there(doc_id)
            connection.execute(_PUT, (*self._named(doc_id), self.updated(doc_id, row[0], updates)))

        await (await self._opened()).write(ask)

    async def delete(self, doc_id: str, *, expected: Mapping[str, Any] | None = None) -> bool:
        def ask(connection: sqlite3.Connection) -> bool:
            row = connection.execute(_GET, self._named(doc_id)).fetchone()
            if row is None or not matches(json.loads(row[0]), expected):
                return False
            connection.execute("DELETE FROM document WHERE collection = ? AND id = ?", self._named(doc_id))
            return True

        return await (await self._opened()).write(ask)

    def lease(self, name: str) -> Lease:
        """The lease of that name among all who use this file, which has to be open."""
        return SqliteRetryLease(self, name=name)

    async def open(self) -> None:
        """Open the file now, and create it where it is missing. Idempotent.

        Raises:
            StoreUnavailable, StoreRefused: it cannot be used; the message says what to do.
        """
        await self.file.open(create=True)

    async def close(self) -> None:
        """Close the file. Idempotent; the next call opens it again."""
        await self.file.close()

    async def _page(self, after: int) -> list[tuple[int, str]]:
        def ask(connection: sqlite3.Connection) -> list[tuple[int, str]]:
            return connection.execute(
                "SELECT rowid, body FROM document WHERE collection = ? AND rowid > ? ORDER BY rowid LIMIT ?",
                (exact(self._collection), after, PAGE),
            ).fetchall()

        return await (await self._opened()).read(ask)

    async def _text(self, doc_id: str) -> str | None:
        def ask(connection: sqlite3.Connection) -> str | None:
            row: tuple[str] | None = connection.execute(_GET, self._named(doc_id)).fetchone()
            return None if row is None else row[0]

        return await (await self._opened()).read(ask)

    def _named(self, doc_id: str) -> tuple[str | bytes, str | bytes]:
        return exact(self._collection), exact(doc_id)

    async def _opened(self) -> SqliteFile:
        await self.file.open(create=True)
        return self.file
