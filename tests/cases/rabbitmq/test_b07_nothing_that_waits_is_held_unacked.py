"""B07: what waits for its next try is in the store, not held unacked; a handler over the broker's limit makes no loop.

The node's consumer timeout is set to half a second, and looked at five times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_app import QueueRow
from tests.rabbitmq_scene import until

from leveret import Context, SoftFailure


async def test_b07_while_a_message_waits_ten_minutes_none_is_unacked_and_the_consumer_stays(
    shop: Shop, caplog
):
    await shop.set_limits(consumer_timeout=500, channel_tick_interval=200)
    try:
        app = shop.app()

        @app.worker("order.placed")
        async def charge() -> None:
            raise SoftFailure("503", retry_after=600)

        async with app, app.running(), asyncio.timeout(30):
            await app.publish("order.placed", {})
            await shop.until_stored(app)
            (consumer,) = app._open.runner.consumers
            await shop.until_rows(charge=QueueRow(0, 0, 1), retry=QueueRow(0, 0, 1))
            # Longer than the limit, and the next look after it.
            await asyncio.sleep(1)
            rows = await shop.rows()
            assert rows["charge"] == rows["retry"] == QueueRow(0, 0, 1)
            assert consumer.consuming
            assert (await app.counts()).waiting == 1
            assert not [message for message in caplog.messages if "is not consumed any more" in message]
    finally:
        await shop.set_limits(consumer_timeout=1_800_000, channel_tick_interval=60_000)


async def test_b07_a_handler_over_the_limit_is_told_once_is_not_run_in_a_loop_and_others_go_on(
    shop: Shop, caplog
):
    caplog.set_level(logging.WARNING, "leveret")
    await shop.set_limits(consumer_timeout=500, channel_tick_interval=200)
    try:
        app = shop.app()
        runs: Counter[bytes] = Counter()
        go_on = asyncio.Event()

        @app.worker("order.placed")
        async def charge(kind: bytes, ctx: Context) -> None:
            runs[kind] += 1
            if kind == b"slow":
                await go_on.wait()

        async with app, app.running(), asyncio.timeout(40):
            await app.publish("order.placed", b"slow")
            await until(lambda: any("consumer_timeout" in message for message in caplog.messages))
            for number in range(5):
                await app.publish("order.placed", b"quick %d" % number)
            await until(lambda: len(runs) == 6)
            # The process knows the message that comes back while its handler still runs.
            assert runs[b"slow"] == 1
            # One line for each time that the limit is over, and none between.
            assert sum("consumer_timeout" in message for message in caplog.messages) <= 20
            go_on.set()
            await shop.until_settled(app)
            assert runs[b"slow"] == 1
    finally:
        await shop.set_limits(consumer_timeout=1_800_000, channel_tick_interval=60_000)
