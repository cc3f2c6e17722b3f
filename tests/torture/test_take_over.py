"""Processes on one store: how soon a standby takes over, and that nothing goes out twice or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.shell import Process
from tests.postgres_cluster import Cluster

from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter, RetryEntry
from leveret.core.urls import parse_store
from leveret.ports import Store
from leveret.retry.lease import STANDBY_POLL
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world

HERE = Path(__file__).parent
#: Seconds that a lease lasts here.
TTL = 1.5
#: Seconds that a busy machine may take to get to it.
SLACK = 1.5
NUMBER = 20
MANY = 10_000
#: Seconds between two that fall due.
APART = 0.02


class Retrying(Process):
    """A process that works on the store, and what it has told."""

    def __init__(self, store: str, folder: Path) -> None:
        call = [sys.executable, str(HERE / "standby_process.py"), store, str(TTL)]
        super().__init__(call, folder, dict(os.environ))

    def ran(self) -> list[str]:
        return [line["id"] for line in self.lines() if line["event"] == "ran"]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told.splitlines()]

    def gained(self) -> float:
        """When it got the lease."""
        self.wait_for('"gained"')
        return next(line["at"] for line in self.lines() if line["event"] == "gained")


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    if request.param == "postgres":
        cluster: Cluster = request.getfixturevalue("postgres")
        return f"{cluster.url}?schema={cluster.schema()}"
    if request.param == "mongodb":
        return str(request.getfixturevalue("mongodb_url"))
    return f"sqlite:///{tmp_path}/leveret.db"


@pytest.fixture
def start(store: str, tmp_path: Path) -> Iterator[Callable[[], Retrying]]:
    """Starts processes, which are gone at the end."""
    started: list[Retrying] = []

    def start() -> Retrying:
        started.append(Retrying(store, tmp_path))
        return started[-1]

    yield start
    for process in started:
        # A stopped one does not end.
        process.signal(signal.SIGCONT)
        process.clean_up()


@pytest.fixture
def two(start) -> tuple[Retrying, Retrying]:
    """The holder of the lease, and a standby."""
    holder = start()
    holder.wait_for('"gained"')
    standby = start()
    standby.wait_for('"runs"')
    return holder, standby


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """The store of that URL, open within the block."""
    store = make_store(parse_store(url, "the test"), system_world())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def put_due(store: str, *waits: float) -> None:
    """Write messages into the store, named by their numbers, which are due in so many seconds each."""

    def entry(number: int, wait: float) -> RetryEntry:
        id = f"order-{number}"
        return RetryEntry(
            namespace="shop", key=f"shop.events/order.placed/{id}", retry_id=id, message_id=id, kind="delayed",
            exchange="shop.events", routing_key="order.placed", through_exchange=True, type="order.placed",
            wait=wait, body=b"{}",
            properties=Properties.build(message_id=id, type="order.placed", content_type="application/json").raw,
        )  # fmt: skip

    async def put() -> None:
        async with opened(store) as kept:
            entries = [entry(number, wait) for number, wait in enumerate(waits)]
            for begin in range(0, len(entries), 500):
                await kept.put(entries[begin : begin + 500])

    asyncio.run(put())


async def until_wait(store: str, number: int) -> None:
    """Return when so many wait in the store; nobody tells when."""
    async with opened(store) as kept:
        while await kept.count_entries(Filter(namespace="shop")) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def one_after_another(first: float) -> list[float]:
    return [first + number * APART for number in range(NUMBER)]


def all_ran_once_in(process: Retrying, *others: Retrying) -> None:
    """All have run, each once, and the last one in *process*."""
    process.wait_for(f'"order-{NUMBER - 1}"')
    assert Counter(id for each in (process, *others) for id in each.ran()) == Counter(
        f"order-{number}" for number in range(NUMBER)
    )


def test_after_a_clean_stop_the_standby_takes_over_within_a_second(two, store):
    holder, standby = two
    put_due(store, *one_after_another(0.5))
    began = time.monotonic()
    assert holder.stop() == 0
    assert standby.gained() - began <= 1.0
    all_ran_once_in(standby)


def test_b31_after_a_kill_the_standby_takes_over_once_the_lease_is_over_and_not_before(two, store):
    holder, standby = two
    put_due(store, *one_after_another(0.5))
    began = time.monotonic()
    holder.signal(signal.SIGKILL)
    # A third of it may have passed since it was renewed.
    assert TTL * 2 / 3 - 0.1 <= standby.gained() - began <= TTL + STANDBY_POLL + SLACK
    all_ran_once_in(standby)


# On the other stores as well, on RabbitMQ: tests/torture/rabbitmq/test_paused_leader.py.
@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_holder_stopped_for_longer_than_its_lease_publishes_nothing_when_it_goes_on(start, store):
    put_due(store, 0.0, *one_after_another(5.0)[1:])
    holder = start()
    # It has loaded what is due soon, and has nothing in hand.
    holder.wait_for('"order-0"')
    asyncio.run(until_wait(store, NUMBER - 1))
    holder.signal(signal.SIGSTOP)
    standby = start()
    standby.wait_for('"order-9"')
    holder.signal(signal.SIGCONT)
    holder.wait_for('"lost"')
    all_ran_once_in(standby, holder)
    assert holder.stop() == 0
    assert holder.ran() == ["order-0"]


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_c04_of_four_processes_on_one_file_one_publishes_and_each_of_10000_goes_once(start, store):
    put_due(store, *[5.0] * MANY)
    four = [start() for _ in range(4)]
    for process in four:
        process.wait_for('"runs"')
    asyncio.run(until_wait(store, 0))
    # What is published and has not begun ends with a process, as its broker is in its memory.
    while sum(process.told.count('"ran"') for process in four) < MANY:
        time.sleep(0.05)
    ran = [process.ran() for process in four if process.stop() == 0]
    assert [len(each) for each in sorted(ran, key=len)] == [0, 0, 0, MANY]
    assert len(set(max(ran, key=len))) == MANY
