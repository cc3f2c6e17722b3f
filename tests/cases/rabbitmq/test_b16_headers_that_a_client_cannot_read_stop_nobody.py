"""B16: header values that clients trip over end no connection; the message is handled, retried and comes back.

Types that no broker lets in are tried at the level of frames, in the tests of tables.
"""

from __future__ import annotations

import asyncio

from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import Context, SoftFailure
from leveret.core.message import Outgoing
from leveret.core.properties import Properties


def headers(*entries: bytes) -> Properties:
    table = b"".join(entries)
    # Flags for headers and timestamp; a time of 2**64 - 1 is no date.
    return Properties(b"\x20\x40" + len(table).to_bytes(4) + table + b"\xff" * 8)


ODD = headers(
    b"\x02msT" + (1_700_000_000_000).to_bytes(8),
    b"\x04lastT" + b"\xff" * 8,
    b"\x01bb\x80",
    b"\x01uu\xff\xff",
    b"\x01fd\x3f\xf8" + b"\x00" * 6,
    b"\x01vV",
    b"\x01xx\x00\x00\x00\x02\xff\xfe",
    b"\x01SS\x00\x00\x00\x02\xff\xfe",
)


async def test_b16_a_message_with_such_headers_is_handled_and_retried_with_the_same_bytes_and_the_next_is_normal(
    shop: Shop,
):
    app = shop.app()
    seen = []

    @app.worker("order.placed")
    async def charge(body: bytes, ctx: Context) -> None:
        seen.append((body, ctx.attempt, dict(ctx.headers), ctx.properties.timestamp))
        if body == b"odd" and ctx.attempt == 1:
            raise SoftFailure("503")

    async with app, app.running(), asyncio.timeout(30):
        accepted = shop.broker.proxy.accepted
        for body, properties in ((b"odd", ODD), (b"plain", Properties.build())):
            await app._open.parts.transport.send(Outgoing("", shop.name("charge"), body, properties))
        await until(lambda: len(seen) == 3)
        odd = [each for each in seen if each[0] == b"odd"]
        assert [attempt for _, attempt, *_ in odd] == [1, 2]
        assert odd[0][2] == odd[1][2]
        assert odd[0][2]["ms"] == 1_700_000_000_000
        assert {each[3] for each in odd} == {2**64 - 1}
        assert shop.broker.proxy.accepted == accepted
        assert shop.consumers("charge") == 1
