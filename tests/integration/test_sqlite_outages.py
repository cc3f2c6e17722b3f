"""An app whose SQLite file goes away while it is at work: nothing is lost, nothing runs twice, one alarm.

There is no server that could be killed, and no connection that somebody else could take: in their places the file is
moved away, and kept locked. What a kill of the app itself leaves is in tests/torture.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.small_disk import SmallDisk
from tests.store_outage import SHORT_TTL, TEN_LEASES, StoreOutage

from leveret.core.errors import StoreUnavailable
from leveret.runtime.world import SystemClock
from leveret.stores.sqlite import SqliteStore

#: Seconds that a locked file is waited for, where a wait shall be over soon.
SOON = 0.2

HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Another process keeps the file locked within the block."""
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_LOCK, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin is not None
    assert other.stdout is not None
    assert await other.stdout.readline() == b"held\n"
    try:
        yield
    finally:
        other.stdin.write(b"\n")
        await other.wait()


class OneStore:
    """The app's store, kept for whoever strikes it."""

    def __init__(self, path: Path, *, busy_timeout: float = 30.0) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self.store: SqliteStore | None = None

    def __call__(self) -> SqliteStore:
        self.store = SqliteStore(self.path, clock=SystemClock(), busy_timeout=self._busy_timeout)
        return self.store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leveret.db"


@pytest.fixture
def outage(caplog, monkeypatch) -> Callable[..., StoreOutage]:
    return lambda store, **options: StoreOutage(store, caplog, monkeypatch, **options)


async def test_a_file_that_is_moved_away_again_and_again(path: Path, outage):
    away = path.parent / "away"
    away.mkdir()

    def move(here: Path, there: Path) -> None:
        for file in sorted(here.glob("leveret.db*")):
            file.rename(there / file.name)

    @asynccontextmanager
    async def moved() -> AsyncIterator[None]:
        over = asyncio.Event()

        async def to_and_fro() -> None:
            while not over.is_set():
                await asyncio.sleep(0.4)
                move(away, path.parent)
                if not over.is_set():
                    await asyncio.sleep(0.4)
                    move(path.parent, away)

        move(path.parent, away)
        moving = asyncio.create_task(to_and_fro())
        try:
            yield
        finally:
            over.set()
            await moving
            move(away, path.parent)

    await outage(OneStore(path)).survives(moved, takes="all, now and then")


async def test_a_file_that_cannot_be_written(path: Path, outage):
    one = OneStore(path)

    @asynccontextmanager
    async def read_only() -> AsyncIterator[None]:
        # A disk cannot be mounted read-only while a file is open on it: this is SQLite's own answer in that case.
        await one.store.file.read(lambda connection: connection.execute("PRAGMA query_only = ON"))
        try:
            yield
        finally:
            await one.store.file.read(lambda connection: connection.execute("PRAGMA query_only = OFF"))

    await outage(one).survives(read_only)


async def test_a_file_that_somebody_else_keeps_locked(path: Path, outage):
    await outage(OneStore(path, busy_timeout=SOON)).survives(lambda: locked(path))


async def test_a_file_whose_disk_is_full(tmp_path: Path, outage):
    disk = SmallDisk(tmp_path / "disk", size=4)
    try:
        disk.need()
        await outage(OneStore(disk.folder / "leveret.db")).survives(disk.full)
    finally:
        disk.close()


async def test_a_file_that_answers_after_ten_leases(path: Path, outage):
    await outage(OneStore(path), ttl=SHORT_TTL).survives(lambda: locked(path), lasts=TEN_LEASES)


async def test_a_file_that_is_written_and_then_said_to_have_failed(path: Path, outage):
    one = OneStore(path)

    @asynccontextmanager
    async def untold() -> AsyncIterator[None]:
        file = one.store.file
        plain = file.write

        async def write(call):
            await plain(call)
            raise StoreUnavailable("it took too long")

        file.write = write
        try:
            yield
        finally:
            del file.write

    await outage(one).survives(untold)
