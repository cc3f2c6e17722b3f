"""The quarantine: finds out which publish it was that the broker closed a channel or a connection over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from leveret.core.errors import BrokerError, ConfigError, PublishRefused
from leveret.core.message import Outgoing
from leveret.transports.confirm_window import WindowAnswer
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.publisher import PublishChannel, Sent, address, settle, unknown

#: Seconds that one which is repeated may keep the others waiting. A queue may withhold its answer for hours.
PATIENCE: Final = 5.0

#: Exchange and routing key.
Place = tuple[str, str]


class Left(NamedTuple):
    """What a publish was left on that had no answer in time; nothing else goes over it."""

    channel: PublishChannel
    #: The connection, where that is the quarantine's own.
    own: RawConnection | None

    def close(self) -> None:
        """It is answered, or nobody waits for it any more."""
        self.channel.close_soon()
        if self.own is not None:
            self.own.abort()


class Quarantine:
    """Repeats one at a time what stood on a channel or connection that the broker closed, until each has its answer.

    Whoever is in flight alone when the next one closes was the culprit, and gets the broker's words. What has no answer
    after `PATIENCE` seconds is left on its channel, where a late one still counts. What goes to the same place waits
    for that, and all else goes on over a new channel.

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
        #: What is to be repeated or just is, in the order it was taken.
        self._waiting: dict[asyncio.Future[None], Sent] = {}
        #: By where it goes, what was left on its channel.
        self._left: dict[Place, Left] = {}
        self._working: asyncio.Task[None] | None = None
        #: Whether a whole connection went over one of them: they go on one of their own then.
        self._dangerous = False
        self._own: RawConnection | None = None
        self._channel: PublishChannel | None = None
        #: Set once nothing more comes of the one in flight.
        self._over = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._left)

    def take(self, sent: list[Sent], gone: Gone) -> None:
        """Have these repeated."""
        for each in sent:
            answer, _ = each
            if not answer.done():
                self._waiting[answer] = each
                answer.add_done_callback(self._done)
        self._dangerous |= gone.whole
        self._go_on()

    def abort(self) -> None:
        """Give up: unknown, for all that wait."""
        if self._working is not None:
            self._working.cancel()
        self._give_up(Gone("it was closed", whole=True))
        # Those are told when their channels are closed.
        for left in self._left.values():
            left.close()

    def _done(self, answer: asyncio.Future[None]) -> None:
        self._waiting.pop(answer, None)
        self._answered()

    def _go_on(self) -> None:
        if self._working is None and self._next() is not None:
            self._working = asyncio.create_task(self._work(), name="leveret quarantine")

    def _next(self) -> Sent | None:
        """The first one that does not wait for one that was left."""
        for answer, message in self._waiting.values():
            if not answer.done() and _place(message) not in self._left:
                return answer, message
        return None

    async def _work(self) -> None:
        try:
            while (sent := self._next()) is not None:
                await self._repeat(*sent)
        finally:
            self._working = None
            # Those that wait for one that was left go on where they would have.
            self._dangerous &= bool(self._waiting)
            if self._channel is not None:
                self._channel.close_soon()
                self._channel = None
            if self._own is not None:
                self._own.abort()
                self._own = None

    async def _repeat(self, answer: WindowAnswer, message: Outgoing) -> None:
        """Repeat one; afterwards it is answered, left on its channel, or to be repeated on a connection of its own."""
        try:
            channel = await self._ready()
        except Gone as gone:
            if gone.whole and gone.about_a_publish and self._own is None:
                # Over one of those that were in flight on that connection.
                self._dangerous = True
            else:
                self._give_up(gone)
            return
        if answer.done():
            return
        over = self._over = asyncio.Event()
        answer.add_done_callback(lambda _: over.set())
        channel.send(message, answer)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await over.wait()
        if channel.gone is None and (answer.cancelled() or not answer.done()):
            # It may yet be what that channel is closed over, and must not be taken for the next one's doing.
            left = Left(channel, self._own)
            self._channel = self._own = None
            self._leave(answer, message, left)

    def _leave(self, answer: WindowAnswer, message: Outgoing, left: Left) -> None:
        if answer.done():
            left.close()
            return
        place = _place(message)
        del self._waiting[answer]
        self._left[place] = left

        def over(_: asyncio.Future[None]) -> None:
            left.close()
            if self._left.get(place) is left:
                del self._left[place]
                self._answered()
                self._go_on()

        answer.add_done_callback(over)

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
            except (BrokerError, ConfigError) as error:
                raise Gone(f"the connection could not be made again ({error})", whole=True) from error
        if connection is None or not connection.is_open:
            raise Gone("the connection was lost", whole=True)
        ended = self._ended_alone if connection is self._own else self._ended
        self._channel = channel = self._open_channel(connection, ended)
        await channel.open()
        return channel

    def _ended(self, channel: PublishChannel, gone: Gone) -> None:
        if not (gone.whole and gone.about_a_publish):
            self._ended_alone(channel, gone)
            return
        # Others were in flight on that connection as well.
        for answer, message in channel.sent.values():
            self._left.pop(_place(message), None)
            self.take([(answer, message)], gone)
        self._over_with(channel)

    def _ended_alone(self, channel: PublishChannel, gone: Gone) -> None:
        """Nothing else was in flight there."""
        for answer, message in channel.sent.values():
            if gone.about_a_publish:
                settle(
                    answer,
                    PublishRefused(
                        f"RabbitMQ refused the message to {address(message)}: {gone.words}. It does not have it",
                        code=gone.code,
                    ),
                )
            else:
                settle(answer, unknown(self._display, gone))
        self._over_with(channel)

    def _over_with(self, channel: PublishChannel) -> None:
        channel.sent.clear()
        if channel is self._channel:
            self._over.set()

    def _give_up(self, gone: Gone) -> None:
        for answer in self._waiting:
            settle(answer, unknown(self._display, gone))


def _place(message: Outgoing) -> Place:
    return message.exchange, message.routing_key
