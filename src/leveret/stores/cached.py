"""CachedDocumentStore: any document store with a cache before it. The store is the truth."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from leveret.core.seconds import seconds
from leveret.ports import DocumentStoreInterface

T = TypeVar("T")

log = logging.getLogger("leveret.store")

#: Seconds for which a cache that failed is left alone: nobody waits for it again and again.
_LEFT_ALONE = 5.0


class DictCache(Protocol):
    """Where documents are kept for a while. It may fail, and it may forget."""

    async def get(self, key: str) -> dict[str, Any] | None:
        """What lies under *key*, None where nothing does."""

    async def set(self, key: str, value: Mapping[str, Any], *, ttl_seconds: float) -> None:
        """Keep *value* under *key* for so many seconds."""

    async def delete(self, key: str) -> None:
        """Forget what lies under *key*."""


@runtime_checkable
class _Holding(Protocol):
    """A store that can say, without reading a document, whether it still is the same."""

    async def holds(self, doc_id: str, fields: Mapping[str, Any]) -> bool: ...


@runtime_checkable
class _Closing(Protocol):
    async def close(self) -> None: ...


class CachedDocumentStore:
    """A document store with a cache before it: a document that was written or read lately is not read again.

    What the cache gives is used only where the store says that the document still has the same texts and numbers: a
    later generation, written by whomever, is never missed. A store that cannot say that without reading is read. A
    cache that fails is a warning and nothing else.

    Args:
        store: the truth.
        cache: such as a `RedisDictCache`.
        cache_ttl_seconds: how long a document is kept in the cache.

    Raises:
        ValueError: `cache_ttl_seconds` is no number of seconds above 0.

    Example:
        store = CachedDocumentStore(documents, RedisDictCache(redis), cache_ttl_seconds=600)
    """

    def __init__(
        self, store: DocumentStoreInterface, cache: DictCache, *, cache_ttl_seconds: float = 3600
    ) -> None:
        self._ttl = seconds(cache_ttl_seconds, "cache_ttl_seconds")
        if self._ttl == 0:
            raise ValueError(f"cache_ttl_seconds={cache_ttl_seconds!r}: expected more than 0 seconds")
        #: The store behind the cache: its leases are this one's.
        self.wrapped = store
        self._cache = cache
        self._alone_until = float("-inf")
        self._failing = False

    def __repr__(self) -> str:
        return f"<CachedDocumentStore of {self.wrapped!r}>"

    async def insert(self, doc: Mapping[str, Any], overwrite_existing: bool = False) -> str:
        doc_id = await self.wrapped.insert(doc, overwrite_existing)
        await self._keep(doc_id, doc)
        return doc_id

    async def upsert_many(self, docs: Sequence[Mapping[str, Any]]) -> Sequence[str | None]:
        ids = await self.wrapped.upsert_many(docs)
        for doc_id, doc in zip(ids, docs, strict=True):
            if doc_id is not None:
                await self._keep(doc_id, doc)
        return ids

    async def update(self, doc_id: str, updates: Mapping[str, Any]) -> None:
        await self.wrapped.update(doc_id, updates)
        await self._forget(doc_id)

    async def exists(self, doc_id: str) -> bool:
        return await self.wrapped.exists(doc_id)

    async def get_document(self, doc_id: str) -> dict[str, Any]:
        store = self.wrapped
        if isinstance(store, _Holding):
            known = await self._asked(self._cache.get(self._key(doc_id)))
            if known is not None and await store.holds(doc_id, _stamp(known)):
                return known
        doc = await store.get_document(doc_id)
        await self._keep(doc_id, doc)
        return doc

    async def query(
        self, params: Mapping[str, Any], *, sort_by: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        async for doc in self.wrapped.query(params, sort_by=sort_by):
            yield doc

    async def delete(self, doc_id: str, *, expected: Mapping[str, Any] | None = None) -> bool:
        deleted = await self.wrapped.delete(doc_id, expected=expected)
        await self._forget(doc_id)
        return deleted

    def get_document_type(self) -> str:
        return self.wrapped.get_document_type()

    def get_doc_id_field(self) -> str:
        return self.wrapped.get_doc_id_field()

    async def close(self) -> None:
        """Close cache and store, as far as they can be closed. Idempotent."""
        if isinstance(self._cache, _Closing):
            await self._asked(self._cache.close())
        if isinstance(self.wrapped, _Closing):
            await self.wrapped.close()

    async def _keep(self, doc_id: str, doc: Mapping[str, Any]) -> None:
        await self._asked(self._cache.set(self._key(doc_id), doc, ttl_seconds=self._ttl))

    async def _forget(self, doc_id: str) -> None:
        await self._asked(self._cache.delete(self._key(doc_id)))

    def _key(self, doc_id: str) -> str:
        return f"{self.wrapped.get_document_type()}:{doc_id}"

    async def _asked(self, question: Awaitable[T]) -> T | None:
        """The cache's answer, None where it fails, or did a moment ago."""
        now = asyncio.get_running_loop().time()
        if now < self._alone_until:
            if asyncio.iscoroutine(question):
                question.close()
            return None
        try:
            answer = await question
        except Exception as error:  # noqa: BLE001 - a cache of any program, with errors of its own
            self._alone_until = now + _LEFT_ALONE
            if not self._failing:
                log.warning(
                    "the cache of %s does not work (%s: %s); everything is read from the store instead",
                    self.wrapped.get_document_type(), type(error).__name__, error, extra={"action": "cache"},
                )  # fmt: skip
            self._failing = True
            return None
        if self._failing:
            self._failing = False
            log.info(
                "the cache of %s works again", self.wrapped.get_document_type(), extra={"action": "cache"}
            )
        return answer


def _stamp(doc: Mapping[str, Any]) -> dict[str, Any]:
    """What of a document tells one writing of it from another: its texts and numbers."""
    return {
        name: value
        for name, value in doc.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    }
