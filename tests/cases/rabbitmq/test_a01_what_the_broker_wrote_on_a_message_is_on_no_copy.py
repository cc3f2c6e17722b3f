"""A01: headers that belong to the broker are left off what goes back, and attempts are counted in one of ours.

A message comes in with a death on it, as the broker writes one. On newer brokers a copy that carries it is taken for a
dead-letter loop and dropped; a count built on it never rises. The queue is a quorum queue with a dead-letter exchange.
"""

from __future__ import annotations

import asyncio

import pika
from tests.cases.rabbitmq.shop import Shop

from leveret import Context, SoftFailure


async def test_a01_a_message_with_a_death_on_it_comes_back_four_times_without_and_attempts_are_counted(
    shop: Shop,
):
    app = shop.app(queue_type="quorum")
    seen = []
    done = asyncio.Event()

    @app.worker("order.placed", queue_arguments={"x-dead-letter-exchange": shop.name("events.dlq")})
    async def charge(body: bytes, ctx: Context) -> None:
        owned = sorted(name for name in ctx.headers if name.startswith("x-") and name != "x-mine")
        seen.append((ctx.attempt, owned, ctx.headers["x-mine"]))
        if ctx.attempt < 5:
            raise SoftFailure("503")
        done.set()

    queue = shop.name("charge")
    death = [{"queue": queue, "reason": "expired", "count": 1, "exchange": "", "routing-keys": [queue]}]
    headers = {
        "x-death": death, "x-first-death-queue": queue, "x-first-death-reason": "expired", "x-first-death-exchange": "",
        "x-last-death-queue": queue, "x-delivery-count": 3, "x-acquired-count": 3, "x-mine": "kept",
    }  # fmt: skip
    async with app, app.running(), asyncio.timeout(30):
        shop.send("charge", b"{}", pika.BasicProperties(headers=headers, message_id="one", delivery_mode=2))
        await done.wait()
        assert [attempt for attempt, *_ in seen] == [1, 2, 3, 4, 5]
        assert [owned for _, owned, _ in seen[1:]] == [[]] * 4
        assert {mine for *_, mine in seen} == {"kept"}
    assert shop.ready("charge") == shop.ready("retry") == shop.ready("events.dlq") == 0


async def test_a01_nor_does_a_death_that_the_broker_wrote_itself_travel_on(shop: Shop):
    app = shop.app(queue_type="quorum")
    seen = []
    done = asyncio.Event()

    @app.worker("order.placed")
    async def charge(body: bytes, ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.headers.get("x-death")))
        if ctx.attempt < 5:
            raise SoftFailure("503")
        done.set()

    # It expires in a queue of somebody else, and is dead-lettered to the worker's.
    shop.channel.queue_declare(
        shop.name("ship"), durable=True,
        arguments={
            "x-queue-type": "quorum", "x-message-ttl": 50, "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": shop.name("charge"),
        },
    )  # fmt: skip
    async with app, app.running(), asyncio.timeout(30):
        shop.channel.confirm_delivery()
        shop.send("ship", b"{}", pika.BasicProperties(message_id="one", delivery_mode=2))
        await done.wait()
    assert [attempt for attempt, _ in seen] == [1, 2, 3, 4, 5]
    ((death,), *copies) = [deaths for _, deaths in seen]
    assert (death["queue"], death["reason"]) == (shop.name("ship"), "expired")
    assert copies == [None] * 4


async def test_a01_nor_is_it_on_a_dead_letter(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge(body: bytes) -> None:
        raise SoftFailure("503", retry_max=0)

    async with app, app.running(keeper=False):
        death = [{"queue": shop.name("charge"), "reason": "rejected", "count": 7}]
        shop.send("charge", b"{}", pika.BasicProperties(headers={"x-death": death, "x-mine": 1}))
        await shop.until_ready("events.dlq", 1)
    _, properties = shop.take("events.dlq")
    assert "x-death" not in properties.headers
    assert properties.headers["x-mine"] == 1
