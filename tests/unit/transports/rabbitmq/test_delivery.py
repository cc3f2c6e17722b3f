from __future__ import annotations

import asyncio
from typing import Any

from leveret.core.table import RawValue
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.delivery import Fetching


class Line:
    """A connection and the one pika channel on it: it notes what is written."""

    is_open = True
    is_closing = is_closed = False
    channel_number = 1

    def __init__(self) -> None:
        self.readers: dict[int, Any] = {}
        self.written: list[bytes] = []

    def channel(self, *, on_open_callback: Any) -> Line:
        on_open_callback(self)
        return self

    def add_on_close_callback(self, callback: Any) -> None:
        pass

    def add_on_cancel_callback(self, callback: Any) -> None:
        pass

    def write_soon(self, data: bytes) -> None:
        self.written.append(data)


def get_ok(delivery: int) -> bytes:
    return b"\x00\x3c\x00\x47" + delivery.to_bytes(8) + b"\x00" + b"\x00" + b"\x06orders" + bytes(4)


async def test_b16_a_header_of_a_type_that_nobody_knows_is_handed_on_byte_for_byte():
    line: Any = Line()
    channel = Fetching(line, "orders")
    asking = asyncio.create_task(channel.get())
    await asyncio.sleep(0)
    entries = b"\x05knownt\x01" + b"\x03odd?whatever"
    properties = b"\x20\x80" + len(entries).to_bytes(4) + entries + b"\x03one"
    method = get_ok(7)
    assert channel.method(method, 0, len(method))
    channel.header(4, properties)
    channel.body(b"bo")
    channel.body(b"dy")
    delivery = await asking
    assert delivery is not None
    assert (delivery.body, delivery.properties.raw) == (b"body", properties)
    assert delivery.properties.headers == {"known": True, "odd": RawValue("?", b"whatever")}
    assert delivery.properties.message_id == "one"
    assert delivery.ack()
    assert line.written[-1] == wire.ack(1, 7)
