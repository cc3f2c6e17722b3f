"""A05: a message that came back again and again is not discarded by its quorum queue.

Before RabbitMQ 4.0 a quorum queue has no limit unless it is given one; from there on it has one of 20, unless it is
declared with -1, as leveret does. A queue with a limit and no dead-letter exchange is refused.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import Context
from leveret.core.errors import QueueMismatch


async def test_a05_after_25_returns_to_a_quorum_queue_the_message_is_still_worked_on(shop: Shop):
    app = shop.app(queue_type="quorum")
    ran = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append((ctx.message_id, ctx.attempt, dict(ctx.headers)))

    async with app, asyncio.timeout(30):
        id = await app.publish("order.placed", {})
        for number in range(25):
            method = None
            while method is None:
                method, properties, _ = shop.channel.basic_get(shop.name("charge"))
            assert (properties.headers or {}).get("x-delivery-count", 0) == number
            shop.channel.basic_reject(method.delivery_tag, requeue=True)
        async with app.running():
            await until(lambda: ran)
        # The broker's count is none of ours: it neither buries the message nor travels with it.
        assert ran == [(id, 1, {})]
        assert await app.counts() == (0, 0, 0, 0)


async def test_a05_a_queue_that_deletes_what_came_back_is_refused_with_the_remedy(shop: Shop):
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 20}
    shop.channel.queue_declare(shop.name("charge"), durable=True, arguments=arguments)
    app = shop.app(queue_type="quorum")

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    with pytest.raises(QueueMismatch) as caught:
        await app.open()
    assert all(part in str(caught.value) for part in (shop.name("charge"), "x-delivery-limit", "20"))
