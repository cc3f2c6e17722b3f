"""The memory store keeps the store contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from leveret.stores.memory import MemoryData, MemoryStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def data(self):
        return MemoryData()

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock, data: MemoryData) -> AsyncIterator[MemoryStore]:
        store = MemoryStore(clock=clock, data=data)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    def reopen(self, clock: FakeClock, data: MemoryData):
        async def reopen(store: MemoryStore) -> MemoryStore:
            await store.close()
            again = MemoryStore(clock=clock, data=data)
            await again.open()
            return again

        return reopen
