"""A connection to one node: pika's, with header frames left as they came and small frames read and written by us.

pika decodes the properties of every message, loses floats, and ends the connection over a timestamp in milliseconds.
Here they stay bytes. The few methods that come and go with each message are read in place as well; all others, the
handshake, TLS and heartbeats are pika's. What is leaned on below the surface of pika 1.4 is kept by
`tests/integration/rabbitmq/test_pika.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from pika import exceptions, frame
from pika.adapters.asyncio_connection import AsyncioConnection, _AsyncioIOServicesAdapter
from pika.connection import Parameters

from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.errors import Gone, connection_gone

#: Bytes read from the socket at a time. pika's own 4 KiB means one call for three small messages.
_READ: Final = 65536
#: Bytes that are written in one piece: a call for each message costs more than all else that is done for it, and a
#: longer wait for more would let the broker idle.
_TOGETHER: Final = 32768

# pika logs each lost connection as several errors with tracebacks; leveret says it once, in a sentence.
_pika_log: Final = logging.getLogger("pika")
if _pika_log.level == logging.NOTSET:
    _pika_log.setLevel(logging.CRITICAL + 1)


class Reader(Protocol):
    """Who reads the frames of one channel that come with each message."""

    def method(self, data: bytes, start: int, end: int) -> bool:
        """Read a method frame's payload; False where it is for pika."""

    def header(self, size: int, properties: bytes) -> None:
        """The header of the content that is coming: its size, and its properties."""

    def body(self, piece: bytes) -> None:
        """A piece of the body."""


