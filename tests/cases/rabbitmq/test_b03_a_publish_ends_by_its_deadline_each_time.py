"""B03: while the broker is down every publish ends by its deadline, the fifth like the first; then the next works."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret.core.errors import PublishTimeout


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
