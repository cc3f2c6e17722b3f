"""B06: a plain handler that runs for three heartbeats costs no connection; an async one that blocks is named."""

from __future__ import annotations

import asyncio
import logging
import time

from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until


async def test_b06_a_plain_handler_of_three_heartbeats_runs_once_on_one_connection(shop: Shop):
    app = shop.app(query="?heartbeat=1")
    runs = []

    @app.worker("order.placed")
    def charge() -> None:
        runs.append("begun")
        time.sleep(3.2)
        runs.append("done")

    async with app, app.running(), asyncio.timeout(30):
        accepted = shop.broker.proxy.accepted
        await app.publish("order.placed", {})
        await until(lambda: "done" in runs)
        await until(lambda: not app._open.runner.in_hand)
        assert shop.broker.proxy.accepted == accepted
        assert runs == ["begun", "done"]
        assert shop.ready("charge") == 0


async def test_b06_an_async_handler_that_blocks_the_loop_is_named_and_its_message_is_not_run_for_ever(
    shop: Shop, caplog
):
    caplog.set_level(logging.WARNING, "leveret")
    app = shop.app(query="?heartbeat=1")
    runs = []

    @app.worker("order.placed")
    async def charge_by_mistake() -> None:
        runs.append(1)
        # It is named once three seconds are over.
        time.sleep(5)

    async with app, app.running(), asyncio.timeout(60):
        await app.publish("order.placed", {})
        await until(lambda: runs)
        await shop.until_settled(app)
    assert len(runs) <= 2
    told = [
        record.getMessage() for record in caplog.records if getattr(record, "action", "") == "loop_blocked"
    ]
    assert len(told) == len(runs)
    assert all("charge_by_mistake" in message for message in told)
