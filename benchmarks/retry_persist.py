"""How many failed messages a second go from the retry queue into SQLite: stored, synced to disk, then acked."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import broker
from benchmarks.figure import Figure
from benchmarks.retry_load import BATCH, NAMES, TEXT, beside_sqlite, lie, memory_broker, until

from leveret import Leveret, Message

MESSAGES: Final = 20_000


def measure() -> Iterator[Figure]:
    """On the broker in memory, then on RabbitMQ; Leveret and bare SQLite in turn, the best of each."""
    yield beside_sqlite(
        "retry_persist_memory", memory_broker, _leveret, _bare, peer="sqlite3.executemany, 500 a transaction"
    )
    yield beside_sqlite(
        "retry_persist", broker.url, _leveret, _bare, peer="sqlite3.executemany, 500 a transaction"
    )


async def _leveret(_here: Path, app: Leveret) -> float:
    return await all_are_stored(app)


async def all_are_stored(app: Leveret, messages: int = MESSAGES) -> float:
    """How many failures a second go from a full retry queue into the store."""
    orders = [Message("order.placed", {"id": number, "text": TEXT}) for number in range(messages)]

    async def all_failed() -> bool:
        return await lie(app, NAMES.retry_queue) == messages

    async def all_stored() -> bool:
        # The broker first: it costs little to ask, and a store may have to count.
        return not await lie(app, NAMES.retry_queue) and await app.retries.count() == messages

    async with app:
        # First everything fails while nobody takes the failures in, so that the retry queue holds them all.
        async with app.running(retry_worker=False, keeper=False):
            await app.publish_many(orders)
            await until(all_failed)
        started = time.perf_counter()
        async with app.running(workers=[], keeper=False):
            await until(all_stored)
            seconds = time.perf_counter() - started
        # Acked as well, for what is not goes back to the queue at the end of the block.
        assert await lie(app, NAMES.retry_queue) == 0
    return messages / seconds


def _bare(here: Path) -> float:
    """The least that would do: key, time, properties and body, and an index to find what is due."""
    connection = sqlite3.connect(here / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE retry (key TEXT PRIMARY KEY, due_at REAL, properties BLOB, body BLOB)")
    connection.execute("CREATE INDEX due ON retry (due_at)")
    rows = [(str(uuid.uuid4()), time.time(), b"p" * 100, TEXT.encode()) for _ in range(MESSAGES)]
    started = time.perf_counter()
    for start in range(0, MESSAGES, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO retry VALUES (?, ?, ?, ?)", rows[start : start + BATCH])
        connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    return MESSAGES / seconds
