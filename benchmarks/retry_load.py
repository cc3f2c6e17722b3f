"""What the retry benchmarks share: an app whose handler fails, and rows that wait in its store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks import broker
from benchmarks.figure import Figure, folder

from leveret import Leveret, RetryPolicy, SoftFailure
from leveret.cli.apps import opened
from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.core.topology import Names
from leveret.runtime.world import SystemClock
from leveret.stores.sqlite.store import SqliteStore

NAMES: Final = Names("bench")
#: The queue of the worker whose handler fails.
QUEUE: Final = NAMES.queue("charge")
#: 1 KiB as JSON, with the two numbers that each message gets.
TEXT: Final = "x" * 970
#: Rows in one transaction, here and in the peers: as many as Leveret takes at a time.
BATCH: Final = 500
ROUNDS: Final = 3
#: Seconds between looks; each costs the store or the broker a little.
LOOK_EVERY: Final = 0.02


def failing_app(here: Path, url: str, store: str | None = None) -> Leveret:
    """An app with a worker whose every run fails softly, to be tried again in an hour; None: its store is SQLite."""
    settings = here / "leveret.toml"
    # What is due goes out as quickly as it can; by default a backlog goes out at 1 000/s.
    settings.write_text('[retry_worker]\noverdue_rate = "none"\n')
    store = f"sqlite:///{here}/store.db" if store is None else store
    app = Leveret(NAMES.namespace, broker=url, store=store, config=settings)

    @app.worker("order.placed", prefetch=1000, retry=RetryPolicy(first_delay=3600, max_delay=3600))
    async def charge(_order: dict[str, Any]) -> None:
        raise SoftFailure("the card service answered 503")

    return app


def beside_sqlite(
    name: str,
    url: Callable[[], str],
    ours: Callable[[Path, Leveret], Coroutine[Any, Any, float]],
    bare: Callable[[Path], float],
    *,
    peer: str,
) -> Figure:
    """Leveret and bare SQLite in turn, each in a folder of the round's own; the best of each."""
    mine, theirs = [], []
    for _ in range(ROUNDS):
        with folder() as here:
            app = failing_app(here, url())
            with broker.swept(app):
                mine.append(asyncio.run(ours(here, app)))
            theirs.append(bare(here))
    return Figure(name=name, value=max(mine), unit="/s", peer=peer, peer_value=max(theirs))


def memory_broker() -> str:
    """The address of a broker in memory that nobody else has."""
    return f"memory://bench-{uuid.uuid4().hex}"


async def lie(app: Leveret, queue: str) -> int:
    """How many messages lie ready in *queue*."""
    state = await opened(app).transport.queue_state(queue)
    return 0 if state is None else state.ready


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Look again and again: no event tells of what happens on another machine."""
    while not await condition():  # noqa: ASYNC110 - as it says
        await asyncio.sleep(LOOK_EVERY)


async def fill(folder: Path, waits: Iterable[float], *, head_start: float = 0.0) -> float:
    """Write rows into the store of that folder, each due so many seconds after a moment that is returned.

    The moment lies *head_start* seconds after the last row was written, however long that took.
    """
    store = SqliteStore(folder / "store.db", clock=SystemClock())
    await store.open()
    batch: list[RetryEntry] = []
    for wait in waits:
        batch.append(entry_due_at(wait))
        if len(batch) == BATCH:
            await store.put(batch)
            batch = []
    if batch:
        await store.put(batch)
    await store.close()
    with contextlib.closing(sqlite3.connect(folder / "store.db")) as connection, connection:
        moment = time.time() + head_start
        connection.execute("UPDATE retry SET due_at = due_at + ?, try_at = try_at + ?", (moment, moment))
    return moment


def entry_due_at(wait: float) -> RetryEntry:
    """A row that is due at *wait*."""
    retry_id = str(uuid.uuid4())
    message_id = str(uuid.uuid4())
    properties = Properties.build(
        content_type="application/json",
        message_id=message_id,
        timestamp=int(time.time()),
        type="order.placed",
        headers={"leveret-attempt": 2, "leveret-failure": 1, "leveret-retry-id": retry_id},
    )
    return RetryEntry(
        namespace=NAMES.namespace,
        key=f"{QUEUE}:{retry_id}",
        queue=QUEUE,
        exchange=NAMES.events,
        routing_key="order.placed",
        worker="charge",
        type="order.placed",
        message_id=message_id,
        retry_id=retry_id,
        attempt=1,
        max_attempts=6,
        failure=1,
        reason="the card service answered 503",
        error="SoftFailure",
        host="bench",
        due_at=wait,
        first_failed_at=time.time(),
        failed_at=time.time(),
        body=json.dumps({"wait": wait, "text": TEXT}).encode(),
        properties=properties.raw,
    )
