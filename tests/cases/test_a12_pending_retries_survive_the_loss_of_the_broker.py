"""A12: what waits for its next try lies in the store, not in the broker, and outlives the broker's whole data.

1,000 messages fail and wait for 60 s. Meanwhile the broker goes down and comes back with nothing: no exchange, no
queue, no message. Leveret declares again what it needs, and all 1,000 arrive.
"""

from __future__ import annotations

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, Message, SoftFailure
from leveret.testing import TestLeveret
from leveret.transports.memory import MemoryBroker

NUMBER = 1_000


@pytest.fixture
def arrived():
    return []


@pytest.fixture
def app(arrived):
    app = Leveret("shop")

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=60)
        arrived.append(order["id"])

    return app


def orders():
    return [Message("order.placed", {"id": number}) for number in range(NUMBER)]


async def test_a12_a_broker_that_comes_back_empty_gets_every_pending_retry(app, arrived):
    async with TestLeveret(app) as t:
        await app.publish_many(orders())
        await t.advance()
        assert len(t.waiting("charge")) == NUMBER
        assert all(queue.ready == queue.unsettled == 0 for queue in t.broker.snapshot().values())

        t.broker.stop()
        for queue in t.broker.snapshot():
            t.broker.delete_queue(queue)
        for exchange in ("shop.events", "shop.observer", "shop.events.dlq"):
            t.broker.delete_exchange(exchange)
        t.broker.start()

        await t.advance(seconds=59.999)
        assert arrived == []
        await t.advance(seconds=0.001)
        assert sorted(arrived) == list(range(NUMBER))


async def test_a12_so_does_another_broker_that_another_process_finds(app, arrived, tmp_path):
    scene = Scene(tmp_path / "leveret.db")
    async with scene.host(app).running():
        await app.publish_many(orders())
        await scene.advance()

    scene.broker = MemoryBroker()
    async with app.running():
        assert (await app.counts()).waiting == NUMBER
        await scene.advance(59.9)
        assert arrived == []
        await scene.advance(1.1)
        assert sorted(arrived) == list(range(NUMBER))
        assert await app.counts() == (0, 0, 0, 0)
