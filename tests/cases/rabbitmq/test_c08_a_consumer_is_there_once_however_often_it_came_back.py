"""C08, D12: after twenty reconnects under load there is one consumer, with its prefetch, as there was before.

(A hundred and more, and what it costs in memory, are tried in the tests of outages.)
"""

from __future__ import annotations

import asyncio

from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_app import Load, QueueRow
from tests.rabbitmq_scene import until

from leveret import Context


async def test_c08_d12_after_20_cuts_under_load_there_is_one_consumer_and_no_more_unacked_than_its_prefetch(
    shop: Shop,
):
    app = shop.app(shutdown_grace=0)
    most = 0
    inside = 0
    go_on = asyncio.Event()

    @app.worker("order.placed", prefetch=3)
    async def charge(ctx: Context) -> None:
        nonlocal most, inside
        inside += 1
        most = max(most, inside)
        try:
            load.runs[ctx.message_id] += 1
            if go_on.is_set():
                await asyncio.sleep(0)
        finally:
            inside -= 1

    async with app, asyncio.timeout(60):
        load = Load(app, "order.placed", lanes=5)
        async with app.running():
            (consumer,) = app._open.runner.consumers
            for _ in range(20):
                await until(lambda: consumer.consuming)
                await shop.cut(app)
                await shop.until_connected(app)
            await until(lambda: consumer.consuming)
            assert shop.consumers("charge") == 1
            await load.stop()
            await until(lambda: not load.missing)
            # What a cut has made a copy of may still lie there.
            await shop.until_settled(app)
            assert most <= 3

        # Held still: as many as the prefetch are unacked, and the rest lies ready.
        stuck = shop.app(shutdown_grace=0)

        @stuck.worker("order.placed", prefetch=3)
        async def charge() -> None:
            await asyncio.Event().wait()

        async with stuck, stuck.running():
            for _ in range(3):
                await shop.cut(stuck)
                await shop.until_connected(stuck)
            for _ in range(10):
                await app.publish("order.placed", {})
            await shop.until_rows(charge=QueueRow(7, 3, 1))
