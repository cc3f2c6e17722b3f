"""A18: messages are persistent unless somebody asks for less; ten by default survive the broker's restart."""

from __future__ import annotations

import asyncio

from tests.cases.rabbitmq.shop import Shop

from leveret import Context, Message


async def test_a18_ten_messages_by_default_are_there_after_a_restart_and_one_that_was_asked_to_be_transient_is_not(
    shop: Shop,
):
    app = shop.app()
    ran = []
    done = asyncio.Event()

    # A quorum queue keeps whatever it has.
    @app.worker("order.placed", queue_type="classic")
    async def charge(ctx: Context) -> None:
        ran.append((ctx.message_id, ctx.properties.delivery_mode))
        if len(ran) == 10:
            done.set()

    async with app, asyncio.timeout(60):
        ids = [await app.publish("order.placed", {}) for _ in range(10)]
        await app.publish(Message("order.placed", {}, persistent=False))
        assert shop.ready("charge") == 11
        await shop.broker.stop()
        await shop.broker.start()
        await shop.until_connected(app)
        assert shop.ready("charge") == 10
        async with app.running():
            await done.wait()
    assert sorted(ran) == sorted((id, 2) for id in ids)
