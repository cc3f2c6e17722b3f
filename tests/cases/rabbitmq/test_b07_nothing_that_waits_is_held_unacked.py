"""B07: what waits for its next try is in the store, not held unacked; a handler over the broker's limit makes no loop.

The node's consumer timeout is set to half a second, and looked at five times a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_app import QueueRow
from tests.rabbitmq_scene import late_is_told_on, until

from leveret import Context, Message, SoftFailure


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


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_b07_a_handler_over_the_limit_is_told_once_is_not_run_in_a_loop_and_others_go_on(
    shop: Shop, caplog, kind
):
    late_is_told_on(shop.broker, kind)
    caplog.set_level(logging.WARNING, "leveret")
    await shop.set_limits(consumer_timeout=500, channel_tick_interval=200)
    try:
        app = shop.app()
        runs: Counter[bytes] = Counter()
        go_on = asyncio.Event()

        @app.worker("order.placed", queue_type=kind)
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


async def test_b07_on_quorum_queues_the_limit_leaves_no_message_stuck_and_buries_none(shop: Shop):
    late_is_told_on(shop.broker, "quorum")
    await shop.set_limits(consumer_timeout=500, channel_tick_interval=200)
    try:
        app = shop.app(queue_type="quorum")
        starts: Counter[tuple[str, bytes]] = Counter()

        async def handle(order: bytes, ctx: Context) -> None:
            starts[ctx.worker, order] += 1
            if order == b"0":
                consumers = app._open.runner.consumers
                (consumer,) = (each for each in consumers if each.road.spec.name == ctx.worker)
                # Once in hand, once as the redelivery of what is in hand.
                for _ in range(2):
                    lost = consumer._subscription._channel
                    await until(lambda lost=lost: consumer._subscription._channel not in {lost, None})

        # The others of its prefetch are held for longer than the limit as well, and never started meanwhile.
        @app.worker("order.placed", prefetch=4, concurrency=1)
        async def charge(order: bytes, ctx: Context) -> None:
            await handle(order, ctx)

        @app.worker("order.placed", prefetch=1)
        async def ship(order: bytes, ctx: Context) -> None:
            await handle(order, ctx)

        async with app, asyncio.timeout(40):
            for number in range(6):
                # Such a queue sorts the headers of what comes back.
                await app.publish(
                    Message("order.placed", b"%d" % number, headers={"zeal": number, "area": "north"})
                )
            async with app.running():
                await until(lambda: len(starts) == 12)
                await shop.until_settled(app)
                await shop.until_rows(
                    **{name: QueueRow(0, 0, 1) for name in ("charge", "ship")},
                    **{f"{name}.suspects": QueueRow(0, 0, 0) for name in ("charge", "ship")},
                )
        # The one over the limit is known here when it comes back; the others were never started before.
        assert set(starts.values()) == {1}
    finally:
        await shop.set_limits(consumer_timeout=1_800_000, channel_tick_interval=60_000)
