"""C15: the plugin's delaying exchange returns a mandatory message that it delivers later; leveret uses none.

The plugin is in no distribution, so an exchange type of its name is registered in the node, with the same answer: what
is published is returned at once. Such an exchange is refused by name, and a delay of ours needs none.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret import RMQExchangeConfig
from leveret.core.errors import ConfigError, QueueMismatch


def test_c15_an_exchange_of_that_type_is_refused_where_it_is_named():
    with pytest.raises(ConfigError, match="x-delayed-message"):
        RMQExchangeConfig("shop.events", type="x-delayed-message")  # type: ignore[arg-type]


async def test_c15_one_that_exists_under_our_name_is_refused_and_nothing_is_sent_to_it(shop: Shop):
    await asyncio.to_thread(
        shop.broker.node.evaluate,
        'rabbit_registry:register(exchange, <<"x-delayed-message">>, rabbit_exchange_type_headers).',
    )
    try:
        shop.channel.exchange_declare(shop.name("events"), "x-delayed-message", durable=True)
        with pytest.raises(QueueMismatch, match="type='x-delayed-message'") as caught:
            await shop.app().open()
        assert shop.name("events") in str(caught.value)
    finally:
        shop.channel.exchange_delete(shop.name("events"))
        await asyncio.to_thread(
            shop.broker.node.evaluate, 'rabbit_registry:unregister(exchange, <<"x-delayed-message">>).'
        )


async def test_c15_a_delayed_message_of_ours_is_mandatory_delivered_once_and_leaves_no_dead_letter(
    shop: Shop,
):
    app = shop.app()
    ran = []
    done = asyncio.Event()

    @app.worker("order.placed")
    async def charge(order: bytes) -> None:
        ran.append(order)
        done.set()

    async with app, app.running(), asyncio.timeout(30):
        await app.publish("order.placed", b"later", delay=0.5)
        assert ran == []
        await done.wait()
        await shop.until_settled(app)
    assert ran == [b"later"]
