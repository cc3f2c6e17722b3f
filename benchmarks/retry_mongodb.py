"""The two figures of retry_persist and retry_republish with MongoDB as the store, on the broker in memory.

FerretDB looks through all rows for each one that it changes: a thousand messages are what it takes in some seconds.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks import broker
from benchmarks.figure import Figure, folder
from benchmarks.retry_load import BATCH, TEXT, entry_due_at, failing_app, memory_broker
from benchmarks.retry_persist import all_are_stored
from benchmarks.retry_republish import all_go_out
from pymongo import MongoClient, WriteConcern
from pymongo.collection import Collection
from tests.ferretdb_server import running_ferretdb, with_database

from leveret import Leveret
from leveret.stores.mongodb import MongoStore

MESSAGES: Final = 1_000


def measure() -> Iterator[Figure]:
    """Leveret and bare pymongo, once each: the server's share is so large that the best of three says no more."""
    for name, ours, bare, peer in (
        ("retry_persist_mongodb", _persist, _insert, "pymongo insert_many, 500 a batch"),
        ("retry_republish_mongodb", _republish, _delete, "pymongo find and delete_many, 500 a batch"),
    ):
        with _server() as server, folder() as here:
            url = with_database(server, f"bench_{uuid.uuid4().hex[:8]}")
            app = failing_app(here, memory_broker(), url)
            with broker.swept(app):
                mine = asyncio.run(ours(app, url))
            with MongoClient[dict[str, Any]](url) as client:
                theirs = bare(
                    client.get_default_database()["bare"].with_options(
                        write_concern=WriteConcern(w="majority", j=True)
                    )
                )
                client.drop_database(client.get_default_database().name)
        yield Figure(name=name, value=mine, unit="/s", peer=peer, peer_value=theirs)


@contextmanager
def _server() -> Iterator[str]:
    named = os.environ.get("LEVERET_TEST_MONGODB_URL")
    if named:
        yield named
        return
    with running_ferretdb(durable=True) as server:
        yield server.url


async def _persist(app: Leveret, _url: str) -> float:
    return await all_are_stored(app, MESSAGES)


async def _republish(app: Leveret, url: str) -> float:
    store = MongoStore(url)
    await store.open()
    overdue = time.time() - 1.0
    for _ in range(MESSAGES // BATCH):
        await store.put([entry_due_at(overdue) for _ in range(BATCH)])
    await store.close()
    return await all_go_out(app, MESSAGES)


def _insert(collection: Collection[dict[str, Any]]) -> float:
    """The least that would do: key, time, properties and body."""
    rows = [
        {"_id": str(uuid.uuid4()), "due_at": time.time(), "properties": b"p" * 100, "body": TEXT.encode()}
        for _ in range(MESSAGES)
    ]
    started = time.perf_counter()
    for start in range(0, MESSAGES, BATCH):
        collection.insert_many(rows[start : start + BATCH])
    return MESSAGES / (time.perf_counter() - started)


def _delete(collection: Collection[dict[str, Any]]) -> float:
    """The least that would do: read what is due, append it to a list, delete it."""
    _insert(collection)
    out: list[dict[str, Any]] = []
    started = time.perf_counter()
    while len(out) < MESSAGES:
        due = list(collection.find({"due_at": {"$lte": time.time()}}).sort("due_at").limit(BATCH))
        out += due
        collection.delete_many({"_id": {"$in": [row["_id"] for row in due]}})
    return MESSAGES / (time.perf_counter() - started)
