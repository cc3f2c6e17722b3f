"""Two processes on one SQLite file: how soon the standby takes over, and that nothing goes out twice or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.shell import Process
from tests.torture.test_killed_copy import opened

from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter, RetryEntry
from leveret.retry.lease import STANDBY_POLL

HERE = Path(__file__).parent
#: Seconds that a lease lasts here.
TTL = 1.5
#: Seconds that a busy machine may take to get to it.
SLACK = 0.5
NUMBER = 20
#: Seconds between two that fall due.
APART = 0.02


class Retrying(Process):
    """A process that works on the file, and what it has told."""

    def __init__(self, store: Path) -> None:
        call = [sys.executable, str(HERE / "standby_process.py"), str(store), str(TTL)]
        super().__init__(call, store.parent, dict(os.environ))

    def ran(self) -> list[str]:
        return [line["id"] for line in self.lines() if line["event"] == "ran"]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.told.splitlines()]

    def gained(self) -> float:
        """When it got the lease."""
        self.wait_for('"gained"')
        return next(line["at"] for line in self.lines() if line["event"] == "gained")


@pytest.fixture
def store(tmp_path) -> Path:
    return tmp_path / "leveret.db"


@pytest.fixture
def start(store) -> Iterator[Callable[[], Retrying]]:
    """Starts processes, which are gone at the end."""
    started: list[Retrying] = []

    def start() -> Retrying:
        started.append(Retrying(store))
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


def put_due(store: Path, *waits: float) -> None:
    """Write messages into the file, named by their numbers, which are due in so many seconds each."""

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
            await kept.put([entry(number, wait) for number, wait in enumerate(waits)])

    asyncio.run(put())


async def until_wait(store: Path, number: int) -> None:
    """Return when so many wait in the file; nobody tells when."""
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


def test_after_a_kill_the_standby_takes_over_once_the_lease_is_over_and_not_before(two, store):
    holder, standby = two
    put_due(store, *one_after_another(0.5))
    began = time.monotonic()
    holder.signal(signal.SIGKILL)
    # A third of it may have passed since it was renewed.
    assert TTL * 2 / 3 - 0.1 <= standby.gained() - began <= TTL + STANDBY_POLL + SLACK
    all_ran_once_in(standby)


def test_a_holder_stopped_for_longer_than_its_lease_publishes_nothing_when_it_goes_on(start, store):
    put_due(store, 0.0, *one_after_another(3.0)[1:])
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
