"""Whole apps on one PostgreSQL store: fencing, four retry workers, standbys, a server that is killed under them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import psycopg
import pytest
from tests.postgres_cluster import Cluster

from leveret import Context, Leveret, SoftFailure
from leveret.core import handover
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter
from leveret.runtime.opening import Stand
from leveret.runtime.world import system_world
from leveret.stores.postgres import PostgresStore
from leveret.testing.store_contract import an_entry
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker

# ── Fencing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_take_over_waits_for_what_is_being_done_under_the_old_term_and_a_renewal_does_not(
    cluster: Cluster, open_store, schema: str
):
    store = await open_store()
    await store.put([an_entry()])
    lease = store.lease("shop/retry")
    assert await lease.acquire_or_renew("one", 0.0, 30.0)
    grant = await lease.grant("one")
    async with await psycopg.AsyncConnection.connect(cluster.url) as other:
        # What the holder removes is locked, so that its statement waits in the middle.
        await other.execute(f"SELECT 1 FROM {schema}.retry FOR UPDATE")
        removing = asyncio.create_task(store.remove("shop", [("shop.charge/one", 3)], grant=grant))
        done, _ = await asyncio.wait([removing], timeout=0.2)
        assert not done
        assert await asyncio.wait_for(lease.acquire_or_renew("one", 0.0, 0.01), 2.0)
        await asyncio.sleep(0.02)
        taking = asyncio.create_task(
            (await open_store()).lease("shop/retry").acquire_or_renew("two", 0.0, 30.0)
        )
        done, _ = await asyncio.wait([taking], timeout=0.3)
        assert not done
    assert await removing == 1
    assert await taking
    assert (await lease.state())[:2] == ("two", 2)


HOLDER = """
import asyncio, sys
from leveret.core.errors import LeaseLost
from leveret.stores.postgres import PostgresStore
from leveret.testing.store_contract import an_entry

async def hold(url):
    store = PostgresStore(url)
    await store.open()
    lease = store.lease("shop/retry")
    assert await lease.acquire_or_renew("first", 0.0, 0.5)
    grant = await lease.grant("first")
    body = bytes(8 * 1024 * 1024)
    await store.put([an_entry(str(number), body=body, wait=0.0) for number in range(3)])
    print("holds", flush=True)
    rows = [(f"shop.charge/{number}", 3) for number in range(3)]
    try:
        while True:
            # Neither renewed nor given back: it is stopped in the middle of any of these.
            await store.take("shop", rows, grant=grant)
            await store.postpone("shop", rows, seconds=0.0, grant=grant)
    except LeaseLost as error:
        print(f"lost {error}", flush=True)
    await store.close()

