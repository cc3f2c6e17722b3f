"""Direct reply-to, as the memory broker has it: addresses that are no queues, each of one call channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.core.errors import PublishError, PublishRefused, PublishTimeout, Unroutable
from leveret.core.message import DIRECT_REPLY, Outgoing
from leveret.core.properties import Properties
from leveret.transports.memory_connection import Answer, Connection
from leveret.transports.memory_publish import check_frame
from leveret.transports.memory_routing import check_address

if TYPE_CHECKING:
    from leveret.transports.memory_broker import MemoryBroker


class MemoryCallChannel:
    """See `leveret.ports.CallChannel`."""

    def __init__(
        self,
        connection: Connection,
        *,
        on_reply: Callable[[bytes, Properties], object],
        on_return: Callable[[str], object],
        on_gone: Callable[[PublishError], object],
    ) -> None:
        self._connection: Final = connection
        self._broker: Final[MemoryBroker] = connection.broker
        self._on_reply: Final = on_reply
        self._on_return: Final = on_return
        self._on_gone: Final = on_gone
        self._number = 0
        self._closed = False
        self._address: Final = self._broker.listen(connection, self._replied, self._lost)

    @property
    def blocked(self) -> bool:
        return self._broker.blocked

    def send(self, request: Outgoing) -> str:
        if self._closed or not self._connection.open:
            raise PublishRefused(
                f"its channel to {self._broker.display} is gone: not sent. Send it on a new one"
            )
        check_address(request.exchange, request.routing_key)
        check_frame(request, frame_max=self._connection.frame_max)
        if request.properties.reply_to == DIRECT_REPLY:
            here = request.properties.edit(fields={"reply_to": self._address})
            request = request._replace(properties=here)
        self._number += 1
        name = f"{self._address}/{self._number}"
        answer: Answer = self._connection.loop.create_future()
        answer.add_done_callback(lambda answer: self._answered(name, answer))
        self._broker.publish(self._connection, request, answer)
        return name

    def leave(self) -> None:
        if not self._closed:
            self._closed = True
            self._broker.listen_no_more(self._connection, self._address)

    def _answered(self, name: str, answer: Answer) -> None:
        """What the broker says of a request; RabbitMQ tells of a return, and closes the channel over a refusal."""
        if self._closed or answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, Unroutable):
            self._on_return(name)
        elif isinstance(error, PublishRefused) and error.code is not None:
            self.leave()
            self._on_gone(error)

    def _replied(self, message: Outgoing) -> None:
        if not self._closed:
            self._on_reply(message.body, message.properties)

    def _lost(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_gone(PublishTimeout(f"{self._broker.display}: the connection was lost"))
