"""What warren's own retry worker stored in MongoDB is given back by leveret's runner, from where it lies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from tests.e2e.warren.scene import Warren, running, until

from leveret.retry import RetryWorkerRunner
from leveret.retry.exchanges import observer_exchange
from leveret.runtime.config import load_config
from leveret.stores.mongodb.documents import MongoDBDocumentStore

pytestmark = pytest.mark.timeout(600)

#: As warren's configuration names it by default.
COLLECTION = "retries"


class Lying:
    """The database of warren, with what lies there."""

    def __init__(self, url: str, client: MongoClient[dict[str, Any]], redis_url: str) -> None:
        self.database = client.get_default_database()
        self.rows = self.database[COLLECTION]
        self.leases = self.database[f"{COLLECTION}_lease"]
        self.config = {
            "mongodb": {"uri": url, "database": self.database.name},
            "redis": {"url": redis_url},
            "retry": {"lease_ttl_seconds": 2},
        }


@pytest.fixture
def lying(mongodb_url, redis) -> Iterator[Lying]:
    with MongoClient(mongodb_url) as client:
        yield Lying(mongodb_url, client, redis.url)


@asynccontextmanager
async def a_runner(warren: Warren, lying: Lying, mongodb_url: str) -> AsyncIterator[None]:
    """Leveret's, on warren's collection, at work."""
    config = load_config(code={"broker": warren.url, "lease": {"ttl": 2}}, environ={}, file="/dev/null")
    async with AsyncMongoClient(mongodb_url) as client:
        store = MongoDBDocumentStore(
            client, database_name=lying.database.name, collection_name=COLLECTION, doc_id_field="retry_key"
        )
        runner = RetryWorkerRunner(
            config,
            "retry",
            exchange=observer_exchange(warren.exchange),
            republish_exchange=warren.exchange,
            retry_store=store,
        )
        async with running(runner):
            yield


async def test_what_warren_stored_comes_back_from_leveret_and_the_lease_goes_on(warren, lying, mongodb_url):
    # Their queues may bear arguments of their own.
    consumer = {"consumer": {"queue_arguments": {"x-queue-type": "quorum"}}}
    theirs = await warren.start(retries=True, rabbitmq=dict(consumer), **lying.config)
    pipeline = await warren.start(workers={"parser": {"fails": 2, "after": 4}}, rabbitmq=dict(consumer))
    await pipeline.publish(*({"doc_id": f"d{number}"} for number in range(5)))
    await until(lambda: lying.rows.count_documents({}) == 5)
    await theirs.kill()
    before = lying.leases.find_one({"_id": "retry_worker"})
    assert {row["retry_key"] for row in lying.rows.find()} == {f"job:job-1:doc:d{n}:part:0" for n in range(5)}
    async with a_runner(warren, lying, mongodb_url):
        await pipeline.until(lambda: len(pipeline.counts("parser")) == 15)
        during = lying.leases.find_one({"_id": "retry_worker"})
        await until(lambda: lying.rows.count_documents({}) == 0)
    await pipeline.kill()
    assert sorted(pipeline.counts("parser")) == [0] * 5 + [1] * 5 + [2] * 5
    assert before is not None
    assert during is not None
    assert during["holder_id"].startswith("retry@")
    assert during["holder_id"] != before["holder_id"]
    # One document, as before: who held it last, and now.
    assert lying.leases.count_documents({}) == 1


async def test_beside_warrens_retry_worker_what_either_stores_comes_back_once(warren, lying, mongodb_url):
    """Leveret's holds the lease; warren's stands by, and takes half of the envelopes from the queue that they share."""
    async with a_runner(warren, lying, mongodb_url):
        await warren.start(retries=True, **lying.config)
        # It fails a message only once that is removed from where it waited. FerretDB removes in two steps, and what the
        # other process wrote over it in between would go too; MongoDB does not.
        workers = {"parser": {"fails": 3, "after": 1, "takes": 1}}
        pipeline = await warren.start(workers=workers, rabbitmq={"consumer": {"prefetch_count": 20}})
        await pipeline.publish(*({"doc_id": f"d{number}"} for number in range(20)))
        await pipeline.until(lambda: len(pipeline.counts("parser")) == 80)
        await until(lambda: lying.rows.count_documents({}) == 0)
    await pipeline.kill()
    assert sorted(pipeline.counts("parser")) == [0] * 20 + [1] * 20 + [2] * 20 + [3] * 20
