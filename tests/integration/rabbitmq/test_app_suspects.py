"""A message that is moved, to the end of its queue or to the suspects, is still the same message (P5, P12)."""

from __future__ import annotations

import pytest
from tests.rabbitmq_scene import until

from leveret import Context, RetryPolicy, SoftFailure
from leveret.core import headers as h
from leveret.core.message import Outgoing
from leveret.core.properties import Properties

#: Each of them is changed by a client that decodes and encodes it again.
ENTRIES = (
    b"\x07decimalD\x02\x00\x00\x30\x39",
    b"\x0cmillisecondsT\x00\x00\x01\x9a\xb3\x2e\x4c\x7b",
    b"\x06nestedF\x00\x00\x00\x0d\x04listA\x00\x00\x00\x03Vt\x01",
    b"\x06octet!b\x80",
    b"\x04voidV",
    b"\x05wordsS\x00\x00\x00\x02\xff\xfe",
)
BODY = b"\x00\xff{"


@pytest.mark.parametrize("starts", [0, 1], ids=["to the end of its queue", "to the suspects"])
@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
@pytest.mark.parametrize("wide", [False, True], ids=["", "with headers that fill their frame"])
async def test_a_message_that_is_moved_arrives_with_the_same_body_and_properties(
    place, connect, starts, queue_type, wide
):
    app = place.app(queue_type=queue_type)
    runs = []

    @app.worker("order.placed", retry=RetryPolicy(first_delay=0.05, jitter=0))
    async def charge(body: bytes, ctx: Context) -> None:
        runs.append((body, ctx.attempt, ctx.message_id, dict(ctx.headers), ctx.properties.raw))
        if ctx.attempt == 1:
            raise SoftFailure("503")

    outside = await connect()
    entries = b"".join(ENTRIES)
    if wide:
        entries += b"\x04wideS" + (size := 130_600).to_bytes(4) + b"x" * size
    table = len(entries).to_bytes(4) + entries
    original = Properties(b"\x30\x80" + table + b"\x02" + b"\x03one")
    sent = original.edit(add={h.STARTS: starts}) if starts else original
    async with app:
        await outside.send(Outgoing(f"{place.namespace}.events", "order.placed", BODY, sent))
        # It comes back flagged, as from a consumer that died.
        assert (await outside.get(place.queue("charge"))).requeue()
        async with app.running():
            await until(lambda: len(runs) == 2)
            await until(lambda: not app._open.runner.in_hand)
            assert await app.counts() == (0, 0, 0, 0)
    # Once as the moved one, once as its retry.
    assert [(body, attempt, id) for body, attempt, id, *_ in runs] == [(BODY, 1, "one"), (BODY, 2, "one")]
    for *_, headers, raw in runs:
        # A quorum queue counts for handlers to see what it gives out of the suspects.
        headers.pop("x-delivery-count", None)
        assert headers == original.headers
        assert all(entry in raw for entry in ENTRIES)
