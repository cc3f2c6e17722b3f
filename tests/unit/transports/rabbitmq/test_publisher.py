from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from leveret.core.errors import Unroutable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.transports.confirm_window import WindowAnswer
from leveret.transports.rabbitmq.publisher import Publisher


class Line:
    """A connection and its one pika channel, as far as a channel that publishes looks; nothing goes out."""

    is_open = True
    is_closing = is_closed = False
    channel_number = 1
    frame_max = 131_072

    def __init__(self) -> None:
        self.readers: dict[int, Any] = {}

    def channel(self, *, on_open_callback) -> Line:
        self.opened = on_open_callback
        return self

    def add_on_close_callback(self, callback) -> None:
        pass

    def add_on_cancel_callback(self, callback) -> None:
        pass

    def write(self, data: bytes) -> None:
        # Whoever opens it says first that confirms are wanted.
        self.opened(self)

    def write_soon(self, data: bytes) -> None:
        pass


@pytest.fixture
async def scene():
    line: Any = Line()
    told: list[None] = []
    publisher = Publisher(
        process="p", display="here", answered=lambda: told.append(None), poisoned=lambda sent, gone: None
    )
    await publisher.build(line)

    def send(mandatory=True) -> WindowAnswer:
        answer = WindowAnswer()
        publisher.send(Outgoing("", "q", b"", Properties.build(), mandatory), answer)
        return answer

    return SimpleNamespace(publisher=publisher, channel=line.readers[1], send=send, told=told)


def returned(number: int) -> tuple[int, str, bytes]:
    return 312, "NO_ROUTE", Properties.build(headers={"leveret-tag": f"p-1-{number:x}"}).raw


async def test_a_publish_that_is_given_up_counts_no_more_and_says_so(scene):
    first, second = scene.send(), scene.send()
    assert scene.publisher.outstanding == 2
    first.cancel()
    assert (scene.publisher.outstanding, len(scene.told)) == (1, 1)
    scene.channel.confirmed(2, multiple=False, refused=False)
    assert second.result() is None
    assert scene.publisher.outstanding == 0


@pytest.mark.parametrize("refused", [False, True])
async def test_a_late_answer_to_a_publish_that_was_given_up_is_passed_over(scene, refused):
    first, second, third = scene.send(), scene.send(), scene.send()
    first.cancel()
    scene.channel.confirmed(1, multiple=False, refused=refused)
    scene.channel.confirmed(3, multiple=True, refused=False)
    assert (second.result(), third.result()) == (None, None)


async def test_a_return_of_what_was_given_up_is_no_return_of_another(scene):
    before, after, other = scene.send(), scene.send(), scene.send()
    scene.channel.returned(*returned(1))
    before.cancel()
    after.cancel()
    scene.channel.returned(*returned(2))
    scene.channel.returned(*returned(3))
    scene.channel.confirmed(3, multiple=True, refused=False)
    with pytest.raises(Unroutable):
        other.result()
    last = scene.send()
    scene.channel.confirmed(4, multiple=False, refused=False)
    assert last.result() is None
    assert scene.publisher.outstanding == 0
