"""B04: under an alarm of the broker a publish ends by its deadline and says why; acks go on, close does not hang."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret.core.errors import PublishTimeout


async def test_b04_a_publish_says_blocked_by_an_alarm_consumers_ack_and_close_is_bounded(shop: Shop):
    app, other = shop.app(), shop.app()
    done = []
    go_on = asyncio.Event()

    @app.worker("order.placed")
    async def charge(order: bytes) -> None:
        await go_on.wait()
        done.append(order)

    async with app, asyncio.timeout(60):
        for number in range(3):
            await app.publish("order.placed", b"%d" % number)
        async with app.running():
            await other.open()
            await shop.broker.block()
            try:
                # A broker tells a connection that it is blocked once something is published on it.
                for publisher in (app, other):
                    with pytest.raises(PublishTimeout):
                        await publisher.publish("order.placed", b"3", timeout=0.3)
                with pytest.raises(PublishTimeout, match=r"blocked by an alarm of the broker"):
                    await app.publish("order.placed", b"4", timeout=0.3)
                go_on.set()
                await until(lambda: sorted(done) == [b"0", b"1", b"2"])
                await shop.until_unacked("charge", 0)
                started = time.monotonic()
                await other.close()
                assert time.monotonic() - started < 5
            finally:
                await shop.broker.unblock()
            await app.publish("order.placed", b"5")
            await until(lambda: b"5" in done)
