"""An app whose MongoDB goes away while it is at work: nothing is lost, nothing runs twice, one alarm. On FerretDB."""

from __future__ import annotations

import asyncio
import resource
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from tests.ferretdb_server import FerretDB
from tests.small_disk import SmallDisk
from tests.store_outage import StoreOutage

from leveret.stores.mongodb import MongoStore
from leveret.torture.proxy import CutProxy

pytestmark = [
    pytest.mark.usefixtures("cut_off"),
    # What pymongo leaves to the collector, as `cut_off` says, is collected while such a long test runs.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

#: Seconds that a lease lasts: FerretDB takes its time, also while nothing is wrong.
TTL = 1.5
#: The same where it answers after ten of them.
SHORT_TTL = 0.8
#: Nobody waits for longer than this, in milliseconds, where an outage shall be noticed soon.
SOON = "?serverSelectionTimeoutMS=700&connectTimeoutMS=700&socketTimeoutMS=700"


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="leveret-ferretdb-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def disk(folder: Path) -> Iterator[SmallDisk]:
    """What the server stores lies on a disk that can be filled, and mounted read-only while no server runs.

    Each test has a database of its own there, whose log of some megabytes stays behind.
    """
    disk = SmallDisk(folder / "disk", size=64)
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def server(folder: Path, disk: SmallDisk) -> Iterator[FerretDB]:
    """One that may be killed and stopped."""
    server = FerretDB(folder, data=disk.folder / "data")
    server.start()
    yield server
    server.kill()


@pytest_asyncio.fixture
async def proxy(server: FerretDB) -> AsyncIterator[CutProxy]:
    proxy = CutProxy(server.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
def outage(proxy: CutProxy, request, caplog, monkeypatch) -> Callable[..., StoreOutage]:
    def outage(options: str = SOON, *, ttl: float = TTL) -> StoreOutage:
        # By way of a proxy, which hands on all that comes unless told otherwise.
        url = f"mongodb://127.0.0.1:{proxy.port}/{request.node.name[:60]}{options}"
        return StoreOutage(lambda: MongoStore(url), caplog, monkeypatch, ttl=ttl)

    return outage


async def test_b17_a_server_that_is_killed(server: FerretDB, outage):
    @asynccontextmanager
    async def killed() -> AsyncIterator[None]:
        await asyncio.to_thread(server.kill)
        try:
            yield
        finally:
            await asyncio.to_thread(server.start)

    await outage().survives(killed)


async def test_a_server_that_is_restarted_again_and_again(server: FerretDB, outage):
    @asynccontextmanager
    async def again_and_again() -> AsyncIterator[None]:
        over = False

        async def restart() -> None:
            while True:
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.start)
                if over:
                    return
                await asyncio.sleep(0.5)
                await asyncio.to_thread(server.kill)

        await asyncio.to_thread(server.kill)
        restarts = asyncio.create_task(restart())
        try:
            yield
        finally:
            over = True
            await restarts

    await outage().survives(again_and_again, takes="all, now and then")


async def test_a_server_that_can_only_read(server: FerretDB, disk: SmallDisk, outage):
    disk.need()

    @asynccontextmanager
    async def read_only() -> AsyncIterator[None]:
        async def start_on(mode: str) -> None:
            await asyncio.to_thread(server.kill)
            disk.remount(mode)
            await asyncio.to_thread(server.start)

        await start_on("ro")
        try:
            yield
        finally:
            await start_on("rw")

    await outage().survives(read_only)


async def test_a_server_without_a_connection_left(server: FerretDB, proxy: CutProxy, outage):
    @asynccontextmanager
    async def no_connections() -> AsyncIterator[None]:
        limits = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        # It has no limit of its own: none is left once it may open no more files.
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (4, limits[1]))
        proxy.cut()
        try:
            yield
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limits)

    await outage().survives(no_connections)


async def test_a_server_whose_disk_is_full(disk: SmallDisk, outage):
    disk.need()
    await outage().survives(disk.full)


async def test_a_server_that_answers_after_ten_leases(server: FerretDB, outage):
    @asynccontextmanager
    async def stopped() -> AsyncIterator[None]:
        server.pause()
        try:
            yield
        finally:
            server.go_on()

    await outage(options="", ttl=SHORT_TTL).survives(stopped, lasts=10 * SHORT_TTL)


async def test_a_server_that_does_what_it_is_asked_and_whose_answers_are_lost(proxy: CutProxy, outage):
    @asynccontextmanager
    async def untold() -> AsyncIterator[None]:
        proxy.black_hole("back")
        try:
            yield
        finally:
            proxy.hand_on()
            proxy.cut()

    await outage().survives(untold)
