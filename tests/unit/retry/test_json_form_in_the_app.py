"""What other programs put into the retry queue in the JSON form: to the worker's queue, else through the exchange."""

from __future__ import annotations

import asyncio
import json

import pytest

from leveret import Leveret
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Binding, Queue, RMQExchangeConfig, Topology
from leveret.runtime.opening import Stand
from leveret.stores.memory import MemoryStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker

EVENTS = RMQExchangeConfig("shop.events")


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        world = fake_world(clock=self.clock)
        self.broker = MemoryBroker()
        self.outside = MemoryTransport(self.broker, world=world)
        self.app = Leveret("shop", broker="memory://", store="memory://")
        self.app._stand = Stand(
            world=world,
            transport=lambda: MemoryTransport(self.broker, world=world),
            store=lambda: MemoryStore(clock=self.clock),
        )

    async def queue(self, name: str, key: str | None = None) -> None:
        bindings = () if key is None else (Binding("shop.events", name, key),)
        await self.outside.declare(Topology(exchanges=(EVENTS,), queues=(Queue(name),), bindings=bindings))

    async def fail(self, **more) -> None:
        message = {"data_type": "page", "_replay_routing_key": "page", "retry": {"count": 1, "after": 5}}
        outer = {"data_type": "soft-failure", "data": message, "origin": {"type": "parser"}} | more
        body = outer["body"] if "body" in outer else json.dumps(outer).encode()
        await self.outside.send(Outgoing("", "shop.retry", body, Properties.build()))

    async def count(self, queue: str) -> int:
        state = await self.outside.queue_state(queue)
        return 0 if state is None else state.ready


@pytest.fixture
async def scene():
    scene = Scene()
    await scene.outside.open()
    running = asyncio.create_task(scene.app.run(signals=False))
    await scene.clock.advance(1)
    yield scene
    running.cancel()
    await scene.clock.advance(60)
    await asyncio.wait([running])
    await scene.outside.close()


async def test_it_goes_to_the_queue_that_failed_it_and_to_no_other(scene):
    await scene.queue("shop.events.parser", "page")
    await scene.queue("other", "page")
    await scene.fail()
    await scene.clock.advance(4)
    assert await scene.app.retries.count() == 1
    await scene.clock.advance(2)
    assert (await scene.count("shop.events.parser"), await scene.count("other")) == (1, 0)
    assert await scene.app.retries.count() == 0


async def test_where_that_queue_is_missing_it_goes_through_the_exchange(scene):
    await scene.queue("other", "page")
    await scene.fail()
    await scene.clock.advance(6)
    assert await scene.count("other") == 1
    assert await scene.app.retries.count() == 0


async def test_where_neither_takes_it_it_waits_and_goes_when_one_of_them_does(scene):
    await scene.fail()
    await scene.fail()
    await scene.clock.advance(8)
    assert await scene.app.retries.count() == 2
    await scene.queue("other", "page")
    await scene.clock.advance(10)
    assert await scene.count("other") == 2
    assert await scene.app.retries.count() == 0


async def test_an_envelope_that_cannot_be_read_is_a_dead_letter_and_the_next_is_taken(scene):
    await scene.queue("shop.events.parser")
    await scene.fail(data=[])
    await scene.fail(body=b"{")
    await scene.fail()
    await scene.clock.advance(6)
    assert await scene.count("shop.events.parser") == 1
    assert await scene.app.dead_letters.count() == 2
