"""Documents, one at a time, in a schema of a PostgreSQL database."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from leveret.stores.documents import matches
from leveret.stores.postgres.columns import exact, portions
from leveret.stores.postgres.connections import Connections
from leveret.stores.postgres.lease import PostgresRetryLease
from leveret.stores.sql.documents import PAGE, TableDocuments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.ports import Lease
    from leveret.stores.postgres.connections import Connection

_INSERT: Final = (
    "INSERT INTO document (collection, id, body) SELECT %s, * FROM unnest(%s::text[], %b::text[])"
)
_REPLACE: Final = " ON CONFLICT (collection, id) DO UPDATE SET body = excluded.body"
_NAMED: Final = "WHERE collection = %s AND id = %s"
_PAGE: Final = (
    "SELECT number, body FROM document WHERE collection = %s AND number > %s ORDER BY number LIMIT %s"
)


class PostgresDocumentStore(TableDocuments):
    """Documents in a PostgreSQL database, connected to (and its schema created) at first use.

    What a call has written is committed when it returns.

    Args:
        url: as of a `PostgresStore`; both may share a schema.
        collection_name: which documents of that schema.
        doc_id_field: the field that holds a document's id.

    Raises:
        ConfigError: the URL cannot be read, or its schema is no name for one.

    Example:
        store = PostgresDocumentStore(
            "postgresql://shop:secret@db-1/shop", collection_name="retries", doc_id_field="retry_key"
        )
        await store.insert({"retry_key": "a", "fire_at": 5.0})  # 'a'
        await store.close()
    """

    def __init__(self, url: str, *, collection_name: str, doc_id_field: str = "doc_id") -> None:
        super().__init__(collection_name=collection_name, doc_id_field=doc_id_field)
        self.connections = Connections(url)

    def __repr__(self) -> str:
        return f"<PostgresDocumentStore {self._collection} in {self.connections.display}>"

    async def insert(self, doc: Mapping[str, Any], overwrite_existing: bool = False) -> str:
        doc_id, text = self.written(doc)
        if not await self._put(
            [(doc_id, text)], _REPLACE if overwrite_existing else " ON CONFLICT DO NOTHING"
        ):
            raise self.there_already(doc_id)
        return doc_id

    async def upsert_many(self, docs: Sequence[Mapping[str, Any]]) -> list[str]:
        texts = [self.written(doc) for doc in docs]
        # A statement writes a row once: of several with one id, the last one stays.
        await self._put(list(dict(texts).items()), _REPLACE)
        return [doc_id for doc_id, _ in texts]

    async def update(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        async def ask(connection: Connection) -> None:
            async with connection.transaction():
                text = await self._locked(connection, doc_id)
                if text is None:
                    raise self.not_there(doc_id)
                await connection.execute(
                    f"UPDATE document SET body = %b {_NAMED}",
                    (self.updated(doc_id, text, updates), *self._named(doc_id)),
                )

        await (await self._opened()).run(ask)

    async def delete(self, doc_id: str, *, expected: Mapping[str, Any] | None = None) -> bool:
        async def ask(connection: Connection) -> bool:
            async with connection.transaction():
                text = await self._locked(connection, doc_id)
                if text is None or not matches(json.loads(text), expected):
                    return False
                await connection.execute(f"DELETE FROM document {_NAMED}", self._named(doc_id))
                return True

        return await (await self._opened()).run(ask)

    def lease(self, name: str) -> Lease:
        """The lease of that name among all who use this schema; the store has to be open."""
        return PostgresRetryLease(self, name=name)

    async def open(self) -> None:
        """Connect now, and bring the schema forward; created where it is missing. Idempotent.

        Raises:
            StoreUnavailable, StoreRefused: the server cannot be used; the message says what to do.
        """
        await self._opened()

    async def close(self) -> None:
        """Let calls come to their end, then disconnect. Idempotent; the next call connects again."""
        await self.connections.close()

    async def _put(self, texts: Sequence[tuple[str, str]], otherwise: str) -> int:
        """Write documents; *otherwise*: what happens to those that are there. Returns how many were written."""
        rows = portions(((exact(doc_id), text) for doc_id, text in texts), 1)
        # Found to be too long before the first is written: all of them, or none.
        statements = [(exact(self._collection), *map(list, zip(*portion, strict=True))) for portion in rows]

        async def ask(connection: Connection) -> int:
            async with connection.transaction():
                found = [await connection.execute(_INSERT + otherwise, values) for values in statements]
                return sum(each.rowcount for each in found)

        return await (await self._opened()).run(ask)

    async def _text(self, doc_id: str) -> str | None:
        found = await (await self._opened()).fetch(f"SELECT body FROM document {_NAMED}", self._named(doc_id))
        return found[0][0] if found else None

    async def _page(self, after: int) -> list[tuple[Any, ...]]:
        return await (await self._opened()).fetch(_PAGE, (exact(self._collection), after, PAGE))

    async def _locked(self, connection: Connection, doc_id: str) -> str | None:
        found = await connection.execute(
            f"SELECT body FROM document {_NAMED} FOR UPDATE", self._named(doc_id), binary=True
        )
        row = await found.fetchone()
        return None if row is None else row[0]

    def _named(self, doc_id: str) -> tuple[str, str]:
        return exact(self._collection), exact(doc_id)

    async def _opened(self) -> Connections:
        await self.connections.open(create=True)
        return self.connections
