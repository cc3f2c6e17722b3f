"""MongoDB when the world is unkind: killed, stopped, not letting in, two holders. A FerretDB of these tests' own."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.ferretdb_server import FerretDB, with_database

from leveret import Leveret
from leveret.cli.apps import opened
from leveret.core.errors import StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.stores.mongodb import MongoStore
from leveret.testing.store_contract import an_entry

pytestmark = pytest.mark.usefixtures("cut_off")

#: FerretDB on SQLite looks through all rows for each one that it changes: the time goes with the square of their
#: number, a few seconds for a thousand and minutes for ten thousand, which PostgreSQL and SQLite are tried with.
NUMBER = 1000


@pytest.fixture
def server():
    """One that may be killed and stopped."""
    with tempfile.TemporaryDirectory(prefix="leveret-ferretdb-") as folder:
        server = FerretDB(Path(folder))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def url(server):
    """Its URL; nobody waits for it for longer than half a second."""
    options = "?serverSelectionTimeoutMS=500&connectTimeoutMS=500&socketTimeoutMS=500"
    return with_database(server.url, "faults") + options


def quickly(tmp_path: Path) -> Path:
    """Settings: what is overdue goes out at once, and a lease lasts for a second."""
    file = tmp_path / "leveret.toml"
    file.write_text('[retry_worker]\noverdue_rate = "none"\n[lease]\nttl = 1.5\n')
    return file


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - no event tells of what happens in another process
            await asyncio.sleep(0.05)


async def test_what_was_stored_before_a_kill_is_there_after_it_and_the_store_goes_on_unaided(server, url):
    store = MongoStore(url)
    await store.open()
    stored, failed = [], []

    async def write(writer: int) -> None:
        for number in range(60):
            name = f"{writer}-{number}"
            try:
                await store.put([an_entry(name)])
            except StoreUnavailable:
                failed.append(name)
            else:
                stored.append(name)

    writers = [asyncio.create_task(write(writer)) for writer in range(4)]
    for kills in range(1, 3):

        async def enough(kills: int = kills) -> bool:
            return len(stored) >= 40 * kills

        await until(enough)
        server.kill()
        await asyncio.sleep(0.1)
        server.start()
    await asyncio.gather(*writers)
    assert failed
    rows, _ = await store.entries(Filter(), limit=1000)
    assert {f"shop.charge/{name}" for name in stored} <= {row.key for row in rows}
    assert (await store.put([an_entry("after")]))[0].written
    await store.close()


async def test_c02_a_server_that_stood_still_for_longer_than_the_lease_makes_no_second_copy(
    server, url, tmp_path
):
    def app() -> Leveret:
        return Leveret("shop", broker="memory://stood-still", store=url, config=quickly(tmp_path))

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(app())
        for _ in range(2):
            worker = await stack.enter_async_context(app())
            await stack.enter_async_context(worker.running(keeper=False))
        store = MongoStore(url)
        stack.push_async_callback(store.close)
        await store.open()

        async def held() -> bool:
            return any(state.left > 0 for state in (await store.leases("shop")).values())

        await until(held)
        await store.put(
            [an_entry(str(n), queue="q", through_exchange=False, wait=n / 50) for n in range(100)]
        )
        await opened(first).transport.declare(_queue("q"))
        server.pause()
        await asyncio.sleep(3)
        server.go_on()

        async def all_out() -> bool:
            try:
                return await store.count_entries(Filter()) == 0
            except StoreUnavailable:
                return False

        await until(all_out)
        assert (await opened(first).transport.queue_state("q")).ready == 100


async def test_c04_four_retry_workers_on_one_mongodb_publish_each_due_message_once(url, tmp_path):
    def app() -> Leveret:
        return Leveret("shop", broker="memory://four", store=with_long_waits, config=file)

    with_long_waits = url.partition("?")[0]
    file = tmp_path / "leveret.toml"
    file.write_text('[retry_worker]\noverdue_rate = "none"\n')
    store = MongoStore(with_long_waits)
    await store.open()
    names = [str(n) for n in range(NUMBER)]
    await store.put([an_entry(name, queue="q", wait=0.0, body=name.encode()) for name in names])
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(app())
        transport = opened(first).transport
        await transport.declare(_queue("q"))
        for _ in range(4):
            worker = await stack.enter_async_context(app())
            await stack.enter_async_context(worker.running(keeper=False))

        async def all_out() -> bool:
            return await store.count_entries(Filter()) == 0

        await until(all_out)
        assert len(await store.leases("shop")) == 1
        out: Counter[str] = Counter()
        while (delivery := await transport.get("q")) is not None:
            out[delivery.body.decode()] += 1
            delivery.ack()
        assert out == Counter(names)
    await store.close()


async def test_of_three_that_ask_for_a_lease_for_ever_never_two_hold_it(url):
    stores = [MongoStore(url) for _ in range(3)]
    for store in stores:
        await store.open()
    holding: set[int] = set()
    terms: list[int] = []

    async def contend(number: int) -> None:
        lease = stores[number].lease("shop/retry")
        held = 0
        while held < 5:
            if await lease.acquire_or_renew(str(number), 0.0, 30.0):
                holding.add(number)
                assert holding == {number}
                grant = await lease.grant(str(number))
                assert grant is not None
                terms.append(grant.term)
                held += 1
                holding.discard(number)
                await lease.release(str(number))

    await asyncio.gather(*(contend(number) for number in range(3)))
    assert terms == sorted(set(terms))
    assert len(terms) == 15
    for store in stores:
        await store.close()


async def test_b20_what_a_killed_holder_had_taken_is_taken_by_the_next_one(url):
    killed, other = MongoStore(url), MongoStore(url)
    for store in (killed, other):
        await store.open()
    await killed.put([an_entry(wait=0.0)])
    assert await killed.lease("shop/retry").acquire_or_renew("killed", 0.0, 0.2)
    grant = await killed.lease("shop/retry").grant("killed")
    assert len(await killed.take("shop", [("shop.charge/one", 3)], grant=grant)) == 1
    # As kill -9 does: nothing is given back.
    await killed.close()
    lease = other.lease("shop/retry")

    async def taken_over() -> bool:
        return await lease.acquire_or_renew("other", 0.0, 30.0)

    await until(taken_over)
    grant = await lease.grant("other")
    assert grant is not None
    assert grant.term == 2
    assert len(await other.take("shop", [("shop.charge/one", 3)], grant=grant)) == 1
    assert await other.remove("shop", [("shop.charge/one", 3)], grant=grant) == 1
    await other.close()


async def test_a_wrong_password_is_told_at_once_without_it():
    with tempfile.TemporaryDirectory(prefix="leveret-ferretdb-") as folder:
        server = FerretDB(Path(folder), user="shop", password="right")
        server.start()
        try:
            good = MongoStore(f"mongodb://shop:right@127.0.0.1:{server.port}/shop?authSource=admin")
            await good.open()
            await good.close()
            bad = MongoStore(f"mongodb://shop:s3cret@127.0.0.1:{server.port}/shop?authSource=admin")
            with pytest.raises(StoreUnavailable, match="the user or the password is wrong") as told:
                await bad.open()
            assert "s3cret" not in str(told.value)
        finally:
            server.kill()


def _queue(name: str):
    from leveret.core.topology import Queue, Topology

    return Topology(queues=(Queue(name),))
