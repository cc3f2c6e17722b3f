"""A11: a message's own time to live is taken off what waits and what is parked; waiting is done in our store."""

from __future__ import annotations

import asyncio
import time

import pika
from tests.cases.rabbitmq.shop import Shop

from leveret import Context, HardFailure, SoftFailure


async def test_a11_a_message_with_a_time_to_live_of_a_fifth_of_a_second_is_retried_after_a_whole_one(
    shop: Shop,
):
    app = shop.app()
    ran = []
    done = asyncio.Event()

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append((ctx.attempt, time.monotonic(), ctx.properties.expiration))
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=1)
        done.set()

    async with app, app.running(), asyncio.timeout(30):
        await app.publish("order.placed", {}, expiration=0.2)
        await done.wait()
    assert [(attempt, expiration) for attempt, _, expiration in ran] == [(1, "200"), (2, None)]
    assert 1.0 <= ran[1][1] - ran[0][1] < 3


async def test_a11_a_dead_letter_outlives_the_time_to_live_of_its_message(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge() -> None:
        raise HardFailure("410")

    async with app, app.running(keeper=False):
        await app.publish("order.placed", {}, expiration=0.2)
        await shop.until_ready("events.dlq", 1)
        # Published after it, with the same time to live: when it is gone, the letter's time would be over, too.
        shop.channel.queue_declare(shop.name("ship"), durable=True)
        shop.send("ship", b"", pika.BasicProperties(expiration="200"))
        await shop.until_ready("ship", 0)
        assert shop.ready("events.dlq") == 1
    _, properties = shop.take("events.dlq")
    assert properties.expiration is None
