"""D12: a prefetch of 0, which is no limit on one queue and 2 000 on another, is refused; what AMQP can say is set.

(That it is set again after each reconnect is tried with C08.)
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_app import QueueRow

from leveret.core.errors import WorkerDefinition


@pytest.mark.parametrize("prefetch", [0, -1, 65_536, True, 1.5])
def test_d12_it_is_refused_where_the_worker_is_declared(shop: Shop, prefetch: object):
    with pytest.raises(WorkerDefinition, match="prefetch="):
        shop.app().worker("order.placed", name="charge", prefetch=prefetch)(lambda: None)


@pytest.mark.parametrize(("prefetch", "queue_type"), [(1, "classic"), (1, "quorum"), (65_535, "classic")])
async def test_d12_so_many_are_unacked_and_no_more(shop: Shop, prefetch: int, queue_type: str):
    app = shop.app(shutdown_grace=0)

    @app.worker("order.placed", prefetch=prefetch, concurrency=1, queue_type=queue_type)
    async def charge() -> None:
        await asyncio.Event().wait()

    async with app, app.running(), asyncio.timeout(30):
        for _ in range(5):
            await app.publish("order.placed", {})
        await shop.until_ready("charge", 5 - min(prefetch, 5))
        await shop.until_rows(charge=QueueRow(5 - min(prefetch, 5), min(prefetch, 5), 1))
