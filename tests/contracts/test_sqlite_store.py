"""The SQLite store keeps the store contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from leveret.stores.sqlite import SqliteStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def opened(self):
        return []

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock, tmp_path: Path, opened) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(tmp_path / "leveret.db", clock=clock)
        await store.open()
        opened.append(store)
        yield store
        for each in opened:
            await each.close()

    @pytest.fixture
    def reopen(self, clock: FakeClock, tmp_path: Path, opened):
        async def reopen(store: SqliteStore) -> SqliteStore:
            await store.close()
            again = SqliteStore(tmp_path / "leveret.db", clock=clock)
            await again.open(create=False)
            opened.append(again)
            return again

        return reopen
