"""Documents, one at a time: the interface that other programs bring along, in memory, and what such stores share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from leveret.core.errors import ConfigError, NotFound, StoreRefused
from leveret.stores.memory.data import MemoryData
from leveret.stores.memory.lease import MemoryRetryLease

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from leveret.ports import Clock, Lease


class Documents(ABC):
    """How documents are named, written and asked for, whatever they lie in.

    Args:
        collection_name: which documents; stores of one name on one place share them.
        doc_id_field: the field that holds a document's id.

    Raises:
        ConfigError: one of them is empty, or no text.
    """

    def __init__(self, *, collection_name: str, doc_id_field: str) -> None:
        for name, value in (("collection_name", collection_name), ("doc_id_field", doc_id_field)):
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name}={value!r}: expected text of at least one character")
        self._collection = collection_name
        self._id_field = doc_id_field

    def get_document_type(self) -> str:
        return self._collection

    def get_doc_id_field(self) -> str:
        return self._id_field

    async def query(
        self, params: Mapping[str, Any], *, sort_by: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        check_params(params)
        if sort_by is not None:
            for doc in in_order([doc async for doc in self._found(params)], sort_by):
                yield doc
            return
        async for doc in self._found(params):
            yield doc

    @abstractmethod
    def _found(self, params: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Documents whose fields equal *params*, in the order in which they were inserted."""

    def written(self, doc: Mapping[str, Any]) -> tuple[str, str]:
        """The id and the JSON text of a document that is to be stored.

        Raises:
            StoreRefused: it has no id, or holds what JSON cannot carry.
        """
        doc_id = doc.get(self._id_field)
        if not isinstance(doc_id, str) or not doc_id:
            raise StoreRefused(
                f"a document of {self._collection} has {self._id_field}={doc_id!r}: expected text"
            )
        try:
            return doc_id, json.dumps(doc, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreRefused(
                f"document {doc_id!r} of {self._collection} cannot be written as JSON: {error}"
            ) from error

    def updated(self, doc_id: str, text: str, updates: Mapping[str, Any]) -> str:
        """The JSON text of a document after *updates*.

        Raises:
            StoreRefused: they would change its id, or hold what JSON cannot carry.
        """
        doc = {**json.loads(text), **updates}
        if doc.get(self._id_field) != doc_id:
            raise StoreRefused(
                f"update of document {doc_id!r} would change its id, {self._id_field}. Insert it under the new one"
            )
        return self.written(doc)[1]

    def there_already(self, doc_id: str) -> StoreRefused:
        """The error for an insert that would replace a document unasked."""
        return StoreRefused(
            f"there is a document {doc_id!r} in {self._collection} already. To replace it: overwrite_existing=True"
        )

    def not_there(self, doc_id: str) -> NotFound:
        """The error for a document that is not there."""
        return NotFound(f"there is no document {doc_id!r} in {self._collection}")


def check_params(params: Mapping[str, Any]) -> None:
    """Make sure that a query asks for equal fields and nothing else.

    Raises:
        StoreRefused: it has an operator, which here would quietly match nothing.
    """
    for field, value in params.items():
        if field.startswith("$") or (isinstance(value, dict) and any(name.startswith("$") for name in value)):
            raise StoreRefused(f"query {field!r}: {value!r}: expected fields and the values that they equal")


def matches(doc: Mapping[str, Any], params: Mapping[str, Any] | None) -> bool:
    """Whether a document's fields equal *params*; a missing field equals None."""
    return params is None or all(doc.get(field) == value for field, value in params.items())


def in_order(docs: Iterable[dict[str, Any]], sort_by: str) -> list[dict[str, Any]]:
    """Documents sorted by a field, those without it first.

    Raises:
        StoreRefused: its values cannot be compared with each other.
    """
    try:
        return sorted(docs, key=lambda doc: (sort_by in doc, doc.get(sort_by, 0)))
    except TypeError as error:
        raise StoreRefused(f"sort_by={sort_by!r}: its values cannot be compared: {error}") from error


class TextDocuments(Documents):
    """Documents that lie as JSON text."""

    async def exists(self, doc_id: str) -> bool:
        return await self._text(doc_id) is not None

    async def get_document(self, doc_id: str) -> dict[str, Any]:
        text = await self._text(doc_id)
        if text is None:
            raise self.not_there(doc_id)
        doc: dict[str, Any] = json.loads(text)
        return doc

    async def _found(self, params: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        async for text in self._texts():
            doc = json.loads(text)
            if matches(doc, params):
                yield doc

    @abstractmethod
    async def _text(self, doc_id: str) -> str | None:
        """The document of that id, None where it is not there."""

    @abstractmethod
    def _texts(self) -> AsyncIterator[str]:
        """All documents, in the order in which they were inserted."""


class MemoryDocumentStore(TextDocuments):
    """Documents in this process, gone with it.

    They are kept as JSON, so that a document that was read can be changed without changing what is stored.

    Args:
        collection_name: what it holds, for people.
        doc_id_field: the field that holds a document's id.
        clock: tells its leases the time; None: the clock that runs from boot.

    Example:
        store = MemoryDocumentStore(collection_name="retries", doc_id_field="retry_key")
        await store.insert({"retry_key": "a", "fire_at": 5.0})  # 'a'
        [doc["fire_at"] async for doc in store.query({})]  # [5.0]
    """

    def __init__(
        self, *, collection_name: str, doc_id_field: str = "doc_id", clock: Clock | None = None
    ) -> None:
        super().__init__(collection_name=collection_name, doc_id_field=doc_id_field)
        self._clock = clock
        self._lying: dict[str, str] = {}
        self._leases = MemoryData()

    def __repr__(self) -> str:
        return f"<MemoryDocumentStore {self._collection}: {len(self._lying)} documents>"

    async def insert(self, doc: Mapping[str, Any], overwrite_existing: bool = False) -> str:
        doc_id, text = self.written(doc)
        if not overwrite_existing and doc_id in self._lying:
            raise self.there_already(doc_id)
        self._lying[doc_id] = text
        return doc_id

    async def upsert_many(self, docs: Sequence[Mapping[str, Any]]) -> list[str]:
        # All are written down before the first is stored: all of them, or none.
        texts = [self.written(doc) for doc in docs]
        self._lying.update(texts)
        return [doc_id for doc_id, _ in texts]

    async def update(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        text = self._lying.get(doc_id)
        if text is None:
            raise self.not_there(doc_id)
        self._lying[doc_id] = self.updated(doc_id, text, updates)

    async def delete(self, doc_id: str, *, expected: Mapping[str, Any] | None = None) -> bool:
        text = self._lying.get(doc_id)
        if text is None or not matches(json.loads(text), expected):
            return False
        del self._lying[doc_id]
        return True

    def lease(self, name: str) -> Lease:
        """The lease of that name among all who use this store."""
        return MemoryRetryLease(clock=self._clock, name=name, data=self._leases)

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close; what it holds stays."""

    async def _text(self, doc_id: str) -> str | None:
        return self._lying.get(doc_id)

    async def _texts(self) -> AsyncIterator[str]:
        # Of this moment: whoever reads may insert and delete between two documents.
        for text in list(self._lying.values()):
            yield text
