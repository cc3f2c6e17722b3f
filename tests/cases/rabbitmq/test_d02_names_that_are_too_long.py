"""D02: what AMQP cannot carry is refused here, with its length in bytes, and the connection stays."""

from __future__ import annotations

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret import Message
from leveret.core.errors import BadPayload, ConfigError, WorkerDefinition

TOO_LONG = ["k" * 256, "é" * 128]


@pytest.mark.parametrize("long", TOO_LONG)
async def test_d02_256_bytes_are_refused_with_their_number_and_nothing_is_sent(shop: Shop, long: str):
    app = shop.app()
    async with app:
        accepted = shop.broker.proxy.accepted
        for message in (
            Message(long, {}),
            Message("order.placed", {}, id=long),
            Message("order.placed", {}, correlation_id=long),
            Message("order.placed", {}, reply_to=long),
            Message("order.placed", {}, content_type=long),
            Message("order.placed", {}, headers={long: 1}),
            Message("order.placed", {}, headers={"table": {long: 1}}),
        ):
            with pytest.raises(BadPayload, match="256 bytes"):
                await app.publish(message)
        assert shop.broker.proxy.accepted == accepted
        assert app._open.parts.transport.state == "connected"


@pytest.mark.parametrize("long", ["k" * 255, "é" * 127 + "x", "with\x00nul"])
async def test_d02_255_bytes_and_a_nul_are_carried_as_they_are(shop: Shop, long: str):
    app = shop.app()

    @app.worker("#")
    async def charge() -> None:
        pass

    async with app:
        await app.publish(
            Message(long, {}, id=long, correlation_id=long, reply_to=long, headers={long: long})
        )
        _, properties = shop.take("charge")
    assert (properties.type, properties.message_id, properties.correlation_id) == (long, long, long)
    assert (properties.reply_to, properties.headers[long]) == (long, long)


async def test_d02_an_empty_type_and_names_of_queues_and_exchanges_are_refused_where_they_are_given(
    shop: Shop,
):
    app = shop.app()
    async with app:
        with pytest.raises(BadPayload, match="at least one character"):
            await app.publish("", {})
    with pytest.raises(WorkerDefinition, match="worker name"):
        app.worker("order.placed", name="w" * 65)(lambda: None)
    with pytest.raises(ConfigError, match="namespace"):
        shop.app().__class__("n" * 65, broker="memory://")
    for long in TOO_LONG:
        from leveret import RMQExchangeConfig

        with pytest.raises(BadPayload, match="256 bytes"):
            RMQExchangeConfig(long)
        with pytest.raises(WorkerDefinition, match="256 bytes"):
            app.worker(long, name="long")(lambda: None)
