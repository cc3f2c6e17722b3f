"""Publishing: one channel in confirm mode, whose every publish comes to an end, and no neighbour to harm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from leveret.core.errors import BadPayload, PublishError, PublishRefused, PublishTimeout, Unroutable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.transports.confirm_window import WindowAnswer
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.channel import Channel
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone

#: So many places are remembered: most processes publish to a handful, and a key a customer must not fill the memory.
_PLACES: Final = 1024

#: A publish, and the future that waits for its answer.
Sent = tuple[WindowAnswer, Outgoing]


class PublishChannel(Channel):
    """A channel in confirm mode.

    Args:
        connection: to open it on.
        tags: what its tags begin with; no other channel of any process has the same.
        answered: told after answers came, or were given up.
        ended: told with the reason when it is closed; `sent` then holds what was never answered.

    Attributes:
        sent: by number, what awaits its answer, in the order it was sent. What nobody waits for any more is no part of
            it: a confirm or a return of it that comes after all is passed over.
    """

    def __init__(
        self,
        connection: RawConnection,
        *,
        tags: str,
        answered: Callable[[], object],
        ended: Callable[[PublishChannel, Gone], object],
    ) -> None:
        super().__init__(connection)
        connection.write(wire.confirm_select(self.number))
        self.sent: dict[int, Sent] = {}
        self._number = 0
        self._tags: Final = tags
        self._framing: Final = Framing(self.number, connection.frame_max)
        self._answered: Final = answered
        self._ended: Final = ended
        #: By number, what was returned, with the broker's code and words; its ack follows.
        self._returned: dict[int, str] = {}

    def send(self, message: Outgoing, answer: WindowAnswer) -> None:
        """Publish in this turn of the loop; *answer* gets what comes of it."""
        number = self._number + 1
        try:
            frames = self._framing.frames(message, f"{self._tags}{number:x}".encode())
        except PublishRefused as refusal:
            settle(answer, refusal)
            return
        self._number = number
        self.sent[number] = (answer, message)
        answer.given_up = partial(self._forget, number)
        self.connection.write_soon(frames)

    def _forget(self, number: int) -> None:
        if self.sent.pop(number, None) is not None:
            self._returned.pop(number, None)
            self._answered()

    def returned(self, code: int, words: str, properties: bytes) -> None:
        tag = wire.tag_of(Properties(properties)) or ""
        if tag.startswith(self._tags) and (number := int(tag[len(self._tags) :], 16)) in self.sent:
            self._returned[number] = f"{code} {words}"

    def confirmed(self, number: int, *, multiple: bool, refused: bool) -> None:
        if not multiple:
            self._settle(number, refused=refused)
        else:
            for each in [n for n in self.sent if n <= number] if refused else self._up_to(number):
                self._settle(each, refused=refused)
        self._answered()

    def _up_to(self, number: int) -> list[int]:
        """What awaits its answer up to *number*. They stand in their order, and the next ones may be a thousand."""
        found = []
        for each in self.sent:
            if each > number:
                break
            found.append(each)
        return found

    def _settle(self, number: int, *, refused: bool) -> None:
        sent = self.sent.pop(number, None)
        if sent is None:
            return
        answer, message = sent
        if self._returned and (why := self._returned.pop(number, None)) is not None:
            settle(
                answer,
                Unroutable(
                    f"{address(message)} reaches no queue ({why}), so the message was not accepted. Declare the queue "
                    "of whoever is to take it, or publish with mandatory=False"
                ),
            )
        elif refused:
            settle(
                answer,
                PublishRefused(
                    f"the broker did not take the message to {address(message)} (basic.nack): a queue is full and "
                    "refuses what comes, or could not store it. It may at a later try"
                ),
            )
        elif not answer.done():
            answer.set_result(None)

    def closed(self, reason: Gone) -> None:
        self._ended(self, reason)


class Publisher:
    """Publishes over whatever connection there is, and sees to it that one bad publish harms no other.

    Args:
        process: random text of this process, for tags.
        display: the broker's address, as it may be shown.
        answered: told after answers came or were given up, or room was made.
        poisoned: told of publishes that stood on a channel or connection which the broker closed over one of them.
    """

    def __init__(
        self,
        *,
        process: str,
        display: str,
        answered: Callable[[], object],
        poisoned: Callable[[list[Sent], Gone], object],
    ) -> None:
        self._process: Final = process
        self._display: Final = display
        self._answered: Final = answered
        self._poisoned: Final = poisoned
        self._generation = 0
        self._channel: PublishChannel | None = None

    @property
    def outstanding(self) -> int | None:
        """Publishes on the channel whose answer is waited for; None where there is no channel."""
        channel = self._channel
        return None if channel is None else len(channel.sent)

    async def build(self, connection: RawConnection) -> None:
        """Publish over *connection* from here on.

        Raises:
            Gone: it went before its channel was open.
        """
        channel = self.channel(connection, self._ended)
        await channel.open()
        self._channel = channel

    @contextmanager
    def kept_on_failure(self) -> Iterator[None]:
        """Publish over what there was before, where the block fails after it has built anew."""
        before = self._channel
        try:
            yield
        except BaseException:
            if before is not None and before.gone is None:
                self._channel = before
            raise

    def channel(
        self, connection: RawConnection, ended: Callable[[PublishChannel, Gone], object]
    ) -> PublishChannel:
        """A new channel, with tags of its own."""
        self._generation += 1
        return PublishChannel(
            connection,
            tags=f"{self._process}-{self._generation:x}-",
            answered=self._answered,
            ended=ended,
        )

    def send(self, message: Outgoing, answer: WindowAnswer) -> bool:
        """Publish; False, and nothing was sent, where there is no channel."""
        if self._channel is None:
            return False
        self._channel.send(message, answer)
        return True

    def _ended(self, channel: PublishChannel, gone: Gone) -> None:
        unanswered = list(channel.sent.values())
        channel.sent.clear()
        if channel is self._channel:
            # Over a publish the broker closes the channel alone; in every other case all of it is going.
            again = gone.code is not None and channel.connection.is_open
            self._channel = self.channel(channel.connection, self._ended) if again else None
        if gone.about_a_publish:
            self._poisoned(unanswered, gone)
        else:
            for answer, _ in unanswered:
                settle(answer, unknown(self._display, gone))
        self._answered()


class Framing:
    """Writes publishes for one channel as frames, and remembers the first frame for the places published to lately."""

    def __init__(self, channel: int, frame_max: int) -> None:
        self._channel: Final = channel
        self._frame_max: Final = frame_max
        self._methods: dict[tuple[str, str, bool], bytes] = {}

    def frames(self, message: Outgoing, tag: bytes) -> bytes:
        """The frames of a publish; a mandatory one bears the tag.

        Raises:
            PublishRefused: AMQP cannot carry it; it was not sent.
        """
        exchange, routing_key, body, properties, mandatory = message
        raw = wire.tagged(properties, tag) if mandatory else properties.raw
        if len(raw) + wire.HEADER_OVERHEAD > self._frame_max:
            raise PublishRefused(
                f"501 FRAME_ERROR - {len(raw)} bytes of properties do not fit a frame of {self._frame_max}, so the "
                "message was not sent. Carry less in them",
                code=501,
            )
        method = self._methods.get((exchange, routing_key, mandatory))
        if method is None:
            method = self._method_to(exchange, routing_key, mandatory=mandatory)
        return wire.content(method, self._channel, raw, body, self._frame_max)

    def _method_to(self, exchange: str, routing_key: str, *, mandatory: bool) -> bytes:
        try:
            method = wire.publish(self._channel, exchange, routing_key, mandatory=mandatory)
        except BadPayload as error:
            raise PublishRefused(f"502 SYNTAX_ERROR - {error}. It was not sent", code=502) from error
        if len(self._methods) >= _PLACES:
            self._methods.clear()
        self._methods[exchange, routing_key, mandatory] = method
        return method


def settle(answer: asyncio.Future[None], refusal: PublishError) -> None:
    """Give a publish its answer, unless its caller has cancelled it."""
    if not answer.done():
        answer.set_exception(refusal)
        # Looked at once, so that asyncio does not complain of an answer that its caller chose not to wait for.
        answer.exception()


def address(message: Outgoing) -> str:
    """Where a message was to go, in words."""
    exchange = f"exchange {message.exchange}" if message.exchange else "the default exchange"
    return f"{exchange} with routing key {message.routing_key!r}"


def unknown(display: str, gone: Gone) -> PublishTimeout:
    """What a publish gets whose connection went."""
    return PublishTimeout(
        f"no answer came from {display}: {gone.words}. Unknown whether the message arrived: send it again under the "
        "same id"
    )
