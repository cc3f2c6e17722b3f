"""What stood on a channel that the broker closed is repeated one at a time, and none of it waits for ever (P9, P10)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.core.errors import PublishRefused, PublishTimeout
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.transports.confirm_window import WindowAnswer
from leveret.transports.rabbitmq import quarantine as quarantine_module
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.quarantine import Quarantine

NO_EXCHANGE = Gone("404 NOT_FOUND - no exchange", code=404)
#: What the broker ends a whole connection with over something that was sent on it.
FRAME_ERROR = Gone("501 FRAME_ERROR", code=501, whole=True)
CUT = Gone("the connection was lost", whole=True)


class FakeConnection:
    is_open = True

    def __init__(self) -> None:
        self.channels: list[FakeChannel] = []

    def lose(self, gone: Gone) -> None:
        self.is_open = False
        for channel in self.channels:
            channel.lose(gone)

    def abort(self) -> None:
        self.lose(CUT)


class FakeChannel:
    """Confirms all, but what goes to `minority` has no answer."""

    def __init__(self, connection: FakeConnection, ended: Any) -> None:
        connection.channels.append(self)
        self.gone: Gone | None = None
        self.keys: list[str] = []
        self.sent: dict[int, tuple[WindowAnswer, Outgoing]] = {}
        self._ended = ended

    async def open(self) -> None:
        pass

    def send(self, message: Outgoing, answer: WindowAnswer) -> None:
        self.keys.append(message.routing_key)
        if message.routing_key != "minority":
            answer.set_result(None)
            return
        self.sent[1] = (answer, message)
        answer.given_up = self.sent.clear

    def lose(self, gone: Gone) -> None:
        if self.gone is None:
            self.gone = gone
            self._ended(self, gone)

    def close_soon(self) -> None:
        self.lose(Gone("the channel was closed"))


class Scene:
    """A quarantine, the connection it shares, and those it made for itself."""

    def __init__(self) -> None:
        self.shared = FakeConnection()
        self.own: list[FakeConnection] = []
        arguments: Any = {"shared": lambda: self.shared, "alone": self._alone, "channel": FakeChannel}
        self.quarantine = Quarantine(display="here", answered=lambda: None, **arguments)

    async def _alone(self) -> FakeConnection:
        self.own.append(made := FakeConnection())
        return made

    def take(self, *keys: str, gone: Gone = NO_EXCHANGE) -> list[WindowAnswer]:
        """Publishes with these keys stood on a channel that was closed."""
        sent = [(WindowAnswer(), Outgoing("", key, b"", Properties.build())) for key in keys]
        self.quarantine.take(sent, gone)
        return [answer for answer, _ in sent]

    @property
    def silent(self) -> FakeChannel:
        """The channel that carries one without an answer."""
        channels = [each for made in (self.shared, *self.own) for each in made.channels]
        [channel] = [each for each in channels if each.sent]
        return channel


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(quarantine_module, "PATIENCE", 0.0)


@pytest.fixture
async def scene():
    scene = Scene()
    yield scene
    scene.quarantine.abort()


async def turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_what_the_broker_does_not_answer_holds_up_no_other(scene, impatient):
    silent, envelope, letter = scene.take("minority", "shop.retry", "shop.events.dlq")
    await turns()
    assert (envelope.result(), letter.result()) == (None, None)
    assert silent.done() is False
    assert len(scene.quarantine) == 1
    # It has its channel to itself: whatever that is closed over is its own doing.
    assert [channel.keys for channel in scene.shared.channels] == [
        ["minority"], ["shop.retry", "shop.events.dlq"]
    ]  # fmt: skip


async def test_the_next_one_waits_until_it_is_time_to_go_on(scene):
    silent, envelope = scene.take("minority", "shop.retry")
    await turns()
    assert (silent.done(), envelope.done()) == (False, False)


async def test_an_answer_that_comes_late_counts(scene, impatient):
    [silent] = scene.take("minority")
    await turns()
    channel = scene.silent
    silent.set_result(None)
    channel.sent.clear()
    await turns()
    assert channel.gone is not None
    assert len(scene.quarantine) == 0


async def test_what_goes_where_one_was_left_waits_for_its_answer_and_goes_then(scene, impatient):
    first, second, other = scene.take("minority", "minority", "shop.retry")
    await turns()
    assert (first.done(), second.done(), other.done()) == (False, False, True)
    assert len(scene.quarantine) == 2
    scene.silent.lose(NO_EXCHANGE)
    with pytest.raises(PublishRefused, match="404"):
        await first
    await turns()
    assert scene.silent.sent[1][0] is second


async def test_what_nobody_waits_for_any_more_is_not_waited_for_here(scene):
    silent, envelope = scene.take("minority", "shop.retry")
    await turns()
    silent.cancel()
    await turns()
    assert envelope.result() is None
    [left, used] = scene.shared.channels
    assert (left.gone is None, used.keys) == (False, ["shop.retry"])
    assert len(scene.quarantine) == 0


async def test_what_waits_for_one_that_was_left_and_is_given_up_counts_no_more(scene, impatient):
    _, second = scene.take("minority", "minority")
    await turns()
    second.cancel()
    await turns()
    assert len(scene.quarantine) == 1


async def test_what_was_left_is_unknown_once_its_connection_goes(scene, impatient):
    [silent] = scene.take("minority")
    await turns()
    scene.shared.lose(CUT)
    with pytest.raises(PublishTimeout, match="the connection was lost"):
        await silent
    await turns()
    assert len(scene.quarantine) == 0


async def test_what_was_left_is_repeated_alone_where_its_whole_connection_is_closed_over_a_publish(
    scene, impatient
):
    [silent] = scene.take("minority")
    await turns()
    scene.shared.lose(FRAME_ERROR)
    await turns()
    assert silent.done() is False
    [own] = scene.own
    own.lose(FRAME_ERROR)
    with pytest.raises(PublishRefused, match="501"):
        await silent


async def test_what_is_left_keeps_a_connection_of_its_own_and_the_others_go_on_over_another(scene, impatient):
    silent, envelope = scene.take("minority", "shop.retry", gone=FRAME_ERROR)
    await turns()
    assert envelope.result() is None
    first, second = scene.own
    assert [[channel.keys for channel in own.channels] for own in (first, second)] == [
        [["minority"]], [["shop.retry"]]
    ]  # fmt: skip
    assert (first.is_open, second.is_open) == (True, False)
    silent.cancel()
    await turns()
    assert first.is_open is False


async def test_an_end_tells_all_that_nothing_is_known(scene, impatient):
    waiting = scene.take("minority", "minority")
    await turns()
    scene.quarantine.abort()
    for answer in waiting:
        with pytest.raises(PublishTimeout):
            await answer
