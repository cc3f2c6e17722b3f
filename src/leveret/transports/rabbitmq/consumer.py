"""Consuming: deliveries, the channels they come by, and subscriptions that come back after any outage."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from leveret.core.errors import AccessRefused, BrokerError, LeveretError, NotFound
from leveret.core.properties import Properties
from leveret.ports import Delivery, World
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.channel import Channel, Handed
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.link import Backoff

log = logging.getLogger("leveret.transports.rabbitmq")

#: Seconds at most until a consumer that was refused is tried again: queues come back, and exclusive ones get free.
_TRY_AGAIN: Final = 5.0


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
                await self.call(self.pika.basic_cancel, consumer_tag=self._consumer)
            except Gone:
                return
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
            self._ended(Gone("the broker cancelled the consumer"))

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


class RabbitSubscription:
    """A consumer that comes back; see `leveret.ports.Subscription`."""

    def __init__(
        self,
        consumers: Consumers,
        queue: str,
        on_delivery: Callable[[Delivery], object],
        *,
        prefetch: int,
        exclusive: bool,
    ) -> None:
        self.queue: Final = queue
        self._consumers: Final = consumers
        self._on_delivery: Final = on_delivery
        self._prefetch: Final = prefetch
        self._exclusive: Final = exclusive
        self._channel: Consuming | None = None
        self._cancelled = False

    @property
    def active(self) -> bool:
        return self._channel is not None

    async def cancel(self) -> None:
        self._cancelled = True
        self._consumers.forget(self)
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.leave()

    async def start(self, connection: RawConnection) -> None:
        """Consume on *connection*.

        Raises:
            Gone: the connection went, or its channel without a word.
            NotFound, AccessRefused: the broker does not let us.
        """
        channel = Consuming(connection, self.queue, self._on_delivery, self._ended)
        try:
            await channel.start(prefetch=self._prefetch, exclusive=self._exclusive)
        except Gone as gone:
            if gone.code == 404:
                raise NotFound(f"{gone.words}. Declare the queue first") from gone
            if gone.code is not None and not gone.whole:
                raise AccessRefused(f"{self.queue} cannot be consumed: {gone.words}") from gone
            raise
        except BaseException:
            channel.close_soon()
            raise
        if self._cancelled:
            await channel.leave()
        elif not channel.over:
            self._channel = channel
        elif channel.gone is not None and channel.gone.whole:
            raise channel.gone
        else:
            raise NotFound(
                f"{self.queue}: the broker ended the consumer as soon as it had begun. Is the queue there?"
            )

    def end(self) -> None:
        """The transport closes: hand over nothing more, settle nothing more."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.over = True

    def _ended(self, gone: Gone) -> None:
        was_active, self._channel = self._channel is not None, None
        if was_active and not gone.whole:
            self._consumers.ended(self, gone)


class Consumers:
    """All subscriptions of a transport: they come back with the connection, and alone when only their queue went.

    Args:
        world: clock and randomness.
        connection: the one there is, None where it is down.
        redeclare: declares again what we own, before a consumer of a queue that may be gone starts again.
    """

    def __init__(
        self,
        *,
        world: World,
        connection: Callable[[], RawConnection | None],
        redeclare: Callable[[RawConnection, str], Awaitable[None]],
    ) -> None:
        self._world: Final = world
        self._connection: Final = connection
        self._redeclare: Final = redeclare
        self._subscriptions: dict[RabbitSubscription, None] = {}
        self._reviving: set[asyncio.Task[None]] = set()

    def add(self, subscription: RabbitSubscription) -> None:
        """Bring it back from here on."""
        self._subscriptions[subscription] = None
        if not subscription.active:
            # Its channel went in the very turn in which it began.
            self.ended(subscription, Gone("it ended at once"))

    def forget(self, subscription: RabbitSubscription) -> None:
        """Bring it back no more."""
        self._subscriptions.pop(subscription, None)

    def clear(self) -> None:
        """End all of them, and bring none back."""
        for subscription in self._subscriptions:
            subscription.end()
        self._subscriptions.clear()
        for task in self._reviving:
            task.cancel()

    async def build(self, connection: RawConnection) -> None:
        """Start all of them on a new connection. One that cannot start is tried again by itself.

        Raises:
            Gone: the connection went.
        """
        for subscription in list(self._subscriptions):
            try:
                await subscription.start(connection)
            except (NotFound, AccessRefused) as error:
                self._revive(subscription, connection, error)

    def ended(self, subscription: RabbitSubscription, gone: Gone) -> None:
        """Its channel closed, or the broker cancelled it, on a connection that is up."""
        connection = self._connection()
        if connection is not None and subscription in self._subscriptions:
            log.warning(
                "%s is not consumed any more: %s; consuming again",
                subscription.queue,
                gone.words,
                extra={"action": "consume"},
            )
            self._revive(subscription, connection, None)

    def _revive(
        self, subscription: RabbitSubscription, connection: RawConnection, error: LeveretError | None
    ) -> None:
        task = asyncio.create_task(
            self._keep_trying(subscription, connection, error), name=f"leveret consumes {subscription.queue}"
        )
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    async def _keep_trying(
        self, subscription: RabbitSubscription, connection: RawConnection, error: LeveretError | None
    ) -> None:
        backoff = Backoff(self._world)
        while subscription in self._subscriptions and not connection.gone.done():
            if error is not None:
                log.warning(
                    "%s is not consumed for now: %s", subscription.queue, error, extra={"action": "consume"}
                )
                await self._world.clock.sleep(min(backoff.next(), _TRY_AGAIN))
                if subscription not in self._subscriptions or connection.gone.done():
                    return
            try:
                await self._redeclare(connection, subscription.queue)
                await subscription.start(connection)
            except (NotFound, BrokerError) as again:
                error = again
            except Gone as gone:
                if gone.whole:
                    return
                error = BrokerError(gone.words)
            else:
                return
