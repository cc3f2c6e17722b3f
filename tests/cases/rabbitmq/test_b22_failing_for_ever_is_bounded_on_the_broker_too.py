"""B22: a message that never succeeds is run as often as its policy says, and what goes back never spins.

From RabbitMQ 4.3 on a nack that requeues no longer counts as a delivery that failed, and a reject does; so what leveret
gives back goes by reject. (A handler that takes its process down: tests/torture/rabbitmq/test_deadly_message.py.)
"""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import needs_version, until

from leveret import Context, SoftFailure
from leveret.core.errors import StoreUnavailable
from leveret.runtime.world import system_world
from leveret.stores.sqlite import SqliteStore
from leveret.testing.transport_contract import Inbox
from leveret.transports.rabbitmq.transport import RabbitTransport


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
async def test_b22_with_three_retries_a_handler_that_always_fails_runs_four_times_and_is_dead(
    shop: Shop, queue_type: str
):
    app = shop.app()
    ran = []

    @app.worker("order.placed", queue_type=queue_type)
    async def charge(ctx: Context) -> None:
        ran.append(ctx.attempt)
        raise SoftFailure("503", retry_max=3)

    async with app, app.running(), asyncio.timeout(30):
        id = await app.publish("order.placed", {})
        while not (dead := await app.dead_letters.list()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
        assert ran == [1, 2, 3, 4]
        assert [(letter.message_id, letter.attempts) for letter in dead] == [(id, 4)]
        assert (await app.counts())[:3] == (0, 0, 0)


async def test_b22_while_the_store_is_away_it_is_redelivered_once_a_second_at_most(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    app = shop.app()
    ran = []

    # Each return to a quorum queue is counted.
    @app.worker("order.placed", queue_type="quorum")
    async def charge(ctx: Context) -> None:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise SoftFailure("503")

    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("the store is away")

    async with app, asyncio.timeout(30):
        with monkeypatch.context() as patch:
            for name in ("put", "upcoming", "take", "asked"):
                patch.setattr(SqliteStore, name, away)
            async with app.running():
                began = time.monotonic()
                await app.publish("order.placed", {})
                await until(lambda: ran)
                # A loop would run it hundreds of times in this.
                await asyncio.sleep(1)
                assert len(ran) <= 1 + (time.monotonic() - began)
        async with app.running():
            await until(lambda: 2 in ran)
            await shop.until_settled(app)


async def test_b22_on_4_3_what_leveret_gives_back_counts_as_failed_and_a_nack_would_not(shop: Shop):
    needs_version(
        shop.broker, 4, 3, why="there a nack that requeues does not count toward the delivery limit"
    )
    transport = RabbitTransport(shop.broker.url, world=system_world())
    await transport.open()
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    shop.channel.queue_declare(shop.name("charge"), durable=True, arguments=arguments)
    shop.channel.confirm_delivery()
    shop.send("charge", b"one")
    inbox = Inbox()
    await transport.consume(shop.name("charge"), inbox, prefetch=1)
    for number in range(3):
        deliveries = await inbox.until(number + 1)
        assert deliveries[number].properties.headers.get("x-delivery-count", 0) == number
        assert deliveries[number].requeue()
    await inbox.until(4)
    await transport.close()
    # Closing the channel gave it back once more.
    method = None
    while method is None:
        method, properties, _ = shop.channel.basic_get(shop.name("charge"))
    counted = properties.headers["x-delivery-count"]
    shop.channel.basic_nack(method.delivery_tag, requeue=True)
    method = None
    while method is None:
        method, properties, _ = shop.channel.basic_get(shop.name("charge"))
    assert properties.headers["x-delivery-count"] == counted
    assert properties.headers["x-acquired-count"] > counted
