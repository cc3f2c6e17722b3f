"""A channel: calls that can be awaited, and the frames that come with messages, put together again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

import pika.channel

from leveret.core.table import header_name
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone, channel_gone

_RETURN: Final = b"\x00\x3c\x00\x32"
_DELIVER: Final = b"\x00\x3c\x00\x3c"
_GET_OK: Final = b"\x00\x3c\x00\x47"
_GET_EMPTY: Final = b"\x00\x3c\x00\x48"
_ACK: Final = b"\x00\x3c\x00\x50"
_NACK: Final = b"\x00\x3c\x00\x78"
_CONTENT: Final = frozenset({_RETURN, _DELIVER, _GET_OK})
#: A delivery tag and the flags behind it.
_TAG: Final = Struct(">QB")


class Handed(NamedTuple):
    """A message that the broker handed over by deliver or get."""

    delivery: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: bytes
    body: bytes


class Channel:
    """A channel on *connection*, usable at once: what is written before it is open arrives behind its opening.

    Derive and override what concerns you of `handed`, `returned`, `confirmed`, `nothing` and `closed`.

    Attributes:
        gone: why it closed, None while it is open.

    Raises:
        Gone: the connection is not open any more.
    """

    def __init__(self, connection: RawConnection) -> None:
        if not connection.is_open:
            raise Gone("the connection was lost", whole=True)
        self.connection: Final = connection
        self.gone: Gone | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.add(self._opened)
        self.pika: Final[pika.channel.Channel] = connection.channel(on_open_callback=self._on_open)
        self.number: Final = int(self.pika.channel_number)
        self.pika.add_on_close_callback(lambda _, reason: self._on_close(reason))
        self.pika.add_on_cancel_callback(lambda _: self.cancelled())
        connection.readers[self.number] = self
        #: Of the content that is coming: its method's payload, size, properties, and pieces of its body.
        self._method = b""
        self._missing = 0
        self._properties = b""
        self._pieces: list[bytes] = []

    async def open(self) -> None:
        """Return when the broker has opened it.

        Raises:
            Gone: it did not.
        """
        if self.gone is not None:
            raise self.gone
        if not self._opened.done():
            await asyncio.shield(self._opened)
            # It may have opened and closed before whoever waited got its turn: nobody would answer on it any more.
            if self.gone is not None:
                raise self.gone

    async def call(self, method: Callable[..., object], /, **arguments: Any) -> Any:
        """Call a *method* of the pika channel that is answered, and return the answer's method frame.

        Raises:
            Gone: the channel closed instead.
        """
        await self.open()
        if self.pika.is_closing:
            raise Gone("the channel was closed")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.add(answer)

        def answered(reply: Any) -> None:
            # Whoever called may have been cancelled meanwhile.
            if not answer.done():
                answer.set_result(reply)

        try:
            method(callback=answered, **arguments)
            return (await answer).method
        finally:
            self._calls.discard(answer)

    async def close(self) -> None:
        """Close it and return when it is closed, or its connection is gone."""
        self.close_soon()
        if self.gone is None:
            closed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._calls.add(closed)
            await asyncio.wait((closed,))

    def close_soon(self) -> None:
        """Begin to close it."""
        if self.gone is None and not self.pika.is_closing and not self.pika.is_closed:
            self.pika.close()

    # ── What a derived class hears ────────────────────────────────────────────────────────────────────────────────────

    def handed(self, message: Handed) -> None:
        """A message came."""

    def nothing(self) -> None:
        """The queue that was asked for a message is empty."""

    def returned(self, code: int, words: str, properties: bytes) -> None:
        """A mandatory publish came back."""

    def confirmed(self, number: int, *, multiple: bool, refused: bool) -> None:
        """A publish, or all up to that number, were acked or nacked."""

    def cancelled(self) -> None:
        """The broker cancelled the consumer."""

    def closed(self, reason: Gone) -> None:
        """It is closed, for whatever reason; told once."""

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_open(self, _: pika.channel.Channel) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def _on_close(self, reason: BaseException) -> None:
        self.gone = gone = channel_gone(reason)
        self.connection.readers.pop(self.number, None)
        calls, self._calls = self._calls, set()
        for call in calls:
            if not call.done():
                call.set_exception(gone)
                # Looked at, so that asyncio does not complain where nobody waits.
                call.exception()
        self.closed(gone)

    def method(self, data: bytes, start: int, end: int) -> bool:
        """See `leveret.transports.rabbitmq.connection.Reader`."""
        kind = data[start : start + 4]
        if kind == _ACK:
            number, flags = _TAG.unpack_from(data, start + 4)
            self.confirmed(number, multiple=bool(flags & 1), refused=False)
        elif kind in _CONTENT:
            self._method = data[start:end]
        elif kind == _NACK:
            number, flags = _TAG.unpack_from(data, start + 4)
            self.confirmed(number, multiple=bool(flags & 1), refused=True)
        elif kind == _GET_EMPTY:
            self.nothing()
        else:
            return False
        return True

    def header(self, size: int, properties: bytes) -> None:
        """See `leveret.transports.rabbitmq.connection.Reader`."""
        self._properties = properties
        self._missing = size
        if not size:
            self._complete(b"")

    def body(self, piece: bytes) -> None:
        """See `leveret.transports.rabbitmq.connection.Reader`."""
        self._missing -= len(piece)
        if self._missing > 0:
            self._pieces.append(piece)
        elif self._pieces:
            pieces, self._pieces = self._pieces, []
            pieces.append(piece)
            self._complete(b"".join(pieces))
        else:
            self._complete(piece)

    def _complete(self, body: bytes) -> None:
        method = self._method
        kind = method[:4]
        if kind == _RETURN:
            code = int.from_bytes(method[4:6])
            words = method[7 : 7 + method[6]].decode("utf-8", "replace")
            self.returned(code, words, self._properties)
            return
        # A deliver begins with the consumer's tag, a get-ok with the delivery tag.
        at = 5 + method[4] if kind == _DELIVER else 4
        delivery, flags = _TAG.unpack_from(method, at)
        at += 9
        exchange_end = at + 1 + method[at]
        key_end = exchange_end + 1 + method[exchange_end]
        self.handed(
            Handed(
                delivery,
                bool(flags & 1),
                header_name(method[at + 1 : exchange_end]),
                header_name(method[exchange_end + 1 : key_end]),
                self._properties,
                body,
            )
        )
