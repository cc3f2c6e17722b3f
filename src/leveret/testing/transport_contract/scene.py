"""The stage of the transport contract: what a harness can do to its broker, and what each test has at hand."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import pytest

from leveret.core.errors import PublishError, PublishRefused
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import ExchangeType, RMQExchangeConfig
from leveret.ports import Delivery, Transport

# What a harness can do to its broker beyond cutting connections. A test that needs more than it has is skipped.
#: `stop` and `start` it.
RESTART: Final = "restart"
#: Raise and lift its memory alarm: `block`, `unblock`.
BLOCK: Final = "block"
#: Have it refuse chosen publishes: `refuse_next`.
REFUSE: Final = "refuse"
#: Have it keep a message and never say so: `lose_next_confirm`.
LOSE_CONFIRM: Final = "lose-confirm"
#: Let its time pass: `advance`.
TIME: Final = "time"
#: Nothing to do, but a promise: it hands on property bytes as they came (RabbitMQ from 4.0 on re-encodes them).
EXACT_BYTES: Final = "exact-bytes"
#: Likewise: the address of a direct reply is no queue to it, and what is mandatory comes back from there (RabbitMQ
#: from 4.2 on has a queue for each, and delivers it).
REPLIES_RETURNED: Final = "replies-returned"

#: No single wait of this suite takes longer where the contract is kept.
PATIENCE: Final = 30.0


class BrokerHarness(Protocol):
    """The broker under test, and what can be done to it behind the transport's back."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Which of the constants above apply."""

    async def declare_queue(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, durable: bool = True
    ) -> None:
        """Make a queue."""

    async def delete_queue(self, name: str) -> None:
        """Delete a queue; harmless where there is none."""

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange; harmless where there is none."""

    async def drop_connections(self) -> None:
        """Cut every connection."""

    async def stop(self) -> None:
        """Take the broker down."""

    async def start(self) -> None:
        """Bring it up again, with its data."""

    async def block(self) -> None:
        """Raise the memory alarm."""

    async def unblock(self) -> None:
        """Lift the memory alarm."""

    async def refuse_next(self, number: int) -> None:
        """Answer the next *number* publishes with a nack."""

    async def lose_next_confirm(self, number: int) -> None:
        """Store the next *number* publishes without an answer."""

    async def advance(self, seconds: float) -> None:
        """Let the broker's time pass."""

    async def turn(self) -> None:
        """Let a little happen; called again and again while the suite waits for something it cannot be told of."""


class Inbox:
    """Collects deliveries, and tells when enough have come."""

    def __init__(self, *, ack: bool = False) -> None:
        self.deliveries: list[Delivery] = []
        self._ack = ack
        self._came = asyncio.Event()

    def __call__(self, delivery: Delivery) -> None:
        """Have one more."""
        self.deliveries.append(delivery)
        if self._ack:
            delivery.ack()
        self._came.set()

    async def until(self, number: int) -> list[Delivery]:
        """Return all deliveries once there are so many."""
        async with asyncio.timeout(PATIENCE):
            while len(self.deliveries) < number:
                self._came.clear()
                await self._came.wait()
        return self.deliveries

    @property
    def bodies(self) -> list[bytes]:
        """What came, in order."""
        return [delivery.body for delivery in self.deliveries]


class Scene:
    """What one test has at hand: its broker, transports to it, and names that nobody else uses, cleared in the end."""

    def __init__(self, broker: BrokerHarness, connect: Callable[[], Awaitable[Transport]]) -> None:
        self.broker = broker
        self.connect = connect
        self._prefix = f"contract-{uuid.uuid4().hex[:12]}"
        self._queues: list[str] = []
        self._exchanges: list[str] = []

    def needs(self, capability: str) -> None:
        """Skip the test where the harness cannot do what it needs."""
        if capability not in self.broker.capabilities:
            pytest.skip(f"this broker's harness has no {capability!r}")

    def name(self, what: str = "q") -> str:
        """A queue's name, not yet declared."""
        self._queues.append(name := f"{self._prefix}.{what}")
        return name

    async def queue(self, what: str = "q", arguments: Mapping[str, Any] | None = None) -> str:
        """A queue."""
        await self.broker.declare_queue(name := self.name(what), arguments)
        return name

    def exchange(self, what: str = "x", type: ExchangeType = "topic") -> RMQExchangeConfig:
        """An exchange, not yet declared."""
        self._exchanges.append(name := f"{self._prefix}.{what}")
        return RMQExchangeConfig(name, type)

    async def clear(self) -> None:
        """Take all of it away."""
        for queue in self._queues:
            await self.broker.delete_queue(queue)
        for exchange in self._exchanges:
            await self.broker.delete_exchange(exchange)

    async def get(self, transport: Transport, queue: str) -> Delivery:
        """Fetch the message that must be there."""
        delivery = await transport.get(queue)
        if delivery is None:
            pytest.fail(f"{queue} is empty, and a message should lie in it")
        return delivery

    async def consumed(self, transport: Transport, queue: str) -> Delivery:
        """Consume the message that must be there, as it was sent.

        RabbitMQ before 4.0 writes how often it came back on all that is fetched from a quorum queue, be it 0.
        """
        await transport.consume(queue, inbox := Inbox(), prefetch=1)
        return (await inbox.until(1))[0]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what no event tells."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await self.broker.turn()

    async def lies(
        self, transport: Transport, queue: str, *, ready: int | None = None, consumers: int | None = None
    ) -> None:
        """Wait until so many messages lie ready in a queue, and so many consume it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                state = await transport.queue_state(queue)
                if (
                    state is not None
                    and ready in {None, state.ready}
                    and consumers in {None, state.consumers}
                ):
                    return
                await self.broker.turn()


def message(
    key: str, body: bytes = b"", *, exchange: str = "", mandatory: bool = True, **properties: Any
) -> Outgoing:
    """A message to the queue of that name, or by that key to *exchange*."""
    return Outgoing(exchange, key, body, Properties.build(**properties), mandatory)


async def outcomes(transport: Transport, messages: Sequence[Outgoing]) -> list[PublishError | None]:
    """Send all at once; what each came to, None for confirmed."""
    return await settled([transport.send(each) for each in messages])


async def settled(sent: Sequence[Awaitable[None]]) -> list[PublishError | None]:
    """What became of publishes, None for confirmed."""

    async def outcome(answer: Awaitable[None]) -> PublishError | None:
        try:
            await answer
        except PublishError as error:
            return error
        return None

    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*(outcome(answer) for answer in sent))


def code(outcome: PublishError | None) -> int | None:
    """The reply code that came with a refusal, None for a plain nack; the test fails where it was none."""
    if not isinstance(outcome, PublishRefused):
        pytest.fail(f"expected a refusal, got {outcome!r}")
    return outcome.code
