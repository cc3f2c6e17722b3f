"""B02: a consumer whose queue is deleted comes back: ours is declared again, another's is waited for without haste."""

from __future__ import annotations

import asyncio
import uuid

from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_app import QueueRow
from tests.rabbitmq_scene import until

from leveret.core.urls import parse_broker
from leveret.runtime.world import system_world
from leveret.testing.transport_contract import Inbox
from leveret.transports.rabbitmq.transport import RabbitTransport


async def test_b02_a_queue_of_ours_is_back_with_its_binding_and_its_consumer(shop: Shop):
    app = shop.app()
    done = []

    @app.worker("order.placed")
    async def charge(order: bytes) -> None:
        done.append(order)

    async with app, app.running(), asyncio.timeout(30):
        await app.publish("order.placed", b"1")
        await until(lambda: done == [b"1"])
        accepted = shop.broker.proxy.accepted
        shop.channel.queue_delete(shop.name("charge"))
        await shop.until_rows(charge=QueueRow(0, 0, 1))
        await app.publish("order.placed", b"2")
        await until(lambda: done == [b"1", b"2"])
        assert shop.consumers("charge") == 1
        assert shop.broker.proxy.accepted == accepted


async def test_b02_a_queue_of_somebody_else_is_consumed_as_it_is_once_it_is_back_and_not_asked_for_in_a_loop(
    shop: Shop,
):
    queue = f"theirs-{uuid.uuid4().hex[:8]}"
    shop.channel.queue_declare(queue, durable=True)
    transport = RabbitTransport(parse_broker(shop.url(), "the test"), world=system_world())
    await transport.open()
    inbox = Inbox(ack=True)
    subscription = await transport.consume(queue, inbox, prefetch=1)
    channels = {channel.channel_number for channel in transport._consuming.connection._channels.values()}
    shop.channel.queue_delete(queue)
    await until(lambda: not subscription.active)
    # Ten times as long as a loop without a pause would need for hundreds of tries.
    await asyncio.sleep(0.5)
    assert len(transport._consuming.connection._channels) <= len(channels) + 1
    shop.channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 5})
    shop.channel.basic_publish("", queue, b"one")
    assert (await inbox.until(1))[0].body == b"one"
    assert subscription.active
    await transport.close()
    shop.channel.queue_delete(queue)
