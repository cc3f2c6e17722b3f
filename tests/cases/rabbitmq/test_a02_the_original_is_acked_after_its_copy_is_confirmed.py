"""A02: a failed message is acked once its envelope is confirmed and not returned; cut, nacked or returned, it is not.

(The process killed at each of these points is tried in the torture tests.)
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import Context, SoftFailure
from leveret.core import handover


@pytest.mark.parametrize("point", [handover.ENVELOPE_SENT, handover.ENVELOPE_CONFIRMED])
async def test_a02_where_the_line_is_cut_between_envelope_and_ack_the_message_is_done_all_the_same(
    shop: Shop, point: str
):
    cut = 0

    async def reached(here: str, message_id: str | None) -> None:
        nonlocal cut
        if here == point and not cut:
            cut += 1
            shop.broker.proxy.cut()
            # Until the loss of the connection has been read.
            await asyncio.sleep(0.02)

    app = shop.app(reached=reached)
    attempts = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        attempts.append((ctx.attempt, ctx.message_id))
        if ctx.attempt == 1:
            raise SoftFailure("503")

    async with app, asyncio.timeout(30):
        id = await app.publish("order.placed", {})
        await app.run(until_idle=True, signals=False)
        assert cut == 1
        # The outcome is remembered, so the handler did not run again; at most one copy more came of the cut.
        assert attempts[:2] == [(1, id), (2, id)]
        assert len(attempts) <= 3
        assert await app.counts() == (0, 0, 0, 0)


async def test_a02_a_nack_keeps_the_original_unacked_until_the_copy_is_taken(shop: Shop):
    # A full retry queue of another make answers with nacks.
    arguments = {"x-queue-type": "classic", "x-max-length": 1, "x-overflow": "reject-publish"}
    shop.channel.queue_declare(shop.name("retry"), durable=True, arguments=arguments)
    shop.send("retry", b"in the way")
    app = shop.app()
    runs = 0

    @app.worker("order.placed")
    async def charge() -> None:
        nonlocal runs
        runs += 1
        raise SoftFailure("503", retry_after=3600)

    async with app, asyncio.timeout(30):
        shop.listen(app)
        await app.publish("order.placed", {})
        async with app.running(retry_worker=False):
            await until(lambda: ("dlq_publish_failed", shop.name("retry")) in shop.alarms.holding)
            await shop.until_unacked("charge", 1)
            assert shop.take("retry")[0] == b"in the way"
            await shop.until_ready("retry", 1)
            await until(lambda: not shop.alarms.holding)
        assert runs == 1
        assert shop.ready("charge") == 0
        assert shop.take("retry")[1].headers["leveret-envelope"] == "soft-failure"
