from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import psycopg
import pytest
import pytest_asyncio
from tests.postgres_cluster import Cluster, running_cluster

from leveret.stores.postgres import PostgresStore
from leveret.torture.proxy import CutProxy


class OpenStore(Protocol):
    """Opens a store in this test's schema, and closes it in the end."""

    async def __call__(
        self, url: str = "", *, patience: float = 30.0, create: bool = True
    ) -> PostgresStore: ...


@pytest.fixture(scope="session")
def durable_server() -> Iterator[Cluster]:
    with running_cluster(durable=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(durable_server: Cluster) -> Iterator[Cluster]:
    """A server that syncs what it commits, and which a test may kill."""
    yield durable_server
    if not durable_server.plain:
        durable_server.stop()
        durable_server.start()


@pytest.fixture
def schema(durable_server: Cluster) -> str:
    return durable_server.schema()


@pytest_asyncio.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[CutProxy]:
    proxy = CutProxy(cluster.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest_asyncio.fixture
async def open_store(cluster: Cluster, schema: str) -> AsyncIterator[OpenStore]:
    opened: list[PostgresStore] = []

    async def open_store(url: str = "", *, patience: float = 30.0, create: bool = True) -> PostgresStore:
        store = PostgresStore(f"{url or cluster.url}?schema={schema}", patience=patience)
        opened.append(store)
        await store.open(create=create)
        return store

    yield open_store
    for store in opened:
        await store.close()


@pytest_asyncio.fixture
async def admin(cluster: Cluster) -> AsyncIterator[psycopg.AsyncConnection]:
    """Somebody else in the same database, who commits each statement."""
    async with await psycopg.AsyncConnection.connect(cluster.url, autocommit=True) as connection:
        yield connection
