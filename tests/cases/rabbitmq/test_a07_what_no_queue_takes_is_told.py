"""A07: what no queue takes is unroutable for exactly its caller, with exchange, key and the broker's 312."""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret import Leveret
from leveret.core.errors import Unroutable


def ordering(shop: Shop) -> Leveret:
    app = shop.app()

    @app.worker("order.*")
    async def charge() -> None:
        pass

    return app


async def test_a07_a_key_that_nothing_is_bound_to_is_told_with_exchange_key_and_reason(shop: Shop):
    async with ordering(shop) as app:
        with pytest.raises(Unroutable) as caught:
            await app.publish("invoice.sent", {}, id="one")
    assert all(part in str(caught.value) for part in ("invoice.sent", shop.name("events"), "312 NO_ROUTE"))
    assert caught.value.message.id == "one"


async def test_a07_so_is_a_queue_deleted_between_two_publishes(shop: Shop):
    async with ordering(shop) as app:
        await app.publish("order.placed", {})
        shop.channel.queue_delete(shop.name("charge"))
        with pytest.raises(Unroutable, match=r"order\.placed"):
            await app.publish("order.placed", {})


async def test_a07_of_100_at_once_every_second_one_unroutable_exactly_those_are_told(shop: Shop):
    async with ordering(shop) as app:
        types = [f"order.{n}" if n % 2 else f"invoice.{n}" for n in range(100)]
        told = await asyncio.gather(
            *(app.publish(type, {}, id=type) for type in types), return_exceptions=True
        )
        assert [outcome for outcome in told if isinstance(outcome, str)] == types[1::2]
        lost = [outcome for outcome in told if not isinstance(outcome, str)]
        assert [type(error) for error in lost] == [Unroutable] * 50
        assert [error.message.type for error in lost] == types[::2]
        assert shop.ready("charge") == 50
