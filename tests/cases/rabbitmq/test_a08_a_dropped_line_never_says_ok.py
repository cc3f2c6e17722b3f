"""A08: on a line that a proxy has dropped in silence a publish is confirmed or raises; it is never "ok" and gone."""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret.core.errors import PublishTimeout


async def test_a08_the_first_publish_after_the_line_went_dead_raises_and_can_be_sent_again_under_its_id(
    shop: Shop,
):
    app = shop.app(publish_timeout=0.5)

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    async with app, asyncio.timeout(30):
        await app.publish("order.placed", {}, id="before")
        shop.broker.proxy.swallow()
        with pytest.raises(PublishTimeout, match="Unknown whether it arrived") as caught:
            await app.publish("order.placed", {}, id="first")
        await shop.cut(app)
        shop.broker.proxy.hand_on()
        await shop.until_connected(app)
        assert await app.publish(caught.value.message) == "first"
        there = [shop.take("charge")[1].message_id for _ in range(shop.ready("charge"))]
    assert there == ["before", "first"]
