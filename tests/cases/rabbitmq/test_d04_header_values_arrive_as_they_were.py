"""D04: values in headers are the same on the other side, whichever client reads or wrote them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import Context, Message
from leveret.core.errors import BadPayload

INTEGERS = [
    0,
    127,
    128,
    255,
    256,
    32_767,
    32_768,
    2**31 - 1,
    2**31,
    2**63 - 1,
    -1,
    -128,
    -129,
    -(2**31),
    -(2**63),
]
VALUES = {
    "true": True,
    "false": False,
    "decimal": Decimal("12.50"),
    "when": datetime(2020, 2, 29, 12, 30, tzinfo=UTC),
    "bytes": b"\x00\xff",
    "none": None,
    "text": "é",
    "digits": "42",
    "nested": {"array": [1, {"deep": [None, True]}], "empty": {}, "none": []},
    **{f"int {number}": number for number in INTEGERS},
}


def same(values: Mapping[str, object]) -> dict[str, tuple[bool, object]]:
    """So that True is not 1."""
    return {name: (isinstance(value, bool), value) for name, value in values.items()}


async def test_d04_what_leveret_writes_another_client_reads(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    async with app:
        await app.publish(Message("order.placed", {}, headers=VALUES))
        _, properties = shop.take("charge")
    assert same({name: properties.headers[name] for name in VALUES}) == same(VALUES)


async def test_d04_what_another_client_writes_leveret_reads_and_hands_on(shop: Shop):
    app = shop.app()
    seen = []

    @app.worker("order.placed")
    async def charge(body: bytes, ctx: Context) -> None:
        seen.append(dict(ctx.headers))

    async with app, app.running(), asyncio.timeout(30):
        shop.send("charge", b"", pika.BasicProperties(headers=VALUES))
        await until(lambda: seen)
    assert same(seen[0]) == same(VALUES)


async def test_d04_a_float_is_the_same_number_on_its_way_through_the_broker(shop: Shop):
    # pika 1.4 reads floats wrongly, and so is asked for nothing here.
    app = shop.app()
    seen = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        seen.append(ctx.headers["float"])

    async with app, app.running(), asyncio.timeout(30):
        for number in (1.5, -0.1, 1e300):
            await app.publish(Message("order.placed", {}, headers={"float": number}))
        await until(lambda: len(seen) == 3)
    assert sorted(seen) == [-0.1, 1.5, 1e300]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1])
async def test_d04_an_integer_that_no_header_can_hold_is_refused_by_name(shop: Shop, number: int):
    app = shop.app()
    async with app:
        with pytest.raises(BadPayload, match=r"large.*integer.*64"):
            await app.publish(Message("order.placed", {}, headers={"large": number}))
