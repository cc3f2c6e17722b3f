from __future__ import annotations

import pytest

from leveret.core.errors import LeaseLost
from leveret.core.retry_entry import Filter
from leveret.stores.sqlite import SqliteStore, retries
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import an_entry

NAMES = "abcdef"


@pytest.fixture
async def store(tmp_path, monkeypatch):
    monkeypatch.setattr(retries, "UNBLOCKED_AT_ONCE", 2)
    store = SqliteStore(tmp_path / "leveret.db", clock=FakeClock())
    await store.open()
    await store.put([an_entry(name, wait=0.0) for name in NAMES])
    rows = [(f"shop.charge/{name}", 3) for name in NAMES]
    await store.postpone("shop", rows, seconds=300.0, blocked="gone")
    yield store
    await store.close()


def after_each_write(store, call):
    plain = store.file.write

    async def write(ask):
        answer = await plain(ask)
        await call()
        return answer

    store.file.write = write


async def states(store):
    page, _ = await store.entries(Filter(), limit=99)
    return sorted(entry.state for entry in page)


async def test_many_rows_are_unblocked_in_portions_so_that_nobody_waits_long_for_the_file(store):
    seen = []

    async def look():
        seen.append((await states(store)).count("blocked"))

    after_each_write(store, look)
    assert await store.unblock("shop", "shop.charge") == 6
    assert seen == [4, 2, 0, 0]


async def test_a_lease_that_is_taken_over_between_two_portions_stops_the_rest(store):
    lease = store.lease("shop/retry")
    await lease.acquire_or_renew("me", 0.0, 30.0)
    grant = await lease.grant("me")

    async def take_over():
        store.file.write = plain
        await lease.release("me")
        await lease.acquire_or_renew("other", 0.0, 30.0)

    plain = store.file.write
    after_each_write(store, take_over)
    with pytest.raises(LeaseLost):
        await store.unblock("shop", "shop.charge", grant=grant)
    assert await states(store) == ["blocked"] * 4 + ["waiting"] * 2
