"""B03: while the broker is down every publish ends by its deadline, the fifth like the first; then the next works."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until
from tests.sync_scene import SyncScene

from leveret.core.errors import PublishTimeout
from leveret.sync import TransportHealth, TransportUnavailableError


async def test_b03_five_publishes_while_the_broker_is_down_each_raise_in_time_and_the_next_one_after_it_works(
    shop: Shop,
):
    app = shop.app()

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    async with app, asyncio.timeout(60):
        await shop.broker.stop()
        try:
            await until(lambda: app._open.parts.transport.state != "connected")
            for _ in range(5):
                started = time.monotonic()
                with pytest.raises(PublishTimeout, match="was not sent") as caught:
                    await app.publish("order.placed", {}, id="one", timeout=0.5)
                assert 0.4 < time.monotonic() - started < 1
                assert "guest:guest" not in str(caught.value)
        finally:
            await shop.broker.start()
        assert await app.publish(caught.value.message) == "one"
        assert shop.ready("charge") == 1


async def test_b03_a_thread_hears_it_in_time_each_time_too_and_publishes_once_the_broker_is_there(shop: Shop):
    async with SyncScene(shop.broker) as scene:
        transport = scene.transport(timeout=0.5)
        queue = scene.queue("all")
        await asyncio.to_thread(transport.publish_event, "a.b", {"n": 0})
        await shop.broker.stop()
        try:
            for number in range(1, 6):
                started = time.monotonic()
                with pytest.raises(TransportUnavailableError, match=r"(?s)a\.b") as caught:
                    await asyncio.to_thread(transport.publish_event, "a.b", {"n": number})
                assert time.monotonic() - started < 2.6
                assert "guest:guest" not in str(caught.value)
        finally:
            await shop.broker.start()
        await until(lambda: transport.health() is TransportHealth.CONNECTED)
        await asyncio.to_thread(transport.publish_event, "a.b", {"n": 9})
        assert {payload["n"] for _, payload in scene.take(queue)} >= {0, 9}