class _Loop(_AsyncioIOServicesAdapter):
    """pika's way into asyncio, which also tells when the last byte of a write buffer has gone out."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.drained: Callable[[], object] = bool

    def remove_writer(self, fd: int) -> bool:
        removed = super().remove_writer(fd)
        self.drained()
        return removed


class RawConnection(AsyncioConnection):
    """A connection that is being made; use `connect`.

    Attributes:
        readers: by channel number, who reads what comes with messages there.
        refused: what the broker closed the connection with while it was being made.
    """

    def __init__(
        self,
        parameters: Parameters,
        *,
        opened: Callable[[RawConnection, BaseException | None], None],
    ) -> None:
        self.readers: dict[int, Reader] = {}
        self.refused: exceptions.ConnectionClosedByBroker | None = None
        self._running_loop: Final = asyncio.get_running_loop()
        #: Done with the reason when the connection, once open, is gone.
        self.gone: Final[asyncio.Future[Gone]] = self._running_loop.create_future()
        #: Told the same, at once.
        self.on_gone: Callable[[Gone], object] = bool
        #: Told whether the broker has stopped reading from it.
        self.on_blocked: Callable[[bool], object] = bool
        self.blocked = False
        #: Whether frames are read here: once it has been open, until its end. Messages arrive while it closes, too.
        self._reading = False
        self._unread = b""
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._draining: list[asyncio.Future[None]] = []
        self._encrypted = parameters.ssl_options is not None
        services = _Loop()
        super().__init__(
            parameters,
            on_open_callback=lambda _: opened(self, None),
            on_open_error_callback=lambda _, error: opened(self, self.refused or error),
            on_close_callback=lambda _, reason: self._ended(reason),
            custom_ioloop=services,
        )
        services.drained = self._wake
        self.add_on_connection_blocked_callback(lambda *_: self._block(blocked=True))
        self.add_on_connection_unblocked_callback(lambda *_: self._block(blocked=False))

    @property
    def frame_max(self) -> int:
        """The negotiated frame size."""
        return int(self.params.frame_max)

    @property
    def server_version(self) -> str:
        """The broker's version, such as `4.0.5`; empty where it keeps that to itself."""
        version = (self.server_properties or {}).get("version", "")
        return version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)

    # ── Writing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def buffered(self) -> int:
        """Bytes that were written, and not yet handed to the operating system."""
        transport = self._transport
        waiting = 0 if transport is None else transport.get_write_buffer_size()
        return waiting + self._unsent_size

    async def drained(self) -> None:
        """Return when nothing is buffered, or the connection is gone."""
        self.flush()
        while self.buffered and not self.is_closed:
            waiter = self._running_loop.create_future()
            self._draining.append(waiter)
            await waiter

    def write(self, data: bytes) -> None:
        """Hand *data* to the operating system now; what it does not take waits in the buffer."""
        if self._unsent:
            self.flush()
        transport = self._transport
        if transport is None or transport._state != transport._STATE_ACTIVE:
            return
        rest = memoryview(data)
        if not self._encrypted and not transport.get_write_buffer_size():
            try:
                sent = transport._sock.send(data)
            except OSError:
                # Full, or broken: pika tries again when the socket can be written to, and finds out.
                sent = 0
            self.bytes_sent += sent
            if sent == len(data):
                return
            rest = rest[sent:]
        self.bytes_sent += len(rest)
        # A view, since pika cuts off what was sent: a large body would be copied at each step.
        transport.write(rest)  # type: ignore[arg-type]

    def write_soon(self, data: bytes) -> None:
        """Write *data* at the end of this turn of the loop, together with what else comes in it."""
        if not self._unsent:
            self._running_loop.call_soon(self.flush)
        self._unsent.append(data)
        self._unsent_size += len(data)
        if self._unsent_size >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write now what was to be written soon."""
        unsent, self._unsent, self._unsent_size = self._unsent, [], 0
        if unsent:
            self.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
            if self._draining and not self.buffered:
                self._wake()

    def _output_marshaled_frames(self, marshaled_frames: Any) -> None:
        # What was written before goes out before.
        self.flush()
        super()._output_marshaled_frames(marshaled_frames)

    def _wake(self) -> None:
        if self._draining:
            waiting, self._draining = self._draining, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)

    # ── Reading ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_data_available(self, data_in: bytes) -> None:
        if not self._reading:
            super()._on_data_available(data_in)
            if self.is_open:
                self._reading = True
                self._unread, self._frame_buffer = self._frame_buffer, b""
            return
        data = self._unread + data_in if self._unread else data_in
        size = len(data)
        at = 0
        while size - at >= wire.FRAME_OVERHEAD:
            kind, channel, length = wire.FRAME_HEAD.unpack_from(data, at)
            start = at + 7
            end = start + length
            if end >= size:
                break
            if data[end] != wire.FRAME_END:
                raise exceptions.InvalidFrameError("Invalid FRAME_END marker")
            reader = self.readers.get(channel)
            if reader is None:
                self._for_pika(data[at : end + 1])
            elif kind == wire.FRAME_METHOD:
                if not reader.method(data, start, end):
                    self._for_pika(data[at : end + 1])
            elif kind == wire.FRAME_HEADER:
                # Class and weight, then the size of the body, then the properties.
                reader.header(int.from_bytes(data[start + 4 : start + 12]), data[start + 12 : end])
            elif kind == wire.FRAME_BODY:
                reader.body(data[start:end])
            at = end + 1
        self._unread = data[at:] if at else data
        self.bytes_received += len(data_in)

    def _for_pika(self, data: bytes) -> None:
        if data[0] == wire.FRAME_HEADER or data[0] == wire.FRAME_BODY:
            # Content of a channel that was closed meanwhile. pika would decode its properties.
            return
        _, value = frame.decode_frame(data)
        if value is not None:
            self._process_frame(value)

    # ── Coming and going ──────────────────────────────────────────────────────────────────────────────────────────────

    def _on_connection_close_from_broker(self, method_frame: Any) -> None:
        if not self.is_open:
            # pika would hand on a guess at the reason, and the broker's words only as part of its text.
            method = method_frame.method
            self.refused = exceptions.ConnectionClosedByBroker(method.reply_code, method.reply_text)
        super()._on_connection_close_from_broker(method_frame)

    def _proto_connection_made(self, transport: Any) -> None:
        super()._proto_connection_made(transport)
        transport._MAX_RECV_BYTES = _READ

    def _block(self, *, blocked: bool) -> None:
        self.blocked = blocked
        self.on_blocked(blocked)

    def _ended(self, reason: BaseException) -> None:
        self._unsent, self._unsent_size = [], 0
        self.readers.clear()
        self._wake()
        gone = connection_gone(reason)
        self.gone.set_result(gone)
        self.on_gone(gone)

    def abort(self) -> None:
        """End it without a word to the broker."""
        if not self.is_closed:
            self._terminate_stream(exceptions.StreamLostError("given up"))

    def discard(self) -> None:
        """Close the socket of a connection whose loop is closed: nothing can be told to anybody any more."""
        if self._transport is not None:
            self._transport._sock.close()

    async def goodbye(self) -> None:
        """Take leave of the broker, and return when the connection is gone."""
        if self.is_open:
            self.flush()
            self.close()
        if not self.is_closed:
            await asyncio.wait((self.gone,))


async def connect(parameters: Parameters) -> RawConnection:
    """A connection that is open.

    Raises:
        Exception: whatever pika gives as the reason, or the broker's own words as ConnectionClosedByBroker.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def opened(connection: RawConnection, error: BaseException | None) -> None:
        if arrived.done():
            # Nobody waits for it any more.
            connection.abort()
        elif error is None:
            arrived.set_result(None)
        else:
            arrived.set_exception(error)

    connection = RawConnection(parameters, opened=opened)
    try:
        await arrived
    except asyncio.CancelledError:
        if not connection.is_closed and not connection.is_closing:
            connection.close()
        raise
    return connection