asyncio.run(hold(sys.argv[1]))
"""


async def test_a_holder_that_is_stopped_in_the_middle_of_its_work_is_followed_and_can_do_nothing_once_it_goes_on(
    cluster: Cluster, open_store, schema: str
):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, f"{cluster.url}?schema={schema}"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert child.stdout is not None
    try:
        assert await asyncio.to_thread(child.stdout.readline) == "holds\n"
        store = await open_store()
        child.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        while not await store.lease("shop/retry").acquire_or_renew("second", 0.0, 30.0):
            assert time.monotonic() - started < 2.0
            await asyncio.sleep(0.05)
        child.send_signal(signal.SIGCONT)
        assert "second holds it, term 2" in await asyncio.to_thread(child.stdout.readline)
        assert await asyncio.to_thread(child.wait, 10) == 0
        assert await store.count_entries(Filter()) == 3
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


# ── Apps ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Hosts:
    """Instances of one app on one broker in memory and one store on the server, by the real time."""

    def __init__(self, url: str, folder) -> None:
        self.broker_url = f"memory://postgres-{uuid.uuid4().hex[:8]}"
        self.broker = MemoryBroker.named(self.broker_url.removeprefix("memory://"))
        self.url = url
        self.runs: Counter[str] = Counter()
        self.waited: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        self._settings = folder / "leveret.toml"
        self._settings.write_text('[retry_worker]\noverdue_rate = "none"\n')

    def app(self, *, delay: float = 1.0, ttl: float = 30.0, reached=None) -> Leveret:
        app = Leveret("shop", broker=self.broker_url, store=self.url, config=self._settings)
        world = replace(system_world(), reached=reached)
        app._stand = Stand(
            world=world,
            transport=lambda: MemoryTransport(self.broker, world=world),
            store=lambda: PostgresStore(self.url),
            knobs=lambda knobs: replace(knobs, lease_ttl=ttl, jitter=False),
        )

        @app.worker("order.placed")
        async def charge(ctx: Context) -> None:
            name = str(ctx.message_id)
            self.runs[name] += 1
            if ctx.attempt == 1:
                self._failed[name] = time.monotonic()
                raise SoftFailure("503", retry_after=delay)
            self.waited[name] = time.monotonic() - self._failed[name]

        return app


@pytest.fixture
def hosts(cluster: Cluster, schema: str, tmp_path) -> Hosts:
    return Hosts(f"{cluster.url}?schema={schema}", tmp_path)


@asynccontextmanager
async def running(*apps: Leveret, **options):
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(app.running(**options))
        yield


async def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.02)


def holding(apps: list[Leveret]) -> list[Leveret]:
    """Those that are at work."""
    return [app for app in apps if app._open.runner.retry_service.dispatch is not None]


def due_entries(number: int):
    """Rows that were due some seconds ago."""
    for each in range(number):
        properties = Properties.build(
            message_id=f"m-{each}", type="order.placed", headers={"leveret-attempt": 2}
        )
        yield an_entry(
            str(each),
            queue="shop.charge",
            wait=-5.0,
            body=b"{}",
            message_id=f"m-{each}",
            properties=properties.raw,
        )


async def test_c04_four_retry_workers_on_one_store_publish_each_of_10000_once(hosts: Hosts, open_store):
    store = await open_store()
    entries = list(due_entries(10_000))
    for start in range(0, len(entries), 500):
        await store.put(entries[start : start + 500])
    published: Counter[str | None] = Counter()
    apps = [hosts.app() for _ in range(4)]
    async with apps[0]:

        def note(message: Outgoing, queues) -> None:
            if "shop.charge" in queues:
                published[message.properties.message_id] += 1

        hosts.broker.on_publish.append(note)
        async with running(*apps, workers=[], keeper=False):
            await until(lambda: len(published) == 10_000)
            # Removed as well, or it would go again.
            await until(
                lambda: (
                    not any(app._open.runner.retry_service.dispatch.lines.under_way for app in holding(apps))
                )
            )
            assert await store.count_entries(Filter()) == 0
    assert set(published.values()) == {1}


async def test_what_a_standby_has_persisted_is_on_time(hosts: Hosts):
    apps = [hosts.app(delay=1.0) for _ in range(2)]
    async with running(*apps):
        services = [app._open.runner.retry_service for app in apps]
        await until(
            lambda: services[0].keeper.holds and all(service.intake.consuming for service in services)
        )
        stored = Counter()
        for number, service in enumerate(services):
            plain = service.intake.write

            async def write(entries, number=number, plain=plain):
                stored[number] += len(entries)
                return await plain(entries)

            service.intake.write = write
        for number in range(20):
            await apps[0].publish("order.placed", {"number": number})
        await until(lambda: len(hosts.waited) == 20)
    assert set(stored) == {0, 1}
    assert max(hosts.waited.values()) <= 1.5
    assert min(hosts.waited.values()) >= 0.99
    assert set(hosts.runs.values()) == {2}


async def test_c02_a_holder_whose_lease_cannot_be_renewed_publishes_nothing_and_afterwards_each_once(
    cluster: Cluster, hosts: Hosts
):
    app = hosts.app(delay=1.5, ttl=1.0)
    async with running(app):
        keeper = app._open.runner.retry_service.keeper
        await until(lambda: keeper.holds)
        for number in range(20):
            await app.publish("order.placed", {"number": number})
        await until(lambda: len(hosts.runs) == 20)
        store = app._open.parts.store
        for _ in range(500):
            if await store.count_entries(Filter()) == 20:
                break
            await asyncio.sleep(0.01)
        await asyncio.to_thread(cluster.stop)
        await until(lambda: not keeper.holds, 3.0)
        await asyncio.sleep(1.5)
        assert hosts.waited == {}
        await asyncio.to_thread(cluster.start)
        await until(lambda: len(hosts.waited) == 20)
    assert set(hosts.runs.values()) == {2}


async def test_b20_what_a_killed_holder_had_just_taken_is_published_by_the_next_within_a_lease(hosts: Hosts):
    claimed = asyncio.Event()

    async def reached(here: str, message_id: str | None) -> None:
        if here == handover.TAKEN_WHEN_DUE:
            claimed.set()
            await asyncio.Event().wait()

    one, two = hosts.app(delay=0.2, ttl=1.0, reached=reached), hosts.app(delay=0.2, ttl=1.0)
    async with one:
        # Never left: it ends by a kill.
        work = one.running()
        await work.__aenter__()
        await until(lambda: one._open.runner.retry_service.keeper.holds)
        await one.publish("order.placed", {})
        await asyncio.wait_for(claimed.wait(), 10.0)
        async with running(two):
            runner, one._open.runner = one._open.runner, None
            await runner.drop()
            killed = time.monotonic()
            await until(lambda: len(hosts.waited) == 1)
            # A lease, and a standby's look at it.
            assert time.monotonic() - killed < 1.0 + 0.5 + 0.5
    assert set(hosts.runs.values()) == {2}


async def test_a_standby_takes_over_within_a_second_of_a_clean_stop(hosts: Hosts):
    one, two = hosts.app(), hosts.app()
    async with one, two:
        first = one.running()
        await first.__aenter__()
        await until(lambda: one._open.runner.retry_service.keeper.holds)
        async with two.running():
            await first.__aexit__(None, None, None)
            stopped = time.monotonic()
            await until(lambda: two._open.runner.retry_service.keeper.holds)
            assert time.monotonic() - stopped < 1.0


async def test_what_fails_while_the_server_is_killed_again_and_again_comes_back_and_runs_once_more(
    cluster: Cluster, hosts: Hosts
):
    app = hosts.app(delay=0.3)
    over = asyncio.Event()
    published: list[str] = []

    async def publish() -> None:
        while not over.is_set():
            published.append(await app.publish("order.placed", {}))
            await asyncio.sleep(0.005)

    async with running(app):
        publishing = asyncio.create_task(publish())
        for _ in range(2):
            before = len(hosts.waited)
            await until(lambda before=before: len(hosts.waited) >= before + 50)
            await asyncio.to_thread(cluster.kill)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(cluster.start)
        over.set()
        await publishing
        await until(lambda: len(hosts.waited) == len(published))
        # The last ones are removed after they were run.
        await asyncio.wait_for(app._open.runner.until_idle(), 10.0)
    assert set(hosts.waited) == set(published)
    assert Counter(hosts.runs.values()) == {2: len(published)}


async def test_the_command_line_looks_into_the_store(cluster: Cluster, schema: str, open_store, tmp_path):
    url = f"{cluster.url}?schema={schema}"

    async def leveret(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "leveret.cli", *words, "--store", url, "--broker", "memory://"]
        return await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    missing = await leveret("store", "check")
    assert missing.returncode != 0
    assert f"no leveret schema {schema}" in missing.stdout + missing.stderr
    store = await open_store()
    await store.put([an_entry()])
    check = await leveret("store", "check", "--json")
    assert check.returncode == 0, check.stderr
    assert json.loads(check.stdout)["waiting"] == 1
    for words in (("store", "migrate"), ("status",), ("doctor",)):
        done = await leveret(*words)
        told = done.stdout + done.stderr
        assert "leveret:***@127.0.0.1" in told, told
        assert cluster.url.partition("//")[2].partition("@")[0] not in told
        assert "Traceback" not in told
    assert done.returncode == 0, told
