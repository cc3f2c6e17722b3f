from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pika.exceptions import StreamLostError

from leveret.transports.rabbitmq.delivery import Fetching
from leveret.transports.rabbitmq.errors import Gone


class Line:
    """A connection, and the one pika channel on it, as far as a channel of ours looks."""

    is_open = True
    is_closing = is_closed = False
    channel_number = 1

    def __init__(self) -> None:
        self.readers: dict[int, Any] = {}
        self.opened: Callable[[Any], object] = bool
        self.closed: Callable[[Any, BaseException], object] = bool

    def channel(self, *, on_open_callback: Callable[[Any], object]) -> Line:
        self.opened = on_open_callback
        return self

    def add_on_close_callback(self, callback: Callable[[Any, BaseException], object]) -> None:
        self.closed = callback

    def add_on_cancel_callback(self, callback: Callable[[Any], object]) -> None:
        pass

    def write_soon(self, data: bytes) -> None:
        pass


async def test_a_channel_that_opens_and_closes_in_one_turn_leaves_nobody_waiting_for_a_message():
    line: Any = Line()
    asking = asyncio.create_task(Fetching(line, "suspects").get())
    await asyncio.sleep(0)
    line.opened(line)
    line.closed(line, StreamLostError("cut"))
    with pytest.raises(Gone):
        await asyncio.wait_for(asking, 1)
