"""The PostgreSQL store keeps the store contract, on a server of the tests' own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio
from tests.postgres_cluster import Cluster

from leveret.stores.postgres import PostgresStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import StoreContract


class ServerClock(FakeClock):
    """The clock of one schema on the server, which stands still until it is moved."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__()
        self.schema = schema
        self._url = url

    async def take_over(self) -> None:
        """Make the schema's clock this one."""
        await self._execute(
            f"CREATE TABLE {self.schema}_clock (seconds float8)",
            f"INSERT INTO {self.schema}_clock VALUES ({self.now()!r})",
            f"CREATE OR REPLACE FUNCTION {self.schema}.epoch_now() RETURNS float8 LANGUAGE sql VOLATILE"
            f" AS 'SELECT seconds FROM public.{self.schema}_clock'",
        )

    async def advance(self, seconds: float) -> None:
        await super().advance(seconds)
        await self._execute(f"UPDATE {self.schema}_clock SET seconds = seconds + {seconds!r}")

    async def _execute(self, *statements: str) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                await connection.execute(statement)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def clock(self, postgres: Cluster) -> ServerClock:
        return ServerClock(postgres.url, postgres.schema())

    @pytest.fixture
    def opened(self):
        return []

    @pytest_asyncio.fixture
    async def store(self, postgres: Cluster, clock: ServerClock, opened) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(f"{postgres.url}?schema={clock.schema}")
        await store.open()
        await clock.take_over()
        opened.append(store)
        yield store
        for each in opened:
            await each.close()

    @pytest.fixture
    def reopen(self, postgres: Cluster, clock: ServerClock, opened):
        async def reopen(store: PostgresStore) -> PostgresStore:
            await store.close()
            again = PostgresStore(f"{postgres.url}?schema={clock.schema}")
            await again.open(create=False)
            opened.append(again)
            return again

        return reopen
