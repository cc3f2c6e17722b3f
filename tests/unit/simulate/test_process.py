"""A simulated process: its lives, and what is left of it after a kill."""

from __future__ import annotations

import asyncio
import random

import pytest

from leveret.proof.record import Taken
from leveret.simulate import roles
from leveret.simulate.loop import VirtualLoop
from leveret.simulate.process import Machine, Process
from leveret.simulate.run import quietly
from leveret.simulate.scene import SHOP, shop_asks


@pytest.fixture
def loop():
    with quietly():
        loop = VirtualLoop(random.Random(1))
        yield loop
        loop.close()


def machine(loop: VirtualLoop) -> Machine:
    return Machine(7, loop, SHOP, shared_store=True, queue_type=None)


def test_what_a_killed_process_had_in_hand_is_back_in_its_queue_and_its_next_life_takes_it(loop: VirtualLoop):
    shop = machine(loop)
    works = Process(shop, "works", roles.worker(works=True, retry_worker=False, keeper=False))
    share = roles.Share(shop_asks(7, 20))
    publishes = Process(shop, "publishes", roles.producer(share))
    seen: list[str] = []

    async def dies_at_once(process: Process, point: str) -> None:
        seen.append(process.by)
        process.kill()
        await asyncio.sleep(0.01)
        raise AssertionError("it went on")

    async def live() -> None:
        works.start()
        await asyncio.sleep(0.5)
        works.reached = dies_at_once
        publishes.start()
        await asyncio.sleep(5)
        assert not works.alive
        assert shop.broker.messages("shop.charge")
        works.reached = None
        works.start()
        await asyncio.sleep(60)

    loop.run_until_complete(live())
    assert seen == ["works 1"]
    assert share.done
    again = [event for event in shop.events if isinstance(event, Taken) and event.by == "works 2"]
    assert any(event.redelivered for event in again)
    assert not shop.broker.busy(lambda name: name in ("shop.charge", "shop.audit"))


def test_each_life_has_ids_of_its_own_and_the_same_again_under_the_same_seed(loop: VirtualLoop):
    async def nothing(_: Process) -> None:
        pass

    async def ids(process: Process) -> list[str]:
        found = []
        for _ in range(2):
            process.start()
            found += [process.world.new_id(), process.world.new_id()]
        return found

    one = loop.run_until_complete(ids(Process(machine(loop), "a", nothing)))
    assert len(set(one)) == 4
    assert loop.run_until_complete(ids(Process(machine(loop), "a", nothing))) == one
    assert not set(one) & set(loop.run_until_complete(ids(Process(machine(loop), "b", nothing))))
