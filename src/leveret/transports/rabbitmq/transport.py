"""The RabbitMQ transport: connections that are kept up. One publishes, one consumes, declares and asks, one calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from leveret.core.errors import (
    BrokerError,
    BrokerUnreachable,
    ConfigError,
    NotFound,
    PublishError,
    PublishRefused,
)
from leveret.core.message import Outgoing
from leveret.core.properties import Properties, check_short
from leveret.core.topology import Difference, Topology
from leveret.core.urls import BrokerUrl
from leveret.ports import ConnectionState, Delivery, QueueState, World
from leveret.transports.confirm_window import ConfirmWindow, WindowAnswer
from leveret.transports.rabbitmq.address import connect_to
from leveret.transports.rabbitmq.calls import CallLine, RabbitCallChannel
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.consumer import Consumers, RabbitSubscription
from leveret.transports.rabbitmq.declare import Calls, declare, inspect, queue_state
from leveret.transports.rabbitmq.delivery import Fetching
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.link import Link
from leveret.transports.rabbitmq.publisher import PublishChannel, Publisher, settle
from leveret.transports.rabbitmq.quarantine import Quarantine

R = TypeVar("R")

log = logging.getLogger("leveret.transports.rabbitmq")

#: Publishes that wait for their answer at a time; a transport lets out no more.
CONFIRM_WINDOW: Final = 1000
#: AMQP's prefetch is 16 bits wide, and 0 would mean no limit, or 2000 on a quorum queue.
_MOST_PREFETCH: Final = 65535
#: pika's wish, which the broker may lower; shown until a connection says what it was granted.
_FRAME_MAX: Final = 131_072
#: Seconds that `close` may take; a broker that is blocked reads no goodbye.
_CLOSE: Final = 5.0
#: Seconds that the broker has to answer a fetch. A quorum queue without a leader may let it wait for ever.
_ANSWER: Final = 10.0
#: Seconds in which publishes on a connection that was replaced may still be answered; whoever sent them has a deadline.
_DRAIN: Final = 30.0
#: Seconds between looks whether they are.
_LOOK: Final = 0.1


class RabbitTransport:
    """A connection to RabbitMQ; see `leveret.ports.Transport`.

    Publishing has a connection of its own, so that a broker that is short of memory stops publishes and no acks.

    Args:
        url: of the broker: amqp or amqps.
        world: clock and randomness for the waits between tries to connect again.

    Example:
        ```
        transport = RabbitTransport(parse_broker("amqp://localhost", "here"), world=system_world())
        await transport.open()
        await transport.send(Outgoing("", "orders", b"one", Properties.build()))
        ```
    """

    def __init__(self, url: BrokerUrl, *, world: World) -> None:
        self._url: Final = url
        self._world: Final = world
        self._process: Final = f"{world.random.getrandbits(64):016x}"
        self._frame_max = _FRAME_MAX
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Forget every connection, and all that belongs on one."""
        self._topology = Topology()
        self._window = ConfirmWindow(self._room)
        self._calls = Calls()
        self._fetching: dict[str, Fetching] = {}
        #: Connections that were replaced, while publishes on them may still be answered.
        self._leaving: dict[asyncio.Task[None], RawConnection] = {}
        self._publishing = self._link("publishes", self._build_publishing, self._publishing_lost)
        self._consuming = self._link("consumes", self._build_consuming, lambda _: self._fetching.clear())
        self._line = CallLine(
            # Nothing is built on it: each channel is made when it is asked for, and hears itself when it is lost.
            self._link("calls", self._build_nothing, bool),
            process=self._process,
            display=self.display,
        )
        self._publisher = Publisher(
            process=self._process,
            display=self.display,
            answered=self._answered,
            poisoned=lambda sent, gone: self._quarantine.take(sent, gone),  # noqa: PLW0108 - made below
        )
        self._quarantine = Quarantine(
            shared=lambda: self._publishing.connection,
            alone=lambda: connect_to(self._url, "tries a publish again"),
            channel=self._publisher.channel,
            display=self.display,
            answered=self._answered,
        )
        self._consumers = Consumers(
            world=self._world,
            connection=lambda: self._consuming.connection,
            redeclare=self._redeclare_if_ours,
        )

    def _link(
        self, purpose: str, built: Callable[[RawConnection], Awaitable[None]], lost: Callable[[Gone], object]
    ) -> Link:
        return Link(
            lambda: connect_to(self._url, purpose),
            world=self._world,
            name=f"the connection to {self.display} that {purpose}",
            built=built,
            lost=lost,
        )

    @property
    def display(self) -> str:
        return str(self._url)

    @property
    def state(self) -> ConnectionState:
        if self._closed:
            return "closed"
        publishing = self._publishing.connection
        if publishing is not None and self._consuming.up:
            return "blocked" if publishing.blocked else "connected"
        return "connecting" if self._publishing.on_its_way or self._consuming.on_its_way else "disconnected"

    @property
    def frame_max(self) -> int:
        return self._frame_max

    @property
    def user(self) -> str | None:
        return self._url.user

    @property
    def server_version(self) -> str:
        """The broker's version, such as `4.0.5`; empty while it is not connected."""
        connection = self._consuming.connection
        return "" if connection is None else connection.server_version

    @property
    def buffered(self) -> int:
        connection = self._publishing.connection
        return 0 if connection is None else connection.buffered

    def flush(self) -> None:
        connection = self._publishing.connection
        if connection is not None:
            connection.flush()

    async def drained(self) -> None:
        connection = self._publishing.connection
        if connection is not None:
            await connection.drained()

    # ── Coming and going ──────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._publishing.is_open:
            return
        if self._loop is not None and self._loop.is_closed():
            # What was not closed before its loop was died with it.
            self.discard()
        self._start_afresh()
        self._loop = loop
        self._closed = False
        try:
            # One after the other: the second would only repeat why the first one failed.
            await self._consuming.open()
            await self._publishing.open()
        except BaseException:
            self._consuming.abort()
            self._publishing.abort()
            raise

    async def close(self) -> None:
        if self._closed:
            return
        self._end()
        publishing = self._publishing.connection
        if publishing is not None and publishing.blocked:
            publishing.abort()
        try:
            async with asyncio.timeout(_CLOSE):
                await asyncio.gather(self._publishing.close(), self._consuming.close(), self._line.close())
        except TimeoutError:
            log.warning(
                "%s did not say goodbye in %.0f s; cut off", self.display, _CLOSE, extra={"action": "close"}
            )
            for link in (self._publishing, self._consuming, self._line):
                await link.cut()

    def abort(self) -> None:
        """End as a process that dies ends: no goodbye, no return. The broker gets all back that was unsettled."""
        if not self._closed:
            self._end()
            self._publishing.abort()
            self._consuming.abort()
            self._line.abort()

    def discard(self) -> None:
        for connection in self._leaving.values():
            connection.discard()
        self._publishing.discard()
        self._consuming.discard()
        self._line.discard()

    def _end(self) -> None:
        self._closed = True
        for leaving, connection in self._leaving.items():
            leaving.cancel()
            connection.abort()
        self._consumers.clear()
        self._window.fail(self._not_connected)
        self._quarantine.abort()

    async def _build_publishing(self, connection: RawConnection) -> None:
        connection.on_blocked = lambda _: self._answered()
        # A broker that lost its queues would call everything unroutable until they are declared again.
        await self._consuming.attempted()
        await self._publisher.build(connection)
        self._frame_max = connection.frame_max
        # Counted as connected when this returns.
        asyncio.get_running_loop().call_soon(self._answered)

    async def _build_consuming(self, connection: RawConnection) -> None:
        await self._redeclare(connection)
        await self._consumers.build(connection)

    async def _build_nothing(self, _: RawConnection) -> None:
        pass

    def _publishing_lost(self, _: Gone) -> None:
        # Its channel has told each publish already.
        self._answered()

    def _not_connected(self) -> PublishRefused:
        return PublishRefused(
            f"not connected to {self.display} ({self.state}): not sent. Send it again once ready() returns"
        )

    async def _with_connection(self, act: Callable[[RawConnection], Awaitable[R]]) -> R:
        """What *act* gives on the consuming connection; on the next one, where the connection goes meanwhile."""
        while True:
            if self._closed:
                raise BrokerUnreachable(
                    f"the connection to {self.display} is not open. Open it first: await transport.open()"
                )
            connection = await self._consuming.arrived()
            try:
                return await act(connection)
            except Gone as gone:
                if not gone.whole:
                    raise BrokerUnreachable(f"{self.display}: {gone.words}") from gone
                # It may be told of the channel before it is told of the connection.
                await asyncio.sleep(0)

    # ── What lies on the broker ───────────────────────────────────────────────────────────────────────────────────────

    async def declare(self, topology: Topology) -> Sequence[str]:
        notes = await self._with_connection(lambda connection: declare(self._calls, connection, topology))
        self._topology += topology
        return notes

    async def inspect(self, topology: Topology) -> Sequence[Difference]:
        return await self._with_connection(lambda connection: inspect(self._calls, connection, topology))

    async def queue_state(self, queue: str) -> QueueState | None:
        check_short(queue, "queue")
        return await self._with_connection(lambda connection: queue_state(self._calls, connection, queue))

    async def _redeclare(self, connection: RawConnection) -> None:
        ours = self._topology
        # One at a time: what is refused now must not keep the others away.
        for part in (
            *(Topology(exchanges=(exchange,)) for exchange in ours.exchanges),
            *(Topology(queues=(queue,)) for queue in ours.queues),
            *(Topology(bindings=(binding,)) for binding in ours.bindings),
        ):
            try:
                await declare(self._calls, connection, part)
            except (BrokerError, NotFound) as error:
                log.error("declared again on %s: %s", self.display, error, extra={"action": "redeclare"})

    async def _redeclare_if_ours(self, connection: RawConnection, queue: str) -> None:
        if any(queue == ours.name for ours in self._topology.queues):
            await self._redeclare(connection)

    # ── Publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def sendable(self) -> bool:
        return self._window.open

    async def ready(self) -> None:
        if self._closed:
            raise self._not_connected()
        await self._window.enter()

    def send(self, message: Outgoing) -> asyncio.Future[None]:
        answer = WindowAnswer(loop=self._loop)
        if self._closed or self._publishing.connection is None or not self._publisher.send(message, answer):
            # In the loop's next turn, so that whoever sends again and again leaves room for the reconnect.
            answer.get_loop().call_soon(settle, answer, self._not_connected())
        return answer

    async def renew_publishing(self) -> None:
        if self._closed or not self._publishing.is_open:
            raise BrokerUnreachable(
                f"the connection to {self.display} is not open. Open it first: await transport.open()"
            )
        # The new one counts only once queues are declared again where the broker went with them.
        self._consuming.hurry()
        link = self._link("publishes", self._build_publishing, self._publishing_lost)
        with self._publisher.kept_on_failure():
            await link.open()
        old, self._publishing = self._publishing, link
        connection = old.retire()
        if connection is not None:
            leaving = asyncio.create_task(self._take_leave(connection), name="leveret replaced connection")
            self._leaving[leaving] = connection
            leaving.add_done_callback(lambda task: self._leaving.pop(task, None))
        self._answered()

    async def _take_leave(self, connection: RawConnection) -> None:
        """End a connection that was replaced, once what was published there is answered, or will hardly be any more."""
        clock = self._world.clock
        until = clock.monotonic() + _DRAIN
        while (
            not connection.gone.done()
            and clock.monotonic() < until
            and any(isinstance(each, PublishChannel) and each.sent for each in connection.readers.values())
        ):
            await clock.sleep(_LOOK)
        try:
            async with asyncio.timeout(_CLOSE):
                await connection.goodbye()
        except TimeoutError:
            connection.abort()

    def _room(self) -> int:
        connection = self._publishing.connection
        outstanding = self._publisher.outstanding
        if self._closed or connection is None or connection.blocked or outstanding is None:
            return 0
        return CONFIRM_WINDOW - outstanding - len(self._quarantine)

    def _answered(self) -> None:
        self._window.opened()

    # ── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def call_channel(
        self,
        *,
        on_reply: Callable[[bytes, Properties], object],
        on_return: Callable[[str], object],
        on_gone: Callable[[PublishError], object],
    ) -> RabbitCallChannel:
        if self._closed or not self._publishing.is_open:
            raise BrokerUnreachable(
                f"the connection to {self.display} is not open. Open it first: await transport.open()"
            )
        return await self._line.channel(on_reply=on_reply, on_return=on_return, on_gone=on_gone)

    # ── Consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def consume(
        self, queue: str, on_delivery: Callable[[Delivery], object], *, prefetch: int, exclusive: bool = False
    ) -> RabbitSubscription:
        if not 1 <= prefetch <= _MOST_PREFETCH:
            raise ConfigError(
                f"prefetch={prefetch!r} for {queue}: expected 1 to {_MOST_PREFETCH} unsettled messages"
            )
        check_short(queue, "queue")
        subscription = RabbitSubscription(
            self._consumers, queue, on_delivery, prefetch=prefetch, exclusive=exclusive
        )
        await self._with_connection(subscription.start)
        self._consumers.add(subscription)
        return subscription

    async def get(self, queue: str) -> Delivery | None:
        check_short(queue, "queue")
        return await self._with_connection(lambda connection: self._get(connection, queue))

    async def _get(self, connection: RawConnection, queue: str) -> Delivery | None:
        # A channel for each queue: the broker closes it over a queue that is gone, and with it goes what was unsettled.
        channel = self._fetching.get(queue)
        if channel is None or channel.gone is not None:
            channel = self._fetching[queue] = Fetching(connection, queue)
        try:
            async with asyncio.timeout(_ANSWER):
                return await channel.get()
        except Gone as gone:
            if gone.code != 404:
                raise
            self._fetching.pop(queue, None)
            return None
        except TimeoutError:
            # What comes all the same goes back with the channel.
            if self._fetching.get(queue) is channel:
                del self._fetching[queue]
            channel.close_soon()
            raise BrokerUnreachable(
                f"{self.display} did not say in {_ANSWER:g} s whether there is a message in {queue}"
            ) from None
