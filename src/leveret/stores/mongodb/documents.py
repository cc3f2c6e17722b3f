"""Documents, one at a time, in a collection of MongoDB: beside those that other programs wrote there."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.core.errors import StoreRefused
from leveret.core.redaction import redact
from leveret.stores.documents import Documents, matches
from leveret.stores.mongodb.alone import Alone
from leveret.stores.mongodb.driver import (
    DURABLE,
    PRIMARY,
    DuplicateKeyError,
    PyMongoError,
    errors,
    to_its_end,
    translated,
)
from leveret.stores.mongodb.fields import time_of
from leveret.stores.mongodb.lease import MongoRetryLease, is_ferretdb
from leveret.stores.mongodb.server import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence

    from leveret.ports import Lease
    from leveret.stores.mongodb.driver import Client, Document

T = TypeVar("T")

#: The field that holds the whole document as JSON text, where MongoDB cannot hold it field by field.
AS_JSON = "leveret_json"
#: What an id begins with that lies in another form than it is: MongoDB's texts hold no lone surrogates.
_ANOTHER_FORM = "leveret:"
#: MongoDB takes documents of a hundred levels; below that, JSON text does it.
_DEEPEST = 50
#: How often a write begins anew because somebody else wrote the same document.
_TRIES = 10
#: Seconds after which the lock of a collection was left behind by a process that is gone; a call takes milliseconds.
_LOCK_STALE = 5.0


class MongoDBDocumentStore(Documents):
    """Documents in a collection of MongoDB. What a call has written is in the journals of a majority.

    They lie there field by field, as other programs write them: an existing collection is taken as it is. What MongoDB
    cannot hold so (an empty key, one with `.` or `$`, a whole number beyond 64 bits) lies as JSON text in the field
    `leveret_json`.

    Args:
        client: a connected one; it stays the caller's.
        database_name: where the collection lies.
        collection_name: which documents.
        doc_id_field: the field that holds a document's id.

    Example:
        store = MongoDBDocumentStore(
            client, database_name="shop", collection_name="retries", doc_id_field="retry_key"
        )
        await store.insert({"retry_key": "a", "fire_at": 5.0})  # 'a'
    """

    def __init__(
        self, client: Client, *, database_name: str, collection_name: str, doc_id_field: str = "doc_id"
    ) -> None:
        super().__init__(collection_name=collection_name, doc_id_field=doc_id_field)
        self._client = client
        self._database_name = database_name
        self._docs = client[database_name][collection_name].with_options(
            write_concern=DURABLE, read_preference=PRIMARY
        )
        self._own_client = False
        self._display = f"mongodb, database {database_name}"
        self._indexed = False
        self._atomic: bool | None = None
        self._alone: Alone | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    @classmethod
    def at(cls, url: str, *, collection_name: str, doc_id_field: str = "doc_id") -> MongoDBDocumentStore:
        """One with a client of its own, which `close` closes; in the database that the URL names, else `leveret`.

        Raises:
            ConfigError: pymongo cannot read the URL.
        """
        client, database_name = connected(url)
        store = cls(
            client, database_name=database_name, collection_name=collection_name, doc_id_field=doc_id_field
        )
        store._own_client = True
        store._display = redact(url)
        return store

    def __repr__(self) -> str:
        return f"<MongoDBDocumentStore {self._collection} in {self._display}>"

    async def insert(self, doc: Mapping[str, Any], overwrite_existing: bool = False) -> str:
        doc_id, text = self.written(doc)
        await self._asked(self._stored([(doc_id, text)], overwrite=overwrite_existing))
        return doc_id

    async def upsert_many(self, docs: Sequence[Mapping[str, Any]]) -> list[str]:
        # All are written down before the first is stored: one that is refused keeps the others out too.
        texts = [self.written(doc) for doc in docs]
        await self._asked(self._stored(texts, overwrite=True))
        return [doc_id for doc_id, _ in texts]

    async def update(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        await self._asked(self._update(doc_id, updates))

    async def exists(self, doc_id: str) -> bool:
        return await self.holds(doc_id, {})

    async def holds(self, doc_id: str, fields: Mapping[str, Any]) -> bool:
        """Whether the document of that id has these fields, texts and numbers; cheaper than reading it.

        False where that cannot be told so: the document lies as JSON text, say.
        """
        if not all(_is_exact(name, value) for name, value in fields.items()):
            return False
        wanted = dict(fields) | self._named(doc_id)
        return await self._asked(self._docs.find_one(wanted, ["_id"])) is not None

    async def get_document(self, doc_id: str) -> dict[str, Any]:
        row = await self._asked(self._row(doc_id))
        if row is None:
            raise self.not_there(doc_id)
        return _plain(row)

    async def delete(self, doc_id: str, *, expected: Mapping[str, Any] | None = None) -> bool:
        return await self._asked(self._delete(doc_id, expected))

    def lease(self, name: str) -> Lease:
        """The lease of that name among all who use this collection; of `jobs/retry_worker`, what follows the `/`."""
        return _Lease(self._client, self._database_name, self._collection, name)

    async def open(self) -> None:
        """Make sure that documents are found by their ids without looking through all of them. Idempotent.

        Raises:
            StoreUnavailable: MongoDB does not answer, or does not let us in.
        """
        if self._indexed:
            return
        try:
            await self._docs.create_index([(self._id_field, 1)])
        except PyMongoError as error:
            # Another program's index on that field, perhaps a unique one, is as good; its code says that it is there.
            if getattr(error, "code", None) not in {85, 86}:
                raise translated(error, self._display) from error
        self._indexed = True

    async def close(self) -> None:
        """Close the client where it is the store's own, once its calls have ended. Idempotent."""
        if self._calls:
            await asyncio.wait(self._calls)
        if self._own_client:
            await self._client.close()

    async def _asked(self, call: Coroutine[Any, Any, T]) -> T:
        """What a call gives, which runs to its end whoever is cancelled meanwhile."""

        async def asked() -> T:
            with errors(self._display):
                return await call

        return await to_its_end(asked(), self._calls)

    async def _stored(self, texts: Sequence[tuple[str, str]], *, overwrite: bool) -> None:
        await self.open()
        for doc_id, text in texts:
            async with self._one_at_a_time():
                await self._insert(doc_id, text, overwrite=overwrite)

    async def _insert(self, doc_id: str, text: str, *, overwrite: bool) -> None:
        row = self._as_row(doc_id, text)
        for _ in range(_TRIES):
            if overwrite:
                if (await self._docs.replace_one(self._named(doc_id), row)).matched_count:
                    return
            elif await self._docs.find_one(self._named(doc_id), ["_id"]) is not None:
                raise self.there_already(doc_id)
            try:
                await self._docs.insert_one({"_id": self._named(doc_id)[self._id_field], **row})
            except DuplicateKeyError:
                # Somebody inserted it since.
                continue
            return
        raise StoreRefused(
            f"others keep writing document {doc_id!r} of {self._collection}: nothing was stored"
        )

    async def _update(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        async with self._one_at_a_time():
            await self._updated(doc_id, updates)

    async def _updated(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        for _ in range(_TRIES):
            row = await self._row(doc_id)
            if row is None:
                raise self.not_there(doc_id)
            text = self.updated(doc_id, json.dumps(_plain(row)), updates)
            new = self._as_row(doc_id, text)
            if AS_JSON in row or AS_JSON in new:
                seen = {"_id": row["_id"], AS_JSON: row.get(AS_JSON)}
                written = await self._docs.replace_one(seen, new)
            else:
                # Field by field: what somebody else writes into other fields stays.
                change = {"$set": {name: new[name] for name in updates}}
                written = await self._docs.update_one({"_id": row["_id"]}, change)
            if written.matched_count:
                return
        raise StoreRefused(
            f"others keep writing document {doc_id!r} of {self._collection}: nothing was changed"
        )

    async def _delete(self, doc_id: str, expected: Mapping[str, Any] | None) -> bool:
        async with self._one_at_a_time():
            return await self._deleted(doc_id, expected)

    async def _deleted(self, doc_id: str, expected: Mapping[str, Any] | None) -> bool:
        for _ in range(_TRIES):
            row = await self._row(doc_id)
            if row is None or not matches(_plain(row), expected):
                return False
            names = [AS_JSON] if AS_JSON in row else list(expected or ())
            # A field that is missing equals None, here and there.
            seen = {name: row.get(name) for name in names}
            if (await self._docs.delete_one({"_id": row["_id"], **seen})).deleted_count:
                return True
        return False

    @asynccontextmanager
    async def _one_at_a_time(self) -> AsyncIterator[None]:
        """Alone among leveret's processes, where the server would remove what another one has just replaced."""
        if self._atomic is None:
            self._atomic = not is_ferretdb(await self._client.admin.command("buildInfo"))
        if self._atomic:
            yield
            return
        if self._alone is None:
            lying = self._client[self._database_name][f"{self._collection}_lease"].with_options(
                write_concern=DURABLE, read_preference=PRIMARY
            )
            self._alone = Alone(lying, "documents/lock", now=self._server_milliseconds, stale=_LOCK_STALE)
        async with self._alone():
            yield

    async def _server_milliseconds(self) -> int:
        return time_of((await self._client.admin.command("hello"))["localTime"])

    async def _row(self, doc_id: str) -> Document | None:
        return await self._docs.find_one(self._named(doc_id))

    async def _found(self, params: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        asked = {name: value for name, value in params.items() if _is_exact(name, value)}
        wanted = {"$or": [asked, {AS_JSON: {"$gte": ""}}]} if asked else {}
        rows = self._docs.find(wanted)
        while True:
            with errors(self._display):
                row = await anext(rows, None)
            if row is None:
                return
            doc = _plain(row)
            if matches(doc, params):
                yield doc

    def _named(self, doc_id: str) -> Document:
        if doc_id.startswith(_ANOTHER_FORM) or not _is_text(doc_id):
            return {self._id_field: _ANOTHER_FORM + json.dumps(doc_id)}
        return {self._id_field: doc_id}

    def _as_row(self, doc_id: str, text: str) -> Document:
        doc: Document = json.loads(text)
        named = self._named(doc_id)
        if named[self._id_field] == doc_id and AS_JSON not in doc and "_id" not in doc and _fits(doc, 0):
            return doc
        return {**named, AS_JSON: text}


class _Lease(MongoRetryLease):
    """A lease beside a collection, under its own name; `retry_worker` is the one that other programs know."""

    def __init__(self, client: Client, database_name: str, collection_name: str, name: str) -> None:
        super().__init__(client, database_name=database_name, collection_name=collection_name)
        self.lease_id = name.rpartition("/")[2] or name


def _plain(row: Document) -> dict[str, Any]:
    """The document of a row."""
    if AS_JSON in row:
        doc: dict[str, Any] = json.loads(row[AS_JSON])
        return doc
    return {name: value for name, value in row.items() if name != "_id"}


def _fits(value: object, depth: int) -> bool:
    """Whether MongoDB, and whatever speaks its protocol, gives this back as it is."""
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict):
        return all(
            name
            and "." not in name
            and not name.startswith("$")
            and _is_text(name)
            and _fits(each, depth + 1)
            for name, each in value.items()
        )
    if isinstance(value, list):
        return all(_fits(each, depth + 1) for each in value)
    if isinstance(value, str):
        return _is_text(value)
    if isinstance(value, float):
        return math.isfinite(value)
    # True and None, and whole numbers of 64 bits.
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _is_exact(name: str, value: object) -> bool:
    """Whether a server's idea of equal is Python's: for texts, and for numbers that are no booleans."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return False
    return _fits({name: value}, 0)


def _is_text(text: str) -> bool:
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
