"""Document stores keep one contract, whatever they lie in."""

from __future__ import annotations

import asyncio
import math
import uuid

import pytest

from leveret.core.errors import ConfigError, NotFound, StoreRefused
from leveret.stores.cached import CachedDocumentStore
from leveret.stores.documents import MemoryDocumentStore
from leveret.stores.mongodb import MongoDBDocumentStore
from leveret.stores.postgres import PostgresDocumentStore
from leveret.stores.redis_cache import RedisDictCache
from leveret.stores.sql.documents import PAGE, TableDocuments
from leveret.stores.sqlite import SqliteDocumentStore

NAMED = {"collection_name": "retries", "doc_id_field": "retry_key"}


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mongodb", "mongodb behind redis"])
async def store(request, tmp_path):
    if request.param == "memory":
        store = MemoryDocumentStore(**NAMED)
    elif request.param == "sqlite":
        store = SqliteDocumentStore(tmp_path / "leveret.db", **NAMED)
    elif request.param == "postgresql":
        cluster = request.getfixturevalue("postgres")
        store = PostgresDocumentStore(f"{cluster.url}?schema={cluster.schema()}", **NAMED)
    else:
        store = MongoDBDocumentStore.at(request.getfixturevalue("mongodb_url"), **NAMED)
        if request.param == "mongodb behind redis":
            cache = RedisDictCache.at(request.getfixturevalue("redis").url, key_prefix=uuid.uuid4().hex)
            store = CachedDocumentStore(store, cache)
    yield store
    await store.close()


async def found(store, params=None, **how):
    return [doc["retry_key"] async for doc in store.query(params or {}, **how)]


async def test_a_document_comes_back_as_it_was_stored(store):
    doc = {
        "retry_key": "a\0ü\ud800",
        "message": {"big": 2**200, "nested": [1, {"x": None}], "text": "\0\ud800", "float": 0.1},
        "fire_at": 1_750_000_000.123456,
    }
    assert await store.insert(doc) == "a\0ü\ud800"
    assert await store.get_document("a\0ü\ud800") == doc
    assert await found(store) == ["a\0ü\ud800"]
    assert await store.delete("a\0ü\ud800")


async def test_changing_what_was_read_changes_nothing_stored(store):
    await store.insert({"retry_key": "a", "message": {"n": 1}})
    (await store.get_document("a"))["message"]["n"] = 2
    async for doc in store.query({}):
        doc["message"]["n"] = 3
    assert (await store.get_document("a"))["message"] == {"n": 1}


async def test_an_insert_replaces_only_where_it_is_told_to(store):
    await store.insert({"retry_key": "a", "n": 1})
    with pytest.raises(StoreRefused, match=r"'a' in retries already.*overwrite_existing=True"):
        await store.insert({"retry_key": "a", "n": 2})
    assert (await store.get_document("a"))["n"] == 1
    await store.insert({"retry_key": "a", "n": 2, "m": 1}, overwrite_existing=True)
    await store.insert({"retry_key": "a", "n": 3}, overwrite_existing=True)
    assert await store.get_document("a") == {"retry_key": "a", "n": 3}


async def test_many_are_stored_or_none(store):
    assert await store.upsert_many([{"retry_key": "a"}, {"retry_key": "b"}]) == ["a", "b"]
    assert await store.upsert_many([]) == []
    with pytest.raises(StoreRefused):
        await store.upsert_many([{"retry_key": "c"}, {"retry_key": "d", "bad": object()}])
    assert await found(store) == ["a", "b"]


@pytest.mark.parametrize("doc", [{}, {"retry_key": ""}, {"retry_key": None}, {"retry_key": 5}])
async def test_a_document_without_an_id_is_refused(store, doc):
    with pytest.raises(StoreRefused, match="retry_key"):
        await store.insert(doc)


async def test_what_json_cannot_carry_is_refused(store):
    with pytest.raises(StoreRefused, match="cannot be written as JSON"):
        await store.insert({"retry_key": "a", "bad": {1, 2}})
    assert not await store.exists("a")


async def test_an_update_sets_fields_and_never_the_id(store):
    await store.insert({"retry_key": "a", "n": 1, "m": 1})
    await store.update("a", {"n": 2, "o": 3})
    assert await store.get_document("a") == {"retry_key": "a", "n": 2, "m": 1, "o": 3}
    with pytest.raises(StoreRefused, match="would change its id"):
        await store.update("a", {"retry_key": "b"})
    with pytest.raises(NotFound, match="'none'"):
        await store.update("none", {"n": 2})


async def test_a_document_that_is_not_there_is_told(store):
    assert not await store.exists("a")
    with pytest.raises(NotFound, match="'a' in retries"):
        await store.get_document("a")
    assert not await store.delete("a")


async def test_a_query_finds_equal_fields_and_a_missing_field_equals_none(store):
    await store.insert({"retry_key": "a", "n": 1})
    await store.insert({"retry_key": "b", "n": 1, "m": {"x": 1}})
    await store.insert({"retry_key": "c"})
    assert await found(store) == ["a", "b", "c"]
    assert await found(store, {"n": 1}) == ["a", "b"]
    assert await found(store, {"n": 1, "m": {"x": 1}}) == ["b"]
    assert await found(store, {"n": None}) == ["c"]


