"""The quarantine: finds out which publish it was that the broker closed a channel or a connection over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from leveret.core.errors import BrokerError, ConfigError, PublishError, PublishRefused
from leveret.core.message import Outgoing
from leveret.transports.confirm_window import WindowAnswer
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.publisher import PublishChannel, Sent, address, settle, unknown


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
        self._unanswered: WindowAnswer | None = None

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
            self._unanswered = WindowAnswer(loop=asyncio.get_running_loop())
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
            except (BrokerError, ConfigError) as error:
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
