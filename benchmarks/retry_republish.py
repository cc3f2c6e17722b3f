"""How many due retries a second leave SQLite: read, published, confirmed, and only then deleted and synced."""

from __future__ import annotations

import itertools
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import broker
from benchmarks.figure import Figure
from benchmarks.retry_load import BATCH, QUEUE, TEXT, beside_sqlite, fill, lie, memory_broker, until

from leveret import Leveret

MESSAGES: Final = 20_000


def measure() -> Iterator[Figure]:
    """On the broker in memory, then on RabbitMQ; Leveret and bare SQLite in turn, the best of each."""
    yield beside_sqlite(
        "retry_republish_memory",
        memory_broker,
        _leveret,
        _bare,
        peer="sqlite3 select and delete, 500 a transaction",
    )
    yield beside_sqlite(
        "retry_republish", broker.url, _leveret, _bare, peer="sqlite3 select and delete, 500 a transaction"
    )


async def _leveret(here: Path, app: Leveret) -> float:
    await fill(here, itertools.repeat(-1.0, MESSAGES))
    return await all_go_out(app)


async def all_go_out(app: Leveret, messages: int = MESSAGES) -> float:
    """How many a second leave a store that holds so many which are overdue."""

    async def all_out() -> bool:
        # A row is deleted once its message is confirmed. The broker first: a store may have to count.
        return await lie(app, QUEUE) == messages and not await app.retries.count()

    async with app:
        started = time.perf_counter()
        async with app.running(workers=[], keeper=False):
            await until(all_out)
            seconds = time.perf_counter() - started
        assert await lie(app, QUEUE) == messages
    return messages / seconds


def _bare(here: Path) -> float:
    """The least that would do: read what is due, append it to a list, delete it."""
    connection = sqlite3.connect(here / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE retry (key TEXT PRIMARY KEY, due_at REAL, properties BLOB, body BLOB)")
    connection.execute("CREATE INDEX due ON retry (due_at)")
    rows = [(str(uuid.uuid4()), time.time(), b"p" * 100, TEXT.encode()) for _ in range(MESSAGES)]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO retry VALUES (?, ?, ?, ?)", rows)
    connection.execute("COMMIT")
    out: list[tuple[bytes, bytes]] = []
    started = time.perf_counter()
    while len(out) < MESSAGES:
        connection.execute("BEGIN IMMEDIATE")
        due = connection.execute(
            "SELECT key, properties, body FROM retry WHERE due_at <= ? ORDER BY due_at LIMIT ?",
            (time.time(), BATCH),
        ).fetchall()
        out += [(properties, body) for _, properties, body in due]
        connection.executemany("DELETE FROM retry WHERE key = ?", [(key,) for key, *_ in due])
        connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    return MESSAGES / seconds
