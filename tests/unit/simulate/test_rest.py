"""What is under way on a simulated machine, and what may stay."""

from __future__ import annotations

import asyncio
import random

import pytest

from leveret.core.retry_entry import RetryEntry
from leveret.ports import Acknowledged, Act
from leveret.simulate.loop import VirtualLoop
from leveret.simulate.process import Machine
from leveret.simulate.rest import UnderWay
from leveret.simulate.run import quietly
from leveret.simulate.scene import SHOP


@pytest.fixture
def machine():
    with quietly():
        loop = VirtualLoop(random.Random(1))
        yield Machine(7, loop, SHOP, shared_store=True, queue_type=None)
        loop.close()


def test_what_is_due_is_under_way_and_what_is_held_or_due_later_is_not(machine: Machine):
    async def live() -> None:
        store = machine.store.store()
        await store.open()
        waits = {"due": 3.0, "later": 9.0, "held": 1.0}
        await store.put(
            [RetryEntry(namespace="shop", key=key, wait=wait, body=b"") for key, wait in waits.items()]
        )
        await store.hold([("shop", "held")], held=True)
        await asyncio.sleep(5)

    machine.loop.run_until_complete(live())
    under_way, now = UnderWay(machine), machine.loop.time()
    assert under_way.nothing(now - 3)
    assert not under_way.nothing(now)
    assert [entry.key for entry in under_way.entries(now)] == ["due"]
    assert [str(fault) for fault in under_way.told(now, [], [])] == [
        "rest: due waits in the retry store (waiting), and was due 2.0 s ago"
    ]


def test_what_was_asked_for_is_under_way_until_it_is_done(machine: Machine):
    under_way = UnderWay(machine)

    async def live() -> None:
        store = machine.store.store()
        await store.open()
        await store.ask(Act(id="a", namespace="shop", verb="dead.replay", arguments={}, asked_at=0.0))
        assert not under_way.nothing(0.0)
        await store.report("a", Acknowledged("host/1", 1, 0, (), finished=False))
        assert [fault.told for fault in under_way.told(0.0, [], [])] == [
            "dead.replay (a) was asked for, and is not done"
        ]
        await store.report("a", Acknowledged("host/1", 1, 1, (), finished=True))
        assert under_way.nothing(0.0)

    machine.loop.run_until_complete(live())
