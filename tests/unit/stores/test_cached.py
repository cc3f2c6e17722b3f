"""CachedDocumentStore: the store is the truth, and a cache that fails, forgets or lies changes nothing of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from leveret.retry import RetryWorker
from leveret.stores.cached import CachedDocumentStore
from leveret.stores.documents import MemoryDocumentStore
from leveret.testing.fake_clock import FakeClock


class Store(MemoryDocumentStore):
    """Says whether it still holds a document, and counts how often one was read."""

    def __init__(self) -> None:
        super().__init__(collection_name="retries", doc_id_field="retry_key")
        self.reads = 0

    async def holds(self, doc_id, fields) -> bool:
        if not await self.exists(doc_id):
            return False
        doc = await super().get_document(doc_id)
        return all(doc.get(name) == value for name, value in fields.items())

    async def get_document(self, doc_id):
        self.reads += 1
        return await super().get_document(doc_id)


class Cache:
    """A cache that can be made to fail."""

    def __init__(self) -> None:
        self.docs: dict[str, dict] = {}
        self.calls = 0
        self.error: Exception | None = None

    async def get(self, key):
        self._call()
        return self.docs.get(key)

    async def set(self, key, value, *, ttl_seconds):
        self._call()
        self.docs[key] = dict(value)

    async def delete(self, key):
        self._call()
        self.docs.pop(key, None)

    def _call(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def cache():
    return Cache()


@pytest.fixture
def cached(store, cache):
    return CachedDocumentStore(store, cache)


def a_doc(generation: int = 1, **more):
    return {"retry_key": "a", "generation": generation, "message": {"n": generation}} | more


async def test_what_was_written_is_not_read_again(cached, store):
    await cached.insert(a_doc())
    assert await cached.get_document("a") == a_doc()
    assert store.reads == 0


async def test_what_was_read_is_not_read_again(cached, store):
    await store.insert(a_doc())
    for _ in range(3):
        assert await cached.get_document("a") == a_doc()
    assert store.reads == 1


async def test_a_generation_that_somebody_else_wrote_is_never_missed(cached, store):
    await cached.insert(a_doc(1))
    await store.insert(a_doc(2), overwrite_existing=True)
    assert await cached.get_document("a") == a_doc(2)


async def test_what_somebody_else_deleted_is_gone(cached, store):
    await cached.insert(a_doc())
    await store.delete("a")
    assert not await cached.exists("a")
    with pytest.raises(LookupError):
        await cached.get_document("a")


async def test_an_update_is_read_as_it_is(cached):
    await cached.insert(a_doc())
    await cached.update("a", {"message": {"n": 9}})
    assert (await cached.get_document("a"))["message"] == {"n": 9}


async def test_a_store_that_cannot_say_what_it_holds_is_read(cache):
    class Plain(Store):
        holds = None

    store = Plain()
    cached = CachedDocumentStore(store, cache)
    await cached.insert(a_doc())
    await cached.get_document("a")
    assert store.reads == 1


@pytest.mark.parametrize("error", [ConnectionError("refused"), ValueError("no JSON"), TimeoutError()])
async def test_a_cache_that_fails_is_one_warning_and_is_left_alone_for_a_while(cached, cache, error, caplog):
    cache.error = error
    await cached.insert(a_doc())
    for _ in range(5):
        assert await cached.get_document("a") == a_doc()
    assert await cached.delete("a")
    assert cache.calls == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "everything is read from the store instead" in caplog.text


async def test_a_cache_that_works_again_is_used_again(cached, cache, store, caplog):
    caplog.set_level(logging.INFO)
    cache.error = ConnectionError("refused")
    await cached.insert(a_doc())
    cache.error = None
    cached._alone_until = float("-inf")
    for _ in range(2):
        await cached.get_document("a")
    assert store.reads == 1
    assert "works again" in caplog.text


async def test_an_error_of_the_store_is_not_hidden_by_what_the_cache_knows(cached, store):
    await cached.insert(a_doc())

    async def away(doc_id, fields):
        raise ConnectionError("the store is away")

    store.holds = away
    with pytest.raises(ConnectionError, match="the store is away"):
        await cached.get_document("a")


@pytest.mark.parametrize("bad", [0, -1, float("nan"), "3600"])
def test_a_time_to_live_that_is_none_is_refused(store, cache, bad):
    with pytest.raises(ValueError, match="cache_ttl_seconds"):
        CachedDocumentStore(store, cache, cache_ttl_seconds=bad)


class Publisher:
    def __init__(self) -> None:
        self.published: list[dict] = []

    async def setup(self) -> None: ...

    async def teardown(self) -> None: ...

    async def __call__(self, message: dict) -> None:
        self.published.append(message)


async def test_a_stale_cache_never_republishes_an_old_generation(cached, cache, store):
    clock, publisher = FakeClock(), Publisher()
    worker = RetryWorker(
        "retry",
        retry_store=cached,
        republish_publisher=publisher,
        clock=clock.now,
        sleep=clock.sleep,
    )
    await worker.start()
    message = {"data_type": "page", "data": {"doc_id": "d"}, "job_id": "j", "retry": {"after": 5, "count": 1}}
    await worker(
        {
            "data_type": "soft-failure",
            "data": message,
            "job_id": "j",
            "origin": {"type": "parser", "name": "h"},
        }
    )
    (first,) = [doc async for doc in store.query({})]
    # Another process stored a later failure, due in a minute, and its word to the cache was lost.
    later = first | {
        "generation": 2,
        "fire_at": clock.now() + 60,
        "message": message | {"retry": {"after": 60, "count": 2}},
    }
    await store.insert(later, overwrite_existing=True)
    assert next(iter(cache.docs.values()))["generation"] == 1
    await clock.advance(30)
    assert publisher.published == []
    await clock.advance(31)
    assert [each["retry"]["count"] for each in publisher.published] == [2]
    await worker.shutdown()
    await asyncio.sleep(0)
