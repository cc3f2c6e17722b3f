"""The simulated store: what befalls its machine, and which calls that concerns."""

from __future__ import annotations

import asyncio
import inspect
import random

import pytest

from leveret.core.errors import StoreUnavailable
from leveret.ports import Lease, Store
from leveret.proof.serving import WRITES
from leveret.simulate.loop import Body, VirtualClock, VirtualLoop
from leveret.simulate.store import StoreHost
from leveret.stores.memory import MemoryData
from leveret.testing.store_contract.rows import an_entry

#: What only reads. A call that is new to the port belongs here, or to WRITES.
READS = {
    "upcoming", "next_due", "take", "entries", "count_entries", "entry", "letters", "count_letters", "groups", "letter",
    "asked", "act", "leases", "grant", "state", "namespaces", "check", "open", "close",
    "document_collections",
}  # fmt: skip


@pytest.fixture
def loop():
    loop = VirtualLoop(random.Random(1))
    yield loop
    loop.close()


def host(loop: VirtualLoop, *, shared: bool = False) -> StoreHost:
    return StoreHost(MemoryData(), VirtualClock(loop), random.Random(2), shared=shared)


def test_each_call_of_a_store_is_known_to_write_or_to_read():
    calls = {
        name
        for port in (Store, Lease)
        for name, call in inspect.getmembers(port, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert calls == WRITES | READS


def test_where_it_is_down_nothing_is_answered(loop: VirtualLoop):
    machine = host(loop)
    store = machine.store()
    machine.down = True

    async def use() -> None:
        for call in (store.open(), store.put([an_entry("a")]), store.next_due("shop"), store.leases("shop")):
            with pytest.raises(StoreUnavailable, match="is down"):
                await call
        with pytest.raises(StoreUnavailable, match="is down"):
            await store.lease("shop/retry").acquire_or_renew("me", 0.0, 3.0)
        await store.close()

    loop.run_until_complete(use())
    assert not machine.data.retries


def test_where_its_disk_is_full_all_can_be_read_and_nothing_written(loop: VirtualLoop):
    machine = host(loop)
    store = machine.store()

    async def use() -> int:
        await store.open()
        await store.put([an_entry("a")])
        machine.full = True
        with pytest.raises(StoreUnavailable, match="disk"):
            await store.put([an_entry("b")])
        with pytest.raises(StoreUnavailable, match="disk"):
            await store.lease("shop/retry").acquire_or_renew("me", 0.0, 3.0)
        return len(machine.data.retries)

    assert loop.run_until_complete(use()) == 1


def test_what_it_reports_as_timed_out_is_done_all_the_same(loop: VirtualLoop):
    machine = host(loop)
    store = machine.store()

    async def use() -> None:
        await store.open()
        machine.lies = 1
        with pytest.raises(StoreUnavailable, match="may have done it"):
            await store.put([an_entry("a")])
        await store.put([an_entry("b")])

    loop.run_until_complete(use())
    assert len(machine.data.retries) == 2
    assert machine.lies == 0


@pytest.mark.parametrize("shared", [False, True])
def test_a_slow_one_takes_its_time_for_each_call(loop: VirtualLoop, shared: bool):
    machine = host(loop, shared=shared)
    store = machine.store()

    async def use() -> float:
        await store.open()
        machine.slow = 30.0
        await store.put([an_entry("a")])
        return loop.time()

    assert 30.0 <= loop.run_until_complete(use()) < 30.1
    assert store.shared is shared


@pytest.mark.parametrize("shared", [False, True])
def test_what_was_sent_is_done_though_whoever_sent_it_waits_no_more(loop: VirtualLoop, shared: bool):
    machine = host(loop, shared=shared)
    store = machine.store()

    async def use() -> None:
        await store.open()
        machine.slow = 30.0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.put([an_entry("a")]), 1.0)
        assert not machine.data.retries
        await asyncio.sleep(30.0)

    loop.run_until_complete(use())
    assert len(machine.data.retries) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_machine_of_its_own_does_also_what_a_dead_process_had_sent(loop: VirtualLoop, shared: bool):
    machine = host(loop, shared=shared)
    store = machine.store()

    async def use() -> None:
        await store.open()
        machine.slow = 30.0
        body = Body("holder")
        loop.start(body, store.put([an_entry("a")]))
        await asyncio.sleep(1.0)
        body.alive = False
        await asyncio.sleep(30.0)

    loop.run_until_complete(use())
    assert len(machine.data.retries) == shared
