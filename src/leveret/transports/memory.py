"""The memory transport: a connection to a `MemoryBroker`, kept up like one to RabbitMQ."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from leveret.core.errors import (
    AccessRefused,
    BrokerError,
    BrokerUnreachable,
    ConfigError,
    NotFound,
    PublishError,
    PublishRefused,
    PublishTimeout,
)
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Difference, Topology
from leveret.ports import ConnectionState, Delivery, QueueState, World
from leveret.transports.confirm_window import ConfirmWindow, WindowAnswer
from leveret.transports.memory_broker import MemoryBroker
from leveret.transports.memory_calls import MemoryCallChannel
from leveret.transports.memory_connection import Answer, Connection, Consumer, settle

__all__ = ["MemoryBroker", "MemorySubscription", "MemoryTransport"]

log = logging.getLogger(__name__)

#: Publishes that wait for their answer at a time; a transport lets out no more.
CONFIRM_WINDOW: Final = 1000
#: AMQP's prefetch is 16 bits wide, and 0 would mean no limit.
_MOST_PREFETCH: Final = 65535


class MemorySubscription:
    """A consumer of a memory transport; see `leveret.ports.Subscription`."""

    def __init__(
        self,
        transport: MemoryTransport,
        queue: str,
        on_delivery: Callable[[Delivery], object],
        *,
        prefetch: int,
        exclusive: bool,
    ) -> None:
        self.queue: Final = queue
        self._transport: Final = transport
        self._on_delivery: Final = on_delivery
        self._prefetch: Final = prefetch
        self._exclusive: Final = exclusive
        self._consumer: Consumer | None = None

    @property
    def active(self) -> bool:
        return self._consumer is not None and self._consumer.open

    async def cancel(self) -> None:
        self._transport.forget(self)
        if self._consumer is not None and self._consumer.open:
            self._consumer.connection.broker.retire(self._consumer)
        self._consumer = None

    def start(self, connection: Connection) -> None:
        """Consume on *connection*."""
        self._consumer = connection.broker.consume(
            connection, self.queue, self._on_delivery, prefetch=self._prefetch, exclusive=self._exclusive
        )


class MemoryTransport:
    """A connection to a memory broker; see `leveret.ports.Transport`. After a cut it is back in the loop's next turn.

    Args:
        broker: to talk to.
        world: clock and randomness.
        user: logged in as.
        frame_max: no header frame of a publish may be longer, as on RabbitMQ.

    Example:
        >>> import asyncio
        >>> from leveret.core.message import Outgoing
        >>> from leveret.core.properties import Properties
        >>> from leveret.testing.worlds import fake_world
        >>> async def there_and_back() -> bytes:
        ...     broker = MemoryBroker()
        ...     broker.declare_queue("orders")
        ...     transport = MemoryTransport(broker, world=fake_world())
        ...     await transport.open()
        ...     await transport.send(Outgoing("", "orders", b"one", Properties.build()))
        ...     delivery = await transport.get("orders")
        ...     return delivery.body
        >>> asyncio.run(there_and_back())
        b'one'
    """

    def __init__(
        self, broker: MemoryBroker, *, world: World, user: str = "guest", frame_max: int = 131_072
    ) -> None:
        self._broker: Final = broker
        self._clock: Final = world.clock
        self._user: Final = user
        self._frame_max: Final = frame_max
        self._process: Final = f"{world.random.getrandbits(64):016x}"
        self._connection: Connection | None = None
        self._wanted = False
        self._closed = False
        self._topology = Topology()
        self._subscriptions: dict[MemorySubscription, None] = {}
        self._window: Final = ConfirmWindow(self._room)
        #: Those who need a connection while one is being made.
        self._connecting: list[asyncio.Future[None]] = []
        #: Those who wait until nothing is buffered.
        self._draining: list[asyncio.Future[None]] = []

    @property
    def display(self) -> str:
        return self._broker.display

    @property
    def state(self) -> ConnectionState:
        if self._live() is not None:
            return "blocked" if self._broker.blocked else "connected"
        if self._closed:
            return "closed"
        return "connecting" if self._wanted and self._broker.running else "disconnected"

    @property
    def server_version(self) -> str:
        return ""

    @property
    def frame_max(self) -> int:
        return self._frame_max

    @property
    def user(self) -> str | None:
        return self._user

    @property
    def buffered(self) -> int:
        if self._connection is None:
            return 0
        return sum(len(m.body) + len(m.properties.raw) for m, _ in self._connection.held)

    def flush(self) -> None:
        """Nothing to do: a send is handed on at once."""

    async def drained(self) -> None:
        while self.buffered:
            drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._draining.append(drained)
            await drained

    # ── Coming and going ──────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        if self._live() is not None:
            return
        if not self._broker.running:
            raise BrokerUnreachable(
                f"the broker at {self.display} is stopped. Start it: MemoryBroker.start()"
            )
        self._wanted, self._closed = True, False
        self._connect()

    async def close(self) -> None:
        if self._closed:
            return
        for subscription in list(self._subscriptions):
            await subscription.cancel()
        self._end()
        # What the broker has answered by now still reaches its callers; what it has not is unknown from here on.
        await asyncio.sleep(0)
        self._cut()

    def abort(self) -> None:
        """End as a process that dies ends: no goodbye, no return. The broker has all back that was unsettled."""
        self._end()
        self._cut()

    def discard(self) -> None:
        """Nothing to do: it has no socket."""

    def _end(self) -> None:
        self._wanted, self._closed = False, True
        self._topology = Topology()
        self._subscriptions.clear()
        self._broker.while_hopeful(self._soon_again, hopeful=False)

    def _cut(self) -> None:
        if self._connection is not None:
            self._broker.lose(self._connection)
        self._window.fail(self._not_connected)
        self._turn_away()

    def _connect(self) -> None:
        self._connection = self._broker.attach(
            self._clock,
            user=self._user,
            frame_max=self._frame_max,
            process=self._process,
            answered=self._answered,
            lost=self._lost,
            consumer_gone=self._consume_again,
        )
        self._redeclare()
        self._consume_again()
        self._window.opened()
        self._connecting = _wake(self._connecting)

    def _answered(self) -> None:
        self._window.opened()
        if self._draining:
            self._draining = _wake(self._draining)

    def _lost(self, unanswered: list[Answer]) -> None:
        for answer in unanswered:
            settle(
                answer,
                PublishTimeout(
                    f"the connection to {self.display} went before an answer came. Unknown whether the message "
                    "arrived: send it again under the same id"
                ),
            )
        self._draining = _wake(self._draining)
        self._come_back()

    def _come_back(self) -> None:
        if not self._wanted or self._live() is not None:
            return
        if self._broker.running:
            self._connect()
            return
        self._broker.when_started(asyncio.get_running_loop(), self._come_back)
        self._turn_away()

    def _turn_away(self) -> None:
        waiting, self._connecting = self._connecting, []
        for arrived in waiting:
            if not arrived.done():
                arrived.set_exception(self._unreachable())

    def _live(self) -> Connection | None:
        """The connection, where there is one now."""
        connection = self._connection
        if connection is None or not connection.open:
            return None
        if connection.loop.is_closed():
            # It died with its loop. Whoever opens the transport anew, on another loop, gets another one.
            self._broker.lose(connection)
            self._wanted = False
            return None
        return connection

    async def _connected(self) -> Connection:
        """The connection, after what would be a round trip to the broker; a new one where it is just being made.

        Raises:
            BrokerUnreachable: there is none, and none is being made.
        """
        await asyncio.sleep(0)
        while (connection := self._live()) is None:
            if self.state != "connecting":
                raise self._unreachable()
            arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._connecting.append(arrived)
            await arrived
        return connection

    def _unreachable(self) -> BrokerUnreachable:
        if self._closed or not self._wanted:
            return BrokerUnreachable(
                f"the connection to {self.display} is not open. Open it first: await transport.open()"
            )
        return BrokerUnreachable(f"the broker at {self.display} is stopped")

    def _not_connected(self) -> PublishRefused:
        return PublishRefused(
            f"not connected to {self.display} ({self.state}): not sent. Send it again once ready() returns"
        )

    # ── What lies on the broker ───────────────────────────────────────────────────────────────────────────────────────

    async def declare(self, topology: Topology) -> Sequence[str]:
        connection = await self._connected()
        notes = self._broker.declare(topology, connection)
        self._topology += topology
        return notes

    async def inspect(self, topology: Topology) -> Sequence[Difference]:
        await self._connected()
        return self._broker.inspect(topology)

    async def queue_state(self, queue: str) -> QueueState | None:
        await self._connected()
        return self._broker.queue_state(queue)

    def _redeclare(self) -> None:
        try:
            self._broker.declare(self._topology, self._connection)
        except (BrokerError, NotFound) as error:
            log.error("declared again on %s: %s", self.display, error, extra={"action": "redeclare"})

    # ── Publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def sendable(self) -> bool:
        return self._window.open

    async def ready(self) -> None:
        if self._closed:
            raise self._not_connected()
        await self._window.enter()

    def send(self, message: Outgoing) -> asyncio.Future[None]:
        connection = self._live()
        if connection is None:
            loop = asyncio.get_running_loop()
            refused: asyncio.Future[None] = loop.create_future()
            # In the loop's next turn, so that whoever sends again and again leaves room for the reconnect.
            error = self._not_connected()
            loop.call_soon(settle, refused, error)
            return refused
        answer = WindowAnswer(loop=connection.loop)
        answer.given_up = partial(connection.forget, answer)
        self._broker.publish(connection, message, answer)
        return answer

    async def renew_publishing(self) -> None:
        await self._connected()

    def _room(self) -> int:
        connection = self._live()
        if connection is None or self._broker.blocked:
            return 0
        return CONFIRM_WINDOW - connection.outstanding

    # ── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def call_channel(
        self,
        *,
        on_reply: Callable[[bytes, Properties], object],
        on_return: Callable[[str], object],
        on_gone: Callable[[PublishError], object],
    ) -> MemoryCallChannel:
        return MemoryCallChannel(
            await self._connected(), on_reply=on_reply, on_return=on_return, on_gone=on_gone
        )

    # ── Consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def consume(
        self, queue: str, on_delivery: Callable[[Delivery], object], *, prefetch: int, exclusive: bool = False
    ) -> MemorySubscription:
        if not 1 <= prefetch <= _MOST_PREFETCH:
            raise ConfigError(
                f"prefetch={prefetch!r} for {queue}: expected 1 to {_MOST_PREFETCH} unsettled messages"
            )
        connection = await self._connected()
        subscription = MemorySubscription(self, queue, on_delivery, prefetch=prefetch, exclusive=exclusive)
        subscription.start(connection)
        self._subscriptions[subscription] = None
        return subscription

    async def get(self, queue: str) -> Delivery | None:
        return self._broker.fetch(await self._connected(), queue)

    def forget(self, subscription: MemorySubscription) -> None:
        """Do not bring that consumer back."""
        self._subscriptions.pop(subscription, None)

    def _consume_again(self) -> None:
        """Start what should consume and does not; what cannot yet is tried again when something changes over there."""
        connection = self._live()
        inactive = [subscription for subscription in self._subscriptions if not subscription.active]
        if connection is None or not inactive:
            return
        owned = {queue.name for queue in self._topology.queues}
        if any(s.queue in owned and self._broker.queue_state(s.queue) is None for s in inactive):
            self._redeclare()
        for subscription in inactive:
            try:
                subscription.start(connection)
            except (NotFound, AccessRefused) as error:
                log.warning(
                    "%s is not consumed for now: %s", subscription.queue, error, extra={"action": "consume"}
                )
        hopeful = any(not subscription.active for subscription in inactive)
        self._broker.while_hopeful(self._soon_again, hopeful=hopeful)

    def _soon_again(self) -> None:
        """Called by the broker, from whichever thread changed something there."""
        if self._connection is not None and self._connection.open:
            self._connection.post(self._consume_again)


def _wake(waiting: list[asyncio.Future[None]]) -> list[asyncio.Future[None]]:
    """Wake all who wait; those who wait from here on."""
    for waiter in waiting:
        if not waiter.done():
            waiter.set_result(None)
    return []
