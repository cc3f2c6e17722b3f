"""B01: after any outage the consumers are back, one for each that is configured, and what piled up is worked off.

A few rounds of each kind here; fifty cuts under load are among the tests of outages.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until
from tests.sync_scene import SyncScene


async def cut(shop: Shop) -> None:
    shop.broker.proxy.cut()


async def closed_by_an_operator(shop: Shop) -> None:
    # Our own connection goes along.
    shop.broker.close()
    await asyncio.to_thread(shop.broker.node.ctl, "close_all_connections", "maintenance")


async def half_open(shop: Shop) -> None:
    accepted = shop.broker.proxy.accepted
    shop.broker.proxy.swallow()
    # The heartbeat finds out, and what is swallowed includes the new attempts.
    await until(lambda: shop.broker.proxy.accepted > accepted)
    shop.broker.proxy.hand_on()
    shop.broker.proxy.cut()


async def restarted(shop: Shop) -> None:
    await shop.broker.stop()
    await shop.broker.start()


@pytest.mark.parametrize(
    ("outage", "rounds"), [(cut, 3), (closed_by_an_operator, 3), (half_open, 1), (restarted, 2)]
)
async def test_b01_after_the_outage_each_consumer_is_there_once_and_the_backlog_drains(
    shop: Shop, outage, rounds
):
    app = shop.app(query="?heartbeat=1" if outage is half_open else "")
    done: set[bytes] = set()

    @app.worker("order.placed")
    async def charge(order: bytes) -> None:
        done.add(order)

    @app.worker("order.placed")
    async def ship(order: bytes) -> None:
        pass

    async with app, app.running(), asyncio.timeout(90):
        for number in range(rounds):
            accepted = shop.broker.proxy.accepted
            await outage(shop)
            await until(lambda accepted=accepted: shop.broker.proxy.accepted >= accepted + 2)
            await shop.until_connected(app)
            await app.publish("order.placed", b"%d" % number)
            await until(lambda number=number: b"%d" % number in done)
        await until(lambda: all(consumer.consuming for consumer in app._open.runner.consumers))
        assert [shop.consumers(queue) for queue in ("charge", "ship")] == [1, 1]
        await shop.until_ready("charge", 0)


@pytest.mark.parametrize("outage", [cut, closed_by_an_operator])
async def test_b01_the_loops_of_threads_are_there_once_after_the_outage_too(shop: Shop, outage):
    async with SyncScene(shop.broker) as scene:
        transport = scene.transport(timeout=10)
        queues = [scene.name("momentum"), scene.name("reversal")]
        done: set[tuple[str, int]] = set()
        for queue in queues:
            scene.loop(
                transport.consume_events_forever, queue, "price.*",
                lambda _, event, queue=queue: done.add((queue, event["n"])),
            )  # fmt: skip
            await scene.consumed(queue)
        await outage(shop)
        await asyncio.to_thread(transport.publish_event, "price.a", {"n": 1})
        await until(lambda: done == {(queue, 1) for queue in queues})
        for queue in queues:
            await scene.consumed(queue)
