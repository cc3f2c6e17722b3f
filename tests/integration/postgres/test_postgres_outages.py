"""An app whose PostgreSQL goes away while it is at work: nothing is lost, nothing runs twice, one alarm."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres_cluster import Cluster
from tests.small_disk import SmallDisk
from tests.store_outage import EACH_OF_B17, SHORT_TTL, TEN_LEASES, StoreOutage

from leveret.stores.postgres import PostgresStore, connections
from leveret.torture.proxy import CutProxy


@pytest.fixture
async def role(admin: psycopg.AsyncConnection, schema: str) -> str:
    """A user that is no superuser, with the schema for its own."""
    name = f"{schema}_app"
    await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'app'")
    await admin.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {name}")
    return name


@pytest.fixture
def outage(
    cluster: Cluster, proxy: CutProxy, schema: str, role: str, caplog, monkeypatch
) -> Callable[..., StoreOutage]:
    def outage(patience: float = 30.0, **options: Any) -> StoreOutage:
        # By way of a proxy, which hands on all that comes unless told otherwise.
        url = cluster.at(proxy.port, user=role, password="app")
        return StoreOutage(
            lambda: PostgresStore(f"{url}?schema={schema}", patience=patience), caplog, monkeypatch, **options
        )

    return outage


async def test_b17_a_server_that_is_killed(cluster: Cluster, outage):
    @asynccontextmanager
    async def killed() -> AsyncIterator[None]:
        await asyncio.to_thread(cluster.kill)
        try:
            yield
        finally:
            await asyncio.to_thread(cluster.start)

    await outage(each=EACH_OF_B17).survives(killed)


async def test_a_server_that_is_restarted_again_and_again(cluster: Cluster, outage):
    await outage().survives(lambda: again_and_again(cluster), takes="all, now and then")


@asynccontextmanager
async def again_and_again(cluster: Cluster) -> AsyncIterator[None]:
    over = False

    async def restart() -> None:
        while True:
            await asyncio.sleep(0.3)
            await asyncio.to_thread(cluster.start)
            if over:
                return
            await asyncio.sleep(0.5)
            await asyncio.to_thread(cluster.stop)

    await asyncio.to_thread(cluster.stop)
    restarts = asyncio.create_task(restart())
    try:
        yield
    finally:
        over = True
        await restarts


async def _shown(url: str, setting: str) -> str:
    """What somebody who connects now is told of a setting."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        (value,) = await (await connection.execute(f"SHOW {setting}")).fetchone() or ("",)
    return str(value)


async def test_b17_a_server_that_takes_no_writes(cluster: Cluster, outage):
    @asynccontextmanager
    async def read_only() -> AsyncIterator[None]:
        async with await psycopg.AsyncConnection.connect(cluster.url, autocommit=True) as admin:
            await admin.execute("SET default_transaction_read_only = off")
            await admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            await admin.execute("SELECT pg_reload_conf()")
            # The server reads it, then tells those who are connected, then lets new ones in.
            while (await _shown(cluster.url, "default_transaction_read_only")) != "on":
                pass
            try:
                yield
            finally:
                await admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
                await admin.execute("SELECT pg_reload_conf()")

    await outage().survives(read_only)


async def test_a_server_without_a_connection_left(admin, role: str, outage):
    @asynccontextmanager
    async def no_connections() -> AsyncIterator[None]:
        # What a server says whose max_connections are taken, for one user.
        await admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,)
        )
        try:
            yield
        finally:
            await admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")

    await outage().survives(no_connections)


async def test_a_server_that_answers_after_ten_leases(cluster: Cluster, outage):
    @asynccontextmanager
    async def stopped() -> AsyncIterator[None]:
        cluster.pause()
        try:
            yield
        finally:
            cluster.resume()

    await outage(ttl=SHORT_TTL).survives(stopped, lasts=TEN_LEASES)


async def test_a_server_that_does_what_it_is_asked_and_whose_answers_are_lost(
    proxy: CutProxy, outage, monkeypatch
):
    monkeypatch.setattr(connections, "_GRACE", 0.1)

    @asynccontextmanager
    async def untold() -> AsyncIterator[None]:
        proxy.black_hole("back")
        try:
            yield
        finally:
            proxy.hand_on()
            proxy.cut()

    await outage(patience=0.5).survives(untold)


@pytest.fixture
async def database_on_a_small_disk(admin, cluster: Cluster, schema: str, role: str):
    """A database of its own on a disk that can be filled, and its URL; the server's log lies elsewhere."""
    folder = Path(tempfile.mkdtemp(prefix="leveret-postgres-"))
    disk = SmallDisk(folder / "disk", size=32)
    try:
        disk.need()
        folder.chmod(0o755)
        place = disk.folder / "tables"
        place.mkdir()
        shutil.chown(place, "postgres", "postgres")
        name = f"{schema}_small"
        await admin.execute(f"CREATE TABLESPACE {name} LOCATION '{place}'")
        await admin.execute(f"CREATE DATABASE {name} OWNER {role} TABLESPACE {name} TEMPLATE template0")
        yield disk, cluster.at(cluster.port, user=role, password="app").replace("/postgres", f"/{name}")
        await admin.execute(f"DROP DATABASE {name}")
        await admin.execute(f"DROP TABLESPACE {name}")
    finally:
        disk.close()
        shutil.rmtree(folder)


async def test_a_server_whose_disk_is_full(database_on_a_small_disk, caplog, monkeypatch):
    disk, url = database_on_a_small_disk
    outage = StoreOutage(lambda: PostgresStore(url), caplog, monkeypatch)
    # What fits into pages that are there is still written: the lease, and what is removed.
    await outage.survives(disk.full, takes="what is small")