@pytest.mark.parametrize("params", [{"$or": []}, {"n": {"$lt": 5}}])
async def test_a_query_with_operators_is_refused_instead_of_finding_nothing(store, params):
    with pytest.raises(StoreRefused, match=r"\$"):
        await found(store, params)


async def test_a_query_is_sorted_by_a_field_those_without_it_first(store):
    for key, at in (("b", 2.0), ("a", 3.0), ("c", 1.0)):
        await store.insert({"retry_key": key, "at": at})
    await store.insert({"retry_key": "without"})
    assert await found(store, sort_by="at") == ["without", "c", "b", "a"]
    await store.insert({"retry_key": "text", "at": "soon"})
    with pytest.raises(StoreRefused, match="cannot be compared"):
        await found(store, sort_by="at")


async def test_a_query_goes_on_while_documents_come_and_go(store):
    # More than are read at once; FerretDB looks through all of them for each.
    many = 3 * PAGE if isinstance(store, TableDocuments) else 120
    await store.upsert_many([{"retry_key": str(number), "n": number} for number in range(many)])
    seen = []
    async for doc in store.query({}):
        seen.append(doc["n"])
        await store.delete(doc["retry_key"])
    assert seen == list(range(many))
    assert await found(store) == []


async def test_a_query_ends_also_where_each_document_is_written_anew_meanwhile(store):
    many = 2 * PAGE + 1 if isinstance(store, TableDocuments) else 20
    await store.upsert_many([{"retry_key": str(number), "n": number} for number in range(many)])
    seen = []
    async for doc in store.query({}):
        seen.append(doc["n"])
        assert len(seen) <= many
        await store.insert(doc | {"seen": True}, overwrite_existing=True)
    assert seen == list(range(many))
    assert len(await found(store, {"seen": True})) == many


async def test_a_delete_happens_only_where_the_fields_are_as_expected(store):
    await store.insert({"retry_key": "a", "generation": 2})
    assert not await store.delete("a", expected={"generation": 1})
    assert not await store.delete("none", expected={"generation": 2})
    assert not await store.delete("a", expected={"generation": None})
    assert await store.delete("a", expected={"generation": 2})
    await store.insert({"retry_key": "old"})
    assert await store.delete("old", expected={"generation": None})


async def test_infinity_and_nan_pass_as_the_standard_json_has_them(store):
    await store.insert({"retry_key": "a", "x": math.inf})
    assert (await store.get_document("a"))["x"] == math.inf


async def test_a_store_names_its_documents_and_their_id(store):
    assert (store.get_document_type(), store.get_doc_id_field()) == ("retries", "retry_key")


async def test_leases_of_a_store_have_one_holder(store):
    store = getattr(store, "wrapped", store)
    await store.open()
    assert await store.lease("x").acquire_or_renew("one", 0.0, 30.0)
    assert not await store.lease("x").acquire_or_renew("two", 0.0, 30.0)
    assert await store.lease("y").acquire_or_renew("two", 0.0, 30.0)


@pytest.mark.parametrize("bad", [{"collection_name": ""}, {"doc_id_field": ""}, {"collection_name": None}])
def test_names_that_cannot_be_meant_are_refused(bad):
    with pytest.raises(ConfigError, match="expected text"):
        MemoryDocumentStore(**{"collection_name": "retries", "doc_id_field": "id"} | bad)


@pytest.fixture(params=["sqlite", "postgresql"])
def beside(request, tmp_path):
    """Opens stores that share a file, or a schema."""
    if request.param == "sqlite":
        return lambda name: SqliteDocumentStore(tmp_path / "x.db", collection_name=name, doc_id_field="id")
    cluster = request.getfixturevalue("postgres")
    url = f"{cluster.url}?schema={cluster.schema()}"
    return lambda name: PostgresDocumentStore(url, collection_name=name, doc_id_field="id")


async def test_documents_lie_beside_other_collections_and_outlive_a_restart(beside):
    first, other = beside("a"), beside("b")
    await first.insert({"id": "x", "n": 1})
    await other.insert({"id": "x", "n": 2})
    await first.close()
    assert (await first.get_document("x"))["n"] == 1
    assert [doc["n"] async for doc in other.query({})] == [2]
    await first.close()
    await other.close()


async def test_of_many_who_change_one_document_at_once_each_is_heard(beside):
    one, other = beside("a"), beside("a")
    await one.insert({"id": "x"})
    await asyncio.gather(*(store.update("x", {f"n{n}": n}) for n in range(20) for store in (one, other)))
    assert await one.get_document("x") == {"id": "x"} | {f"n{n}": n for n in range(20)}
    took = await asyncio.gather(*(store.delete("x", expected={"n1": 1}) for store in (one, other)))
    assert sorted(took) == [False, True]
    await one.close()
    await other.close()
