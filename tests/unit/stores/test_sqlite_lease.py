from __future__ import annotations

import pytest

from leveret.ports import Grant
from leveret.stores.memory import MemoryRetryLease
from leveret.stores.sqlite import SqliteRetryLease, SqliteStore, lease
from leveret.testing.fake_clock import FakeClock


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leveret.db"


@pytest.fixture
def boots(monkeypatch, tmp_path):
    """Says which boot this is, as the system would; None: it cannot tell."""

    def boots(name):
        file = tmp_path / f"boot_id of {name}"
        if name is not None:
            file.write_text(f"{name}\n")
        monkeypatch.setattr(lease, "_BOOT_ID", file)

    return boots


@pytest.fixture
async def reboot(path):
    """Opens the store as after another start of the machine, whose clock stands at so many seconds."""
    opened = []

    async def reboot(seconds: float) -> SqliteStore:
        clock = FakeClock()
        await clock.advance(seconds)
        store = SqliteStore(path, clock=clock)
        await store.open()
        opened.append(store)
        return store

    yield reboot
    for store in opened:
        await store.close()


async def test_a_lease_of_another_boot_is_free_and_its_take_over_raises_the_term(reboot, boots):
    boots("one")
    before = await reboot(100.0)
    await before.lease("shop/retry").acquire_or_renew("me", 0.0, 30.0)
    boots("two")
    after = (await reboot(101.0)).lease("shop/retry")
    assert await after.grant("me") is None
    assert await after.acquire_or_renew("me", 0.0, 30.0)
    assert await after.grant("me") == Grant("shop/retry", "me", 2)


async def test_where_boots_cannot_be_told_apart_a_lease_that_would_last_longer_than_was_asked_for_is_free(
    reboot, boots
):
    boots(None)
    before = await reboot(5000.0)
    await before.lease("shop/retry").acquire_or_renew("one", 0.0, 30.0)
    state = (await before.leases("shop"))["shop/retry"]
    assert state.left == pytest.approx(30.0)
    after = (await reboot(10.0)).lease("shop/retry")
    assert await after.acquire_or_renew("two", 0.0, 30.0)
    assert await after.grant("two") == Grant("shop/retry", "two", 2)


async def test_a_longer_lease_is_not_free_for_those_who_ask_for_less(reboot):
    store = await reboot(10.0)
    await store.lease("shop/retry").acquire_or_renew("one", 0.0, 300.0)
    assert not await store.lease("shop/retry").acquire_or_renew("two", 0.0, 30.0)


def test_a_system_that_cannot_tell_its_boots_apart_has_an_empty_one(boots):
    boots(None)
    assert lease.this_boot() == ""


async def test_a_lease_on_a_path_opens_the_file_itself_and_competes_with_a_stores(path, reboot):
    clock = FakeClock()
    alone = SqliteRetryLease(path, clock=clock)
    assert await alone.acquire_or_renew("one", 0.0, 30.0)
    store = await reboot(0.0)
    assert not await SqliteRetryLease(store).acquire_or_renew("two", 0.0, 30.0)
    await alone.release("one")
    assert await SqliteRetryLease(store).acquire_or_renew("two", 0.0, 30.0)
    assert sorted(await store.leases(None)) == ["retry_worker"]
    await alone.close()
    await alone.close()


async def test_a_lease_on_a_path_without_a_clock_goes_by_the_clock_that_runs_from_boot(path):
    alone = SqliteRetryLease(path)
    assert await alone.acquire_or_renew("one", 0.0, 3600.0)
    state = await alone.state()
    assert 3500.0 < state.left <= 3600.0
    await alone.close()


async def test_a_memory_lease_without_data_of_others_stands_alone():
    clock = FakeClock()
    one, two = MemoryRetryLease(clock=clock), MemoryRetryLease(clock=clock)
    assert await one.acquire_or_renew("one", 0.0, 30.0)
    assert await two.acquire_or_renew("two", 0.0, 30.0)
