"""Calls: one connection whose channels send requests, and hear their replies by RabbitMQ's direct reply-to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leveret.core.errors import AccessRefused, BrokerUnreachable, PublishError, PublishRefused, PublishTimeout
from leveret.core.message import DIRECT_REPLY, Outgoing
from leveret.core.properties import Properties
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.channel import Channel, Handed
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.link import Link
from leveret.transports.rabbitmq.publisher import Framing


class RabbitCallChannel(Channel):
    """See `leveret.ports.CallChannel`. It consumes the replies to what goes out on it: the two belong together."""

    def __init__(
        self,
        connection: RawConnection,
        *,
        tags: str,
        display: str,
        on_reply: Callable[[bytes, Properties], object],
        on_return: Callable[[str], object],
        on_gone: Callable[[PublishError], object],
    ) -> None:
        super().__init__(connection)
        self._tags: Final = tags
        self._display: Final = display
        self._on_reply: Final = on_reply
        self._on_return: Final = on_return
        self._on_gone: Final = on_gone
        self._framing: Final = Framing(self.number, connection.frame_max)
        self._number = 0
        self._leaving = False

    async def listen(self) -> None:
        """Have replies come.

        Raises:
            Gone: the channel ended first.
        """
        try:
            await self.call(
                self.pika.basic_consume, queue=DIRECT_REPLY, on_message_callback=_nothing, auto_ack=True
            )
        except BaseException:
            self.leave()
            raise

    @property
    def blocked(self) -> bool:
        return self.connection.blocked

    def send(self, request: Outgoing) -> str:
        if self._leaving or self.gone is not None:
            raise PublishRefused(f"its channel to {self._display} is gone: not sent. Send it on a new one")
        self._number += 1
        tag = f"{self._tags}{self._number:x}"
        self.connection.write_soon(self._framing.frames(request, tag.encode()))
        return tag

    def leave(self) -> None:
        self._leaving = True
        self.close_soon()

    def handed(self, message: Handed) -> None:
        if not self._leaving:
            self._on_reply(message.body, Properties(message.properties))

    def returned(self, code: int, words: str, properties: bytes) -> None:
        tag = wire.tag_of(Properties(properties))
        if tag is not None and not self._leaving:
            self._on_return(tag)

    def closed(self, reason: Gone) -> None:
        if self._leaving:
            return
        self._leaving = True
        if reason.about_a_publish:
            words = f"{self._display} closed the channel over what was sent on it: {reason.words}"
            self._on_gone(PublishRefused(words, code=reason.code))
        else:
            self._on_gone(PublishTimeout(f"{self._display}: {reason.words}"))


class CallLine:
    """The connection of all call channels: made with the first of them, and kept up from then on.

    Args:
        link: keeps it up.
        process: random text of this process, for tags.
        display: the broker's address, as it may be shown.
    """

    def __init__(self, link: Link, *, process: str, display: str) -> None:
        self._link: Final = link
        self._process: Final = process
        self._display: Final = display
        self._opening: Final = asyncio.Lock()
        self._closed = False
        self._generation = 0

    async def channel(
        self,
        *,
        on_reply: Callable[[bytes, Properties], object],
        on_return: Callable[[str], object],
        on_gone: Callable[[PublishError], object],
    ) -> RabbitCallChannel:
        """See `leveret.ports.Transport.call_channel`."""
        while True:
            async with self._opening:
                if not self._closed and not self._link.is_open:
                    await self._link.open()
            if self._closed:
                # Also where that was while it was being made.
                self._link.abort()
                raise BrokerUnreachable(f"the connection to {self._display} was closed")
            connection = await self._link.arrived()
            self._generation += 1
            try:
                channel = RabbitCallChannel(
                    connection,
                    # The publisher's own channels have a hexadecimal number there.
                    tags=f"{self._process}-r{self._generation:x}-",
                    display=self._display,
                    on_reply=on_reply,
                    on_return=on_return,
                    on_gone=on_gone,
                )
                await channel.listen()
            except Gone as gone:
                if not gone.whole:
                    kind = AccessRefused if gone.code == 403 else BrokerUnreachable
                    raise kind(f"{self._display}: {gone.words}") from gone
                # It may be told of the channel before it is told of the connection.
                await asyncio.sleep(0)
            else:
                return channel

    async def close(self) -> None:
        """Take leave, for good."""
        self._closed = True
        connection = self._link.connection
        if connection is not None and connection.blocked:
            connection.abort()
        await self._link.close()

    async def cut(self) -> None:
        """End it without a word, and return when it has ended."""
        self._closed = True
        await self._link.cut()

    def abort(self) -> None:
        """End it without a word, for good."""
        self._closed = True
        self._link.abort()

    def discard(self) -> None:
        """Forget what a loop left behind that is closed."""
        self._link.discard()


def _nothing(*_: object) -> None:
    """What pika is given to call with messages that it never sees."""
