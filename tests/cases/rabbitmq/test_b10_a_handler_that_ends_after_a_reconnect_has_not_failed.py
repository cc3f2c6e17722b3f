"""B10: a handler ends after its connection was lost and made again: no failure is told, its message is done once."""

from __future__ import annotations

import asyncio
import logging

from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import Context


async def test_b10_no_dead_letter_no_retry_no_second_run_and_no_channel_closed_over_an_old_tag(
    shop: Shop, caplog
):
    caplog.set_level(logging.INFO, "leveret")
    app = shop.app()
    runs = []
    go_on = asyncio.Event()

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs.append(ctx.message_id)
        await go_on.wait()

    async with app, app.running(), asyncio.timeout(30):
        id = await app.publish("order.placed", {})
        await until(lambda: runs)
        await shop.cut(app)
        await shop.until_connected(app)
        (consumer,) = app._open.runner.consumers
        await until(lambda: consumer.consuming)
        accepted = shop.broker.proxy.accepted
        go_on.set()
        await shop.until_settled(app)
        # A 406 over an old tag would have ended the consumer.
        assert consumer.consuming
        assert shop.broker.proxy.accepted == accepted
        assert runs == [id]
    assert shop.ready("charge") == 0
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
