"""What a million waiting messages cost, in SQLite and in PostgreSQL: memory, a start, a round. Beside ten thousand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks import postgres
from benchmarks.figure import Figure, folder
from benchmarks.retry_load import entry_due_at
from benchmarks.waiting_100k import A_SECOND, HEAD_START, MIB, one_after_another, watch

from leveret.core.retry_entry import RetryEntry
from leveret.core.urls import parse_store
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world

MANY: Final = 1_000_000
FEW: Final = 10_000
#: A process is watched for so many seconds.
SECONDS: Final = 10
#: Rows are multiplied by the database: what goes through leveret one by one would take minutes.
_MULTIPLIED: Final = """
    INSERT INTO retry SELECT {columns} FROM (SELECT * FROM retry LIMIT 1) AS one, ({numbers}) AS numbers
"""


def measure() -> Iterator[Figure]:
    """Four processes: few and many wait in SQLite, then in PostgreSQL; a hundred a second come due in each."""
    yield from _figures("sqlite", _in_sqlite)
    yield from _figures("postgres", _in_postgres)


def _figures(name: str, stored: Callable[[Path, int], AbstractContextManager[str]]) -> Iterator[Figure]:
    found = []
    for number in (FEW, MANY):
        with folder() as here, stored(here, number) as store:
            found.append(_watched(here, store))
    few, many = found
    peer = f"with {FEW:_} waiting".replace("_", " ")
    yield Figure(
        name=f"waiting_1m_{name}_memory",
        value=many["rss"] / MIB,
        unit=" MiB",
        peer=peer,
        peer_value=few["rss"] / MIB,
    )
    yield Figure(
        name=f"waiting_1m_{name}_round", value=many["cpu"], unit=" ms", peer=peer, peer_value=few["cpu"]
    )
    yield Figure(
        name=f"waiting_1m_{name}_start", value=many["start"], unit=" s", peer=peer, peer_value=few["start"]
    )
    yield Figure(
        name=f"waiting_1m_{name}_late_p99",
        value=many["p99"] * 1000,
        unit=" ms",
        peer=peer,
        peer_value=few["p99"] * 1000,
    )


@contextlib.contextmanager
def _in_sqlite(here: Path, number: int) -> Iterator[str]:
    store = f"sqlite:///{here}/store.db"
    asyncio.run(put(store, [86_400.0]))
    with contextlib.closing(sqlite3.connect(here / "store.db")) as connection, connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(retry)")]
        numbers = (
            f"WITH RECURSIVE counted (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM counted WHERE"
            f" number < {number}) SELECT number FROM counted"
        )
        connection.execute(_MULTIPLIED.format(columns=_renumbered(columns), numbers=numbers))
    yield store


@contextlib.contextmanager
def _in_postgres(_here: Path, number: int) -> Iterator[str]:
    with postgres.schema() as store:
        asyncio.run(put(store, [86_400.0]))
        with postgres.connected(store) as connection:
            columns = [
                name
                for (name,) in connection.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_name = 'retry'"
                    " AND table_schema = current_schema() ORDER BY ordinal_position"
                )
            ]
            numbers = f"SELECT number FROM generate_series(1, {number}) AS number"
            connection.execute(_MULTIPLIED.format(columns=_renumbered(columns), numbers=numbers))
        yield store


def _renumbered(columns: list[str]) -> str:
    """Each row under a key and an id of its own, a millisecond after the one before."""
    changed = {
        "key": "key || number",
        "retry_id": "retry_id || number",
        "message_id": "message_id || number",
        "try_at": "try_at + number / 1000.0",
    }
    return ", ".join(changed.get(name, name) for name in columns)


async def put(store: str, waits: list[float], *, head_start: float = 0.0) -> float:
    """Write rows that are due so many seconds after a moment that lies *head_start* seconds ahead, and is returned."""
    opened = make_store(parse_store(store, "here"), system_world())
    await opened.open()
    moment = time.time() + head_start
    # The overdue one first: it shows when the process has begun to work.
    for start in range(0, len(waits), 500):
        entries = []
        for wait in waits[start : start + 500]:
            entry = entry_due_at(moment + wait)
            entries.append(entry if head_start == 0.0 else _saying(entry, wait))
        await opened.put(entries)
    await opened.close()
    return moment


def _saying(entry: RetryEntry, wait: float) -> RetryEntry:
    return replace(entry, body=json.dumps({"wait": wait}).encode())


def _watched(here: Path, store: str) -> dict[str, float]:
    waits = [-HEAD_START, *one_after_another(A_SECOND * SECONDS)]
    first_due = asyncio.run(put(store, waits, head_start=HEAD_START))
    command = [sys.executable, "-m", "benchmarks.waiting_1m", str(here), str(first_due), str(SECONDS), store]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


if __name__ == "__main__":
    given = sys.argv[1:]
    print(json.dumps(asyncio.run(watch(Path(given[0]), float(given[1]), float(given[2]), given[3]))))
