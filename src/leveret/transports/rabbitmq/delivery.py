"""Deliveries, and the channels they come by: one for each consumer, and one for each queue that is fetched from."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from leveret.core.properties import Properties
from leveret.ports import Delivery
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.channel import Channel, Handed
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone

log = logging.getLogger("leveret.transports.rabbitmq")

#: The broker gives no reason. From 4.3 on, what quorum queues do to a consumer that is late is among them.
_CANCELLED: Final = (
    "the broker cancelled the consumer (its queue was deleted or moved, or a message was in hand for longer than the "
    "broker's consumer_timeout)"
)
#: Seconds that a consumer waits for the broker to say that it is cancelled: over a half-open line it never does, and
#: whoever stops has to come to an end.
LEAVE: Final = 5.0


class RabbitDelivery:
    """A message handed over by RabbitMQ; see `leveret.ports.Delivery`."""

    __slots__ = ("_bare", "_message", "_properties", "_settled", "_source", "queue")

    def __init__(self, source: Taking, queue: str, message: Handed) -> None:
        self.queue: Final = queue
        self._source = source
        self._message = message
        self._properties = Properties(message.properties)
        self._settled = False
        self._bare: Properties | None = None

    @property
    def exchange(self) -> str:
        return self._message.exchange

    @property
    def routing_key(self) -> str:
        return self._message.routing_key

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def properties(self) -> Properties:
        if self._bare is None:
            self._bare = wire.untagged(self._properties)
        return self._bare

    @property
    def tag(self) -> str | None:
        return wire.tag_of(self._properties)

    @property
    def redelivered(self) -> bool:
        return self._message.redelivered

    @property
    def stale(self) -> bool:
        return self._source.over

    def ack(self) -> bool:
        if self._settled or self._source.over:
            return False
        self._settled = True
        self._source.settle(wire.ack(self._source.number, self._message.delivery))
        return True

    def requeue(self) -> bool:
        if self._settled or self._source.over:
            return False
        self._settled = True
        self._source.settle(wire.requeue(self._source.number, self._message.delivery))
        return True

    def __repr__(self) -> str:
        return (
            f"<delivery from {self.queue} of {len(self.body)} bytes, {self.exchange!r} {self.routing_key!r}>"
        )


class Taking(Channel):
    """A channel by which messages of one queue come.

    Attributes:
        over: whether it is gone, or the broker cancelled its consumer: nothing can be settled any more.
        unsettled: how many messages were handed over and not settled.
    """

    def __init__(self, connection: RawConnection, queue: str) -> None:
        super().__init__(connection)
        self.queue: Final = queue
        self.over = False
        self.unsettled = 0

    def settle(self, frame: bytes) -> None:
        """Send an ack or requeue."""
        self.unsettled -= 1
        self.connection.write_soon(frame)

    def closed(self, reason: Gone) -> None:
        self.over = True


class Fetching(Taking):
    """Fetches messages of one queue one by one."""

    def __init__(self, connection: RawConnection, queue: str) -> None:
        super().__init__(connection, queue)
        self._asked: deque[asyncio.Future[RabbitDelivery | None]] = deque()

    async def get(self) -> RabbitDelivery | None:
        """One message, or None where there is none.

        Raises:
            Gone: the channel closed instead, with 404 where there is no such queue.
        """
        await self.open()
        asked: asyncio.Future[RabbitDelivery | None] = asyncio.get_running_loop().create_future()
        self.connection.write_soon(wire.get(self.number, self.queue))
        self._asked.append(asked)
        return await asked

    def handed(self, message: Handed) -> None:
        delivery = RabbitDelivery(self, self.queue, message)
        self.unsettled += 1
        asked = self._asked.popleft()
        if asked.done():
            # Whoever asked was cancelled meanwhile.
            delivery.requeue()
        else:
            asked.set_result(delivery)

    def nothing(self) -> None:
        asked = self._asked.popleft()
        if not asked.done():
            asked.set_result(None)

    def closed(self, reason: Gone) -> None:
        super().closed(reason)
        while self._asked:
            asked = self._asked.popleft()
            if not asked.done():
                asked.set_exception(reason)


class Consuming(Taking):
    """Has messages of one queue handed to a receiver.

    Args:
        connection: to open it on.
        queue: to be consumed.
        on_delivery: the receiver.
        ended: told once when it ended, unless it was left.
    """

    def __init__(
        self,
        connection: RawConnection,
        queue: str,
        on_delivery: Callable[[Delivery], object],
        ended: Callable[[Gone], object],
    ) -> None:
        super().__init__(connection, queue)
        self._on_delivery: Final = on_delivery
        self._ended: Final = ended
        self._consumer = ""
        self._leaving = False
        #: What came before whoever subscribed knows that the subscription stands.
        self._early: list[RabbitDelivery] | None = []

    async def start(self, *, prefetch: int, exclusive: bool) -> None:
        """Consume.

        Raises:
            Gone: the broker refused, or went.
        """
        await self.call(self.pika.basic_qos, prefetch_count=prefetch)
        answer = await self.call(
            self.pika.basic_consume,
            queue=self.queue,
            # Deliveries are read before pika sees them.
            on_message_callback=_nothing,
            exclusive=exclusive,
        )
        self._consumer = answer.consumer_tag
        asyncio.get_running_loop().call_soon(self._release)

    async def leave(self) -> None:
        """Take no more; what came can still be settled, and then the channel closes."""
        self._leaving = True
        if not self.over:
            try:
                async with asyncio.timeout(LEAVE):
                    await self.call(self.pika.basic_cancel, consumer_tag=self._consumer)
            except Gone:
                return
            except TimeoutError:
                # What comes all the same is given back, and so is what is in hand when the connection ends.
                log.warning(
                    "the broker did not say in %g s that %s is consumed no more; not waited for any longer",
                    LEAVE, self.queue, extra={"action": "consume"},
                )  # fmt: skip
            self._release()
            self._close_when_settled()

    def settle(self, frame: bytes) -> None:
        super().settle(frame)
        if self._leaving:
            self._close_when_settled()

    def handed(self, message: Handed) -> None:
        if self.over:
            # On its way when the end came; the broker has it back.
            return
        delivery = RabbitDelivery(self, self.queue, message)
        self.unsettled += 1
        if self._leaving:
            delivery.requeue()
        elif self._early is not None:
            self._early.append(delivery)
        else:
            self._hand_over(delivery)

    def cancelled(self) -> None:
        # The queue is gone, moved, or waited too long for an ack: the broker has all back that can be had back.
        self.over = True
        self.close_soon()
        if not self._leaving:
            self._leaving = True
            self._ended(Gone(_CANCELLED))

    def closed(self, reason: Gone) -> None:
        super().closed(reason)
        if not self._leaving:
            self._leaving = True
            self._ended(reason)

    def _release(self) -> None:
        early, self._early = self._early or [], None
        for delivery in early:
            if self._leaving:
                delivery.requeue()
            elif not self.over:
                self._hand_over(delivery)

    def _hand_over(self, delivery: RabbitDelivery) -> None:
        try:
            self._on_delivery(delivery)
        except Exception as error:  # noqa: BLE001 - one receiver's fault must not cost others their messages
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the receiver of messages from {self.queue} failed", "exception": error}
            )

    def _close_when_settled(self) -> None:
        if not self.unsettled:
            self.close_soon()


def _nothing(*_: object) -> None:
    """What pika is given to call with messages that it never sees."""
