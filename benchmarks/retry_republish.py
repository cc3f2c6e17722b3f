"""How many due retries a second leave SQLite: read, published, confirmed, and only then deleted and synced."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure, folder
from benchmarks.retry_load import BATCH, QUEUE, TEXT, failing_app, fill

from leveret.core.message import Outgoing

MESSAGES: Final = 20_000
ROUNDS: Final = 3
#: Seconds between looks whether the last rows are deleted.
LOOK_EVERY: Final = 0.001


def measure() -> list[Figure]:
    """Leveret and bare SQLite in turn, the best of each."""
    ours, bare = [], []
    for _ in range(ROUNDS):
        with folder() as here:
            ours.append(asyncio.run(_leveret(here)))
            bare.append(_bare(here))
    return [
        Figure(
            name="retry_republish",
            value=max(ours),
            unit="/s",
            peer="sqlite3 select and delete, 500 a transaction",
            peer_value=max(bare),
        )
    ]


async def _leveret(here: Path) -> float:
    await fill(here, itertools.repeat(-1.0, MESSAGES))
    app, broker = failing_app(here)
    published = 0
    all_out = asyncio.Event()

    def count(_message: Outgoing, queues: Sequence[str]) -> None:
        nonlocal published
        published += QUEUE in queues
        if published == MESSAGES:
            all_out.set()

    broker.on_publish.append(count)
    async with app:
        started = time.perf_counter()
        async with app.running(workers=[], keeper=False):
            await all_out.wait()
            while await app.retries.count():  # noqa: ASYNC110 - the last rows go unseen from here
                await asyncio.sleep(LOOK_EVERY)
            seconds = time.perf_counter() - started
    assert broker.snapshot()[QUEUE].ready == MESSAGES
    return MESSAGES / seconds


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
