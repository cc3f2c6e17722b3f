"""Ordered workers on quorum queues: the broker's count has lost connections in it, that of the store has not (P12)."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.running_app import FailingStore, RunningApp

from leveret import Leveret
from leveret.core.retry_entry import Filter
from leveret.testing import TestLeveret
from leveret.testing.fake_clock import idle


def vault(handler):
    app = Leveret("shop", broker="memory://", store="memory://", queue_type="quorum")
    app.worker("order.placed", prefetch=1, name="vault")(handler)
    return app


async def test_a_message_whose_connection_was_lost_ten_times_is_no_suspect_when_its_process_dies():
    runs = []
    may_end = asyncio.Event()

    async def handler(order: dict) -> None:
        runs.append(order["id"])
        await may_end.wait()

    async with TestLeveret(vault(handler)) as t:
        await t.app.publish("order.placed", {"id": 1})
        settle, t.clock.settle = t.clock.settle, None
        for _ in range(10):
            t.broker.drop_connections()
            await t.clock.advance(31)
        t.clock.settle = settle
        assert runs == [1]
        may_end.set()
        await t.crash()
        assert runs == [1, 1]
        assert t.dead() == []


async def test_a_message_that_kills_its_process_each_time_is_dead_after_five_starts():
    runs = []

    async def handler(order: dict) -> None:
        runs.append(order["id"])
        await asyncio.get_running_loop().create_future()

    async with TestLeveret(vault(handler)) as t:
        await t.app.publish("order.placed", {"id": 1})
        for _ in range(4):
            await idle()
            await t._die()
            await t._begin()
        await idle()
        await t.crash()
        assert runs == [1] * 5
        [letter] = t.dead()
        assert "worker died" in letter.reason


@pytest.mark.parametrize(("returns", "ran"), [(4, [1]), (5, [])])
async def test_where_the_store_keeps_nothing_the_brokers_count_bounds_the_starts(returns, ran):
    runs = []

    async def handler(order: dict) -> None:
        runs.append(order["id"])

    t = RunningApp(vault(handler))
    t.store = FailingStore(clock=t.clock)
    await t.outside.open()
    t.broker.declare_queue("shop.vault", {"x-queue-type": "quorum"})
    await t.send("shop.vault", b'{"id": 1}', message_id="one")
    for _ in range(returns):
        (await t.outside.get("shop.vault")).requeue()
    async with t:
        assert runs == ran
        assert await t.store.count_letters(Filter(namespace="shop")) == 1 - len(ran)
