"""Consuming: subscriptions that come back after any outage, each once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from leveret.core.errors import AccessRefused, BrokerError, LeveretError, NotFound
from leveret.ports import Delivery, World
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.delivery import Consuming
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.link import Backoff

log = logging.getLogger("leveret.transports.rabbitmq")

#: Seconds at most until a consumer that was refused is tried again: queues come back, and exclusive ones get free.
_TRY_AGAIN: Final = 5.0
#: How RabbitMQ says that a message was in hand for too long; it does not name the setting.
_TIMED_OUT: Final = "delivery acknowledgement on channel"
_TIMED_OUT_MEANS: Final = " (a message was in hand for longer than the broker's consumer_timeout)"


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
                "%s is not consumed any more: %s%s; consuming again",
                subscription.queue,
                gone.words,
                _TIMED_OUT_MEANS if _TIMED_OUT in gone.words else "",
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
