"""B16: a header of a type that nobody knows ends nothing: the message is run, retried and buried with the same bytes.

RabbitMQ lets none in, so this broker is the one in memory; frames with such a header are read in the transport's tests.
"""

from __future__ import annotations

from tests.unit.running_app import RunningApp

from leveret import Context, HardFailure, Leveret, RetryPolicy, SoftFailure
from leveret.core.message import Outgoing
from leveret.core.properties import Properties

ENTRIES = b"\x05knownt\x01" + b"\x03odd?whatever"
ODD = Properties(b"\x30\x80" + len(ENTRIES).to_bytes(4) + ENTRIES + b"\x02\x03one")


async def test_b16_a_message_with_such_a_header_is_run_retried_and_buried_as_it_came_and_the_next_is_normal():
    app = Leveret("shop", broker="memory://", store="memory://")
    runs = []

    @app.worker(retry=RetryPolicy(first_delay=1, jitter=0))
    async def tick(body: bytes, ctx: Context) -> None:
        runs.append((body, ctx.attempt, ctx.message_id, ctx.headers.get("known")))
        if body == b"odd":
            raise SoftFailure("503") if ctx.attempt == 1 else HardFailure("410")

    async with RunningApp(app) as t:
        await app._open.parts.transport.send(Outgoing("", "shop.tick", b"odd", ODD))
        await t.send("shop.tick", b"plain")
        await t.clock.advance(5)
        assert len(runs) == 3
        assert set(runs) == {(b"odd", 1, "one", True), (b"odd", 2, "one", True), (b"plain", 1, None, None)}
        (listed,) = (await app.dead_letters.list()).items
        letter = await app.dead_letters.get(listed.id)
        assert (letter.body, letter.properties) == (b"odd", ODD.raw)
