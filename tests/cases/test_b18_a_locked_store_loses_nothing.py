"""B18: a worker, a dashboard and a shell share one SQLite file, and none of them meets "database is locked".

Another process holds the write lock for 8 s while failures arrive and a dashboard polls: the failures wait, unacked,
readers go on, nobody crashes, and all is stored once the lock is gone. The file itself may go, too: what arrives
meanwhile stays with the broker. What the store does about a full disk, a read-only file and two writers is tried beside
the store itself.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time

import pytest

from leveret import Context, Leveret, Message, SoftFailure
from leveret.core.retry_entry import Filter
from leveret.runtime.opening import Stand
from leveret.runtime.world import SystemClock, system_world
from leveret.stores.sqlite import SqliteStore
from leveret.transports.memory import MemoryBroker, MemoryTransport

NUMBER = 200
LOCKED_FOR = 8.0

HOLD_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
connection.execute("COMMIT")
print("released", flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leveret.db"


@pytest.fixture
def broker():
    return MemoryBroker()


class Back:
    """What came back, and signals when the first one has, and when all have."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.first = asyncio.Event()
        self.all = asyncio.Event()


@pytest.fixture
def back():
    return Back()


@pytest.fixture
def app(broker, path, back):
    world = system_world()
    app = Leveret("shop")
    app._stand = Stand(
        world=world,
        transport=lambda: MemoryTransport(broker, world=world),
        store=lambda: SqliteStore(path, clock=world.clock),
    )

    @app.worker("order.placed", prefetch=NUMBER)
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=0.1)
        back.ids.append(order["id"])
        back.first.set()
        if len(back.ids) >= NUMBER:
            back.all.set()

    return app


def orders():
    return [Message("order.placed", {"id": number}) for number in range(NUMBER)]


async def at_work(app: Leveret, back: Back) -> list[Message]:
    """Return, with what is left to publish, when a first retry has made its whole way."""
    first, *others = orders()
    await app.publish(first)
    await asyncio.wait_for(back.first.wait(), 20)
    return others


async def test_b18_failures_wait_for_a_lock_of_8_seconds_and_a_dashboard_goes_on_reading(
    app, path, back, caplog
):
    caplog.set_level(logging.INFO)
    dashboard = SqliteStore(path, clock=SystemClock())
    async with app.running():
        others = await at_work(app, back)
        await dashboard.open(create=False)
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLD_LOCK, str(path), str(LOCKED_FOR), stdout=subprocess.PIPE
        )
        assert await other.stdout.readline() == b"held\n"
        began = time.monotonic()
        await app.publish_many(others)

        released = asyncio.create_task(other.stdout.readline())
        slowest, polls = 0.0, 0
        while not released.done():
            asked = time.monotonic()
            assert await dashboard.count_entries(Filter()) == 0
            slowest = max(slowest, time.monotonic() - asked)
            polls += 1
            await asyncio.wait([released], timeout=0.05)
        assert released.result() == b"released\n"
        assert time.monotonic() - began > LOCKED_FOR - 1
        assert slowest < 2
        assert polls > 20

        await asyncio.wait_for(back.all.wait(), 20)
        assert sorted(back.ids) == list(range(NUMBER))
    await other.wait()
    assert await dashboard.count_entries(Filter()) == 0
    assert await dashboard.count_letters(Filter()) == 0
    await dashboard.close()
    assert "database is locked" not in caplog.text
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_b18_while_the_file_is_gone_nothing_is_acked_and_with_it_back_all_goes_on(
    app, path, broker, back
):
    waited = asyncio.Event()
    async with app.running():
        others = await at_work(app, back)
        alarms = app._open.parts.alarms
        emit = alarms.emit
        raised = []

        def heard(alarm):
            emit(alarm)
            raised.append(alarm.code)
            waited.set()

        alarms.emit = heard
        folder = path.parent
        away = folder / "away"
        away.mkdir()
        for file in folder.glob("leveret.db*"):
            file.rename(away / file.name)
        await app.publish_many(others)
        await broker.quiet(among=lambda queue: queue == "shop.charge")
        await asyncio.wait_for(waited.wait(), 20)
        assert set(raised) == {"retry_store_unavailable"}
        retry_queue = broker.snapshot()["shop.retry"]
        assert retry_queue.ready + retry_queue.unsettled == NUMBER - 1
        assert back.ids == [0]

        for file in away.iterdir():
            file.rename(folder / file.name)
        await asyncio.wait_for(back.all.wait(), 20)
        assert sorted(back.ids) == list(range(NUMBER))
