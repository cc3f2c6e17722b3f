"""Publishing: one channel in confirm mode, whose every publish comes to an end, and no neighbour to harm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from leveret.core.errors import BadPayload, PublishError, PublishRefused, PublishTimeout, Unroutable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.channel import Channel
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone

#: A publish, and the future that waits for its answer.
Sent = tuple[asyncio.Future[None], Outgoing]


class PublishChannel(Channel):
    """A channel in confirm mode.

    Args:
        connection: to open it on.
        tags: what its tags begin with; no other channel of any process has the same.
        answered: told after answers came.
        ended: told with the reason when it is closed; `sent` then holds what was never answered.

    Attributes:
        sent: by number, what awaits its answer, in the order it was sent.
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
        self._frame_max: Final = connection.frame_max
        self._answered: Final = answered
        self._ended: Final = ended
        #: By number, what was returned, with the broker's code and words; its ack follows.
        self._returned: dict[int, str] = {}

    def send(self, message: Outgoing, answer: asyncio.Future[None]) -> None:
        """Publish now; *answer* gets what comes of it."""
        number = self._number + 1
        properties = message.properties
        raw = (
            wire.tagged(properties, f"{self._tags}{number:x}".encode())
            if message.mandatory
            else properties.raw
        )
        if len(raw) + wire.HEADER_OVERHEAD > self._frame_max:
            settle(
                answer,
                PublishRefused(
                    f"501 FRAME_ERROR - {len(raw)} bytes of properties do not fit a frame of {self._frame_max}, so the "
                    "message was not sent. Carry less in them",
                    code=501,
                ),
            )
            return
        try:
            frames = wire.publish(
                self.number,
                message.exchange,
                message.routing_key,
                raw,
                message.body,
                mandatory=message.mandatory,
                frame_max=self._frame_max,
            )
        except BadPayload as error:
            settle(answer, PublishRefused(f"502 SYNTAX_ERROR - {error}. It was not sent", code=502))
            return
        self._number = number
        self.sent[number] = (answer, message)
        self.connection.write(frames)

    def returned(self, code: int, words: str, properties: bytes) -> None:
        tag = wire.tag_of(Properties(properties)) or ""
        if tag.startswith(self._tags):
            self._returned[int(tag[len(self._tags) :], 16)] = f"{code} {words}"

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
        answered: told after answers came, or room was made.
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
        """Publishes on the channel without an answer; None where there is no channel."""
        return None if self._channel is None else len(self._channel.sent)

    async def build(self, connection: RawConnection) -> None:
        """Publish over *connection* from here on.

        Raises:
            Gone: it went before its channel was open.
        """
        channel = self.channel(connection, self._ended)
        await channel.open()
        self._channel = channel

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

    def send(self, message: Outgoing, answer: asyncio.Future[None]) -> bool:
        """Publish; False, and nothing was sent, where there is no channel."""
        if self._channel is None:
            return False
        self._channel.send(message, answer)
        return True

    def _ended(self, channel: PublishChannel, gone: Gone) -> None:
        unanswered = list(channel.sent.values())
        channel.sent.clear()
        if channel is self._channel:
            self._channel = None if gone.whole else self.channel(channel.connection, self._ended)
        if gone.about_a_publish:
            self._poisoned(unanswered, gone)
        else:
            for answer, _ in unanswered:
                settle(answer, unknown(self._display, gone))
        self._answered()


class Quarantine:
    """Repeats one at a time what stood on a channel or connection that the broker closed, until each has its answer.

    Whoever is in flight alone when the next one closes was the culprit, and gets the broker's words.

    Args:
        shared: the publishing connection, None where it is down.
        alone: makes a connection of the quarantine's own.
        channel: opens a channel on it.
        display: the broker's address, as it may be shown.
        answered: told after each.
    """

    def __init__(
        self,
        *,
        shared: Callable[[], RawConnection | None],
        alone: Callable[[], Awaitable[RawConnection]],
        channel: Callable[[RawConnection, Callable[[PublishChannel, Gone], object]], PublishChannel],
        display: str,
        answered: Callable[[], object],
    ) -> None:
        self._shared: Final = shared
        self._alone: Final = alone
        self._open_channel: Final = channel
        self._display: Final = display
        self._answered: Final = answered
        self._waiting: list[Sent] = []
        self._working: asyncio.Task[None] | None = None
        #: Whether a whole connection went over one of them: they go on one of their own then.
        self._dangerous = False
        self._own: RawConnection | None = None
        self._channel: PublishChannel | None = None
        self._unanswered: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, sent: list[Sent], gone: Gone) -> None:
        """Have these repeated."""
        self._waiting += [each for each in sent if not each[0].done()]
        self._dangerous |= gone.whole
        if self._waiting and self._working is None:
            self._working = asyncio.create_task(self._work(), name="leveret quarantine")

    def abort(self) -> None:
        """Give up: unknown, for all that wait."""
        if self._working is not None:
            self._working.cancel()
        self._give_up(Gone("it was closed", whole=True))

    async def _work(self) -> None:
        try:
            while self._waiting:
                answer, message = self._waiting[0]
                if not answer.done():
                    await self._repeat(answer, message)
                # Taken off only now, so that it counts in the window until it is answered.
                if self._waiting and self._waiting[0][0] is answer and answer.done():
                    del self._waiting[0]
                self._answered()
        finally:
            self._working = None
            self._dangerous = False
            if self._channel is not None:
                self._channel.close_soon()
                self._channel = None
            if self._own is not None:
                self._own.abort()
                self._own = None

    async def _repeat(self, answer: asyncio.Future[None], message: Outgoing) -> None:
        """Repeat one; afterwards it is answered, or to be repeated on a connection of its own."""
        try:
            channel = await self._ready()
            self._unanswered = asyncio.get_running_loop().create_future()
            channel.send(message, self._unanswered)
            await self._unanswered
        except PublishError as error:
            settle(answer, error)
        except Gone as gone:
            if gone.whole and gone.about_a_publish and self._own is None:
                # Others were in flight on that connection as well.
                self._dangerous = True
            elif gone.about_a_publish:
                settle(
                    answer,
                    PublishRefused(
                        f"RabbitMQ refused the message to {address(message)}: {gone.words}. It does not have it",
                        code=gone.code,
                    ),
                )
            else:
                self._give_up(gone)
        else:
            if not answer.done():
                answer.set_result(None)
        finally:
            self._unanswered = None

    async def _ready(self) -> PublishChannel:
        """A channel to repeat one on.

        Raises:
            Gone: there is no connection.
        """
        channel = self._channel
        if channel is not None and channel.gone is None and (self._own is not None or not self._dangerous):
            return channel
        connection = self._own if self._dangerous else self._shared()
        if self._dangerous and (connection is None or not connection.is_open):
            try:
                connection = self._own = await self._alone()
            except Exception as error:
                raise Gone(f"the connection could not be made again ({error})", whole=True) from error
        if connection is None or not connection.is_open:
            raise Gone("the connection was lost", whole=True)
        self._channel = channel = self._open_channel(connection, self._ended)
        await channel.open()
        return channel

    def _ended(self, channel: PublishChannel, gone: Gone) -> None:
        unanswered = self._unanswered
        if channel is self._channel and unanswered is not None and not unanswered.done():
            unanswered.set_exception(gone)

    def _give_up(self, gone: Gone) -> None:
        waiting, self._waiting = self._waiting, []
        for answer, _ in waiting:
            settle(answer, unknown(self._display, gone))


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
        f"no answer came from {display}: {gone.words}. Unknown whether the message arrived: send it again under the same "
        "id"
    )
