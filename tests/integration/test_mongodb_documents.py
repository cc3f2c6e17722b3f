"""Documents in MongoDB as other programs write them, Redis before it, and the runner that finds both by itself."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid

import pytest
from pymongo import AsyncMongoClient, MongoClient
from tests.redis_server import running_redis

from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Queue, RMQExchangeConfig, Topology
from leveret.retry import RetryWorkerRunner
from leveret.runtime.backends import create_runtime_infra
from leveret.runtime.config import load_config
from leveret.stores.cached import CachedDocumentStore
from leveret.stores.mongodb import MongoDBDocumentStore
from leveret.stores.redis_cache import RedisDictCache

NAMED = {"collection_name": "retries", "doc_id_field": "retry_key"}


@pytest.fixture
def lying(mongodb_url):
    """The collection itself."""
    with MongoClient(mongodb_url) as client:
        yield client.get_default_database()["retries"]


@pytest.fixture
async def store(mongodb_url):
    store = MongoDBDocumentStore.at(mongodb_url, **NAMED)
    yield store
    await store.close()


async def test_the_documents_of_another_program_are_read_replaced_and_deleted_where_they_lie(store, lying):
    lying.create_index("retry_key", unique=True)
    theirs = lying.insert_one({"retry_key": "a", "message": {"x": 1}, "fire_at": 5.5}).inserted_id
    assert await store.get_document("a") == {"retry_key": "a", "message": {"x": 1}, "fire_at": 5.5}
    await store.insert({"retry_key": "a", "message": {"x": 2}, "generation": 1}, overwrite_existing=True)
    assert list(lying.find()) == [{"_id": theirs, "retry_key": "a", "message": {"x": 2}, "generation": 1}]
    await store.update("a", {"generation": 2})
    assert await store.delete("a", expected={"generation": 2})
    assert lying.count_documents({}) == 0


async def test_what_one_process_replaces_is_not_removed_by_another_that_knows_the_one_before(
    store, mongodb_url
):
    """FerretDB would look for the old one, and then remove what has its id."""
    other = MongoDBDocumentStore.at(mongodb_url, **NAMED)
    for key in map(str, range(30)):
        await store.insert({"retry_key": key, "generation": 1})
        await asyncio.gather(
            store.delete(key, expected={"generation": 1}),
            other.insert({"retry_key": key, "generation": 2}, overwrite_existing=True),
        )
    await other.close()
    assert len([doc async for doc in store.query({"generation": 2})]) == 30


async def test_a_plain_document_lies_field_by_field(store, lying):
    await store.insert({"retry_key": "a", "message": {"x": [1, 2.5, None, True, "ü"]}, "fire_at": 5.5})
    doc = lying.find_one({}, {"_id": 0})
    assert doc == {"retry_key": "a", "message": {"x": [1, 2.5, None, True, "ü"]}, "fire_at": 5.5}


@pytest.mark.parametrize(
    "message",
    [
        {"a.b": 1},
        {"$x": 1},
        {"": 1},
        {"n": 2**63},
        {"n": float("inf")},
        {"t": "\0"},
        {"t": "\ud800"},
        {"\0": 1},
    ],
    ids=["dot", "dollar", "empty", "big", "inf", "NUL", "surrogate", "NUL key"],
)
async def test_what_mongodb_cannot_hold_field_by_field_comes_back_all_the_same(store, message):
    doc = {"retry_key": "a", "message": message, "generation": 1}
    await store.insert(doc)
    assert await store.get_document("a") == doc
    await store.update("a", {"generation": 2})
    assert [each async for each in store.query({"generation": 2})] == [doc | {"generation": 2}]
    assert not await store.delete("a", expected={"generation": 1})
    assert await store.delete("a", expected={"generation": 2})


async def test_an_id_like_those_that_lie_in_another_form_is_not_taken_for_one(store):
    for key in ("\ud800", 'leveret:"\\ud800"', "leveret:"):
        await store.insert({"retry_key": key, "key": key.encode("utf-8", "backslashreplace").decode()})
    assert len([doc async for doc in store.query({})]) == 3
    assert (await store.get_document('leveret:"\\ud800"'))["retry_key"] == 'leveret:"\\ud800"'


async def test_the_client_that_was_given_stays_open(mongodb_url):
    client = AsyncMongoClient(mongodb_url)
    store = MongoDBDocumentStore(client, database_name=client.get_default_database().name, **NAMED)
    await store.insert({"retry_key": "a"})
    await store.close()
    assert await store.exists("a")
    await client.close()


# ── Redis ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_lies_in_redis_goes_by_itself(redis):
    cache = RedisDictCache.at(redis.url, key_prefix=uuid.uuid4().hex)
    await cache.set("a", {"n": 1}, ttl_seconds=3600)
    assert await cache.get("a") == {"n": 1}
    assert 3590 < await cache._client.ttl(cache._named("a")) <= 3600
    await cache._client.set(cache._named("b"), b"\xff no JSON")
    assert await cache.get("b") is None
    await cache.delete("a")
    assert await cache.get("a") is None
    await cache.close()


async def test_a_redis_that_dies_costs_a_warning_and_nothing_else(store, caplog):
    with running_redis() as redis:
        cached = CachedDocumentStore(store, RedisDictCache.at(redis.url))
        await cached.insert({"retry_key": "a", "n": 1})
        redis.kill()
        async with asyncio.timeout(5):
            await cached.insert({"retry_key": "a", "n": 2}, overwrite_existing=True)
            assert await cached.get_document("a") == {"retry_key": "a", "n": 2}
        redis.start()
        cached._alone_until = float("-inf")
        assert await cached.get_document("a") == {"retry_key": "a", "n": 2}
        await cached.close()
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "the cache of retries does not work" in warnings[0].message


async def until(condition) -> None:
    while not await condition():  # noqa: ASYNC110 - no event tells of what happens in another process
        await asyncio.sleep(0.02)


# ── The runner ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_runner_keeps_retries_in_the_mongodb_and_the_redis_that_are_configured(mongodb_url, redis):
    jobs = RMQExchangeConfig("jobs")
    variables = {
        "LEVERET_BROKER": f"memory://{uuid.uuid4().hex}",
        "LEVERET_STORE": mongodb_url,
        "LEVERET_CACHE": redis.url,
        "LEVERET_LEASE__TTL": "5",
    }
    config = load_config(environ=variables, file="/dev/null")
    infra = await create_runtime_infra(config)
    runner = RetryWorkerRunner(config, "retry", exchange=jobs, infra=infra)
    assert isinstance(runner._own_store(infra.world), CachedDocumentStore)
    await infra.transport.declare(Topology(exchanges=(jobs,), queues=(Queue("jobs.parser"),)))
    running = asyncio.create_task(runner.run())
    failed = {"data_type": "page", "data": {"doc_id": "d"}, "job_id": "j", "retry": {"after": 0.3}}
    envelope = {"data_type": "soft-failure", "data": failed, "job_id": "j"} | {
        "origin": {"type": "parser", "name": "h"}
    }
    with MongoClient(mongodb_url) as client:
        database = client.get_default_database()
        async with asyncio.timeout(20):

            async def consumed() -> bool:
                state = await infra.transport.queue_state("jobs.retry_worker")
                return state is not None and state.consumers > 0

            await until(consumed)
            await infra.transport.send(
                Outgoing("jobs", "soft-failure", json.dumps(envelope).encode(), Properties.build())
            )

            async def given_back() -> bool:
                delivery = await infra.transport.get("jobs.parser")
                return delivery is not None and json.loads(delivery.body) == failed

            await until(given_back)

            async def removed() -> bool:
                return database["jobs.retry_worker"].count_documents({}) == 0

            await until(removed)
        # The row that other programs of the JSON form know.
        lease = database["jobs.retry_worker_lease"].find_one({"_id": "retry_worker"})
    assert lease is not None
    assert lease["holder_id"].startswith("retry@")
    running.cancel()
    await asyncio.wait([running])
    await runner.teardown()
    await infra.close()
