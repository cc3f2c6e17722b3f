"""The two figures of retry_persist and retry_republish with PostgreSQL as the store: synced by the server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from benchmarks import broker, postgres
from benchmarks.figure import Figure, folder
from benchmarks.retry_load import BATCH, ROUNDS, TEXT, entry_due_at, failing_app, memory_broker
from benchmarks.retry_persist import MESSAGES, all_are_stored
from benchmarks.retry_republish import all_go_out

from leveret import Leveret
from leveret.stores.postgres import PostgresStore

Bare = Callable[[str], float]


def measure() -> Iterator[Figure]:
    """On the broker in memory, then on RabbitMQ; Leveret and bare psycopg in turn, the best of each."""
    for end, url in (("_memory", memory_broker), ("", broker.url)):
        yield _beside(
            f"retry_persist_postgres{end}", url, _persist, _insert, "psycopg executemany, 500 a transaction"
        )
        yield _beside(
            f"retry_republish_postgres{end}",
            url,
            _republish,
            _delete,
            "psycopg select and delete, 500 a transaction",
        )


def _beside(
    name: str,
    url: Callable[[], str],
    ours: Callable[[Leveret, str], Coroutine[Any, Any, float]],
    bare: Bare,
    peer: str,
) -> Figure:
    mine, theirs = [], []
    for _ in range(ROUNDS):
        with folder() as here, postgres.schema() as store:
            app = failing_app(here, url(), store)
            with broker.swept(app):
                mine.append(asyncio.run(ours(app, store)))
        with postgres.schema() as store:
            theirs.append(bare(store))
    return Figure(name=name, value=max(mine), unit="/s", peer=peer, peer_value=max(theirs))


async def _persist(app: Leveret, _store: str) -> float:
    return await all_are_stored(app)


async def _republish(app: Leveret, url: str) -> float:
    store = PostgresStore(url)
    await store.open()
    overdue = time.time() - 1.0
    for _ in range(MESSAGES // BATCH):
        await store.put([entry_due_at(overdue) for _ in range(BATCH)])
    await store.close()
    return await all_go_out(app)


def _insert(store: str) -> float:
    """The least that would do: key, time, properties and body, and an index to find what is due."""
    with postgres.connected(store) as connection:
        connection.execute(
            "CREATE TABLE bare (key text PRIMARY KEY, due_at float8, properties bytea, body bytea)"
        )
        connection.execute("CREATE INDEX ON bare (due_at)")
        rows = [(str(uuid.uuid4()), time.time(), b"p" * 100, TEXT.encode()) for _ in range(MESSAGES)]
        started = time.perf_counter()
        for start in range(0, MESSAGES, BATCH):
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany("INSERT INTO bare VALUES (%s, %s, %s, %s)", rows[start : start + BATCH])
        return MESSAGES / (time.perf_counter() - started)


def _delete(store: str) -> float:
    """The least that would do: read what is due, append it to a list, delete it."""
    _insert(store)
    out: list[tuple[bytes, bytes]] = []
    with postgres.connected(store) as connection:
        started = time.perf_counter()
        while len(out) < MESSAGES:
            with connection.transaction():
                due = connection.execute(
                    "SELECT key, properties, body FROM bare WHERE due_at <= %s ORDER BY due_at LIMIT %s",
                    (time.time(), BATCH),
                    binary=True,
                ).fetchall()
                out += [(properties, body) for _, properties, body in due]
                connection.execute("DELETE FROM bare WHERE key = ANY(%s)", ([key for key, *_ in due],))
        return MESSAGES / (time.perf_counter() - started)
