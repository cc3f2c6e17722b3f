"""B25: of fifty good publishes and five to a missing exchange the five get the broker's 404; nobody else notices."""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import RMQExchangeConfig
from leveret.core.errors import PublishRefused


async def test_b25_fifty_are_confirmed_five_refused_with_a_404_and_the_consumer_goes_on(shop: Shop):
    app, lost = shop.app(), shop.app(exchange=RMQExchangeConfig(shop.name("gone")))
    done = set()

    @app.worker("order.placed")
    async def charge(order: bytes) -> None:
        done.add(order)

    async with app, app.running(), lost, asyncio.timeout(30):
        # Both publish on one connection, so that they could hurt each other.
        lost._open.publisher._transport = app._open.parts.transport
        shop.channel.exchange_delete(shop.name("gone"))
        accepted = shop.broker.proxy.accepted
        told = await asyncio.gather(
            *((lost if n % 11 == 5 else app).publish("order.placed", b"%d" % n) for n in range(55)),
            return_exceptions=True,
        )
        refused = [n for n, outcome in enumerate(told) if not isinstance(outcome, str)]
        assert refused == [5, 16, 27, 38, 49]
        for n in refused:
            assert isinstance(told[n], PublishRefused)
            assert told[n].code == 404
            assert f"no exchange '{shop.name('gone')}'" in str(told[n])
        await app.publish("order.placed", b"55")
        await until(lambda: len(done) == 51)
        assert shop.consumers("charge") == 1
        assert shop.broker.proxy.accepted == accepted


async def test_b25_an_app_whose_exchange_was_deleted_is_told_so_by_name(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    async with app:
        shop.channel.exchange_delete(shop.name("events"))
        with pytest.raises(PublishRefused, match=r"404 NOT_FOUND - no exchange") as caught:
            await app.publish("order.placed", {}, id="one")
        assert caught.value.message.id == "one"
