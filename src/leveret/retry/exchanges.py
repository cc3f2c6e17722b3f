"""Messages of the JSON form over a transport, one at a time: published back, and consumed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from leveret.core import envelope
from leveret.core.envelope import Malformed, Where
from leveret.core.errors import ConfigError, LeaseLost, StoreRefused, Unroutable
from leveret.core.json_form import (
    REPLAY_KEY,
    RETRY_WORKER_TYPE,
    SOFT_FAILURE,
    properties_of,
    replay_key,
    short,
    written,
)
from leveret.core.message import Outgoing
from leveret.core.properties import check_short
from leveret.core.topology import Binding, Queue, RMQExchangeConfig, Topology
from leveret.pipeline.parts import log
from leveret.pipeline.publishing import held_backoff
from leveret.ports import Clock, Delivery, MessageConsumerInterface, Subscription, Transport
from leveret.retry.republish import at_the_socket

#: Messages in hand at once.
PREFETCH = 100
#: Seconds that a stop waits for what is in hand. Storing takes milliseconds; what takes longer waits for a store.
GRACE = 5.0


def observer_exchange(pipeline_exchange: RMQExchangeConfig) -> RMQExchangeConfig:
    """Where all messages of a pipeline can be watched.

    A fanout or a topic is watched in place; a direct exchange knows no "everything", so beside it stands a fanout
    `<name>.observer`.

    Example:
        >>> observer_exchange(RMQExchangeConfig("jobs", "direct"))
        RMQExchangeConfig(name='jobs.observer', type='fanout', durable=True)
    """
    if pipeline_exchange.type in {"fanout", "topic"}:
        return pipeline_exchange
    return RMQExchangeConfig(f"{pipeline_exchange.name}.observer", "fanout", pipeline_exchange.durable)


class RouteFunc(Protocol):
    """Says with which routing keys a message is published, once with each."""

    async def __call__(self, message: Mapping[str, Any], /) -> Sequence[str]:
        """The routing keys of *message*."""


class ReplayRouter:
    """Routes a failed message as it was routed before: by its `_replay_routing_key`, else its `data_type`.

    Example:
        await ReplayRouter()({"data_type": "page", "_replay_routing_key": "fast.page"})  # ('fast.page',)
    """

    async def __call__(self, message: Mapping[str, Any], /) -> tuple[str]:
        """The one routing key of *message*."""
        return (replay_key(message),)


class MessagePublisher:
    """Publishes messages to an exchange: confirmed, persistent, mandatory.

    Args:
        transport: an open one.
        exchange: where to; declared by `setup`.
        route: the routing keys of a message.
    """

    def __init__(self, transport: Transport, exchange: RMQExchangeConfig, route: RouteFunc) -> None:
        self._transport = transport
        self._exchange = exchange
        self._route = route
        self._may: Callable[[], bool] = lambda: True
        #: Queues of workers that were there when a message went straight to them, and those that were not.
        self._there: set[str] = set()
        self._missing: set[str] = set()

    def guarded(self, may: Callable[[], bool]) -> MessagePublisher:
        """The same one, which asks *may* right before each hand-over to the socket (R4).

        It raises `LeaseLost`, and sends nothing, where that says no.
        """
        guarded = MessagePublisher(self._transport, self._exchange, self._route)
        guarded._may = may
        return guarded

    async def setup(self) -> None:
        """Declare the exchange.

        Raises:
            QueueMismatch: there is an exchange of that name and another type.
        """
        await self._transport.declare(Topology(exchanges=(self._exchange,)))

    async def __call__(self, message: Mapping[str, Any]) -> None:
        """Publish a message; returns once the broker has it.

        Raises:
            BadPayload, Malformed: it cannot be written; nothing was sent.
            Unroutable, PublishRefused: the broker does not have it.
            PublishTimeout: unknown, and the connection is closed by now.
        """
        if await self._straight_again(message):
            return
        body, properties = written(message), properties_of(message)
        keys = await self._route(message)
        if not keys:
            raise Unroutable(f"the route function gave no routing key for exchange {self._exchange.name}")
        for key in keys:
            check_short(key, "routing key")
        for key in keys:
            await self._send(Outgoing(self._exchange.name, key, body, properties))

    async def to_worker(self, worker: str, message: Mapping[str, Any]) -> bool:
        """Publish a message straight to the queue `<exchange>.<worker>`; False where there is none.

        Raises:
            Malformed, PublishRefused, PublishTimeout: as for a publish.
            Unroutable: that queue is gone. It was there before, to this publisher's knowledge, or by the message, which
                came back with its name for a key. On the exchange, whoever watches it would take the message instead.
        """
        queue = short(f"{self._exchange.name}.{worker}")
        # What watches for failures fails nothing itself, and passes over what is no failure.
        if not queue or worker == RETRY_WORKER_TYPE:
            return False
        try:
            await self._to_queue(queue, message)
        except Unroutable as error:
            if queue in self._there or message.get(REPLAY_KEY) == queue:
                raise Unroutable(
                    f"queue {queue} is gone; what failed there stays stored until it is back"
                ) from error
            if queue not in self._missing:
                self._missing.add(queue)
                log.warning(
                    "there is no queue %s: what failed there goes back through exchange %s, to whatever is bound for "
                    "it. Where only those who watch the exchange are, it ends with them.",
                    queue, self._exchange.name, extra={"action": "missing"},
                )  # fmt: skip
            return False
        self._there.add(queue)
        return True

    async def teardown(self) -> None:
        """Nothing to let go of: the transport belongs to who opened it."""

    async def _straight_again(self, message: Mapping[str, Any]) -> bool:
        """Whether the key of a message was the name of a worker's queue, and the message is there now.

        It had gone straight there before, then. A key that merely looks like that goes through the exchange.
        """
        key = message.get(REPLAY_KEY)
        prefix = f"{self._exchange.name}."
        if not isinstance(key, str) or not key.startswith(prefix) or key == prefix + RETRY_WORKER_TYPE:
            return False
        try:
            await self._to_queue(check_short(key, "routing key"), message)
        except Unroutable:
            return False
        return True

    async def _to_queue(self, queue: str, message: Mapping[str, Any]) -> None:
        await self._send(Outgoing("", queue, written(message), properties_of(message)))

    async def _send(self, out: Outgoing) -> None:
        transport = self._transport
        await at_the_socket(transport)
        if not self._may():
            raise LeaseLost("the lease ended before the message was handed over; the next holder has it")
        answer = transport.send(out)
        transport.flush()
        await answer


class MessageConsumerManager:
    """Feeds a consumer from a queue that is bound to an exchange: each message is acked once the consumer returned.

    A message that the consumer cannot read becomes a dead letter, and so does what is no JSON but names a soft failure:
    whoever sent it has let go of its message. Where the consumer fails in any other way (its store is away), the
    message stays in hand and that step is repeated. What else is no JSON object is none of its business.

    Args:
        transport: an open one.
        consumer: takes the messages.
        exchange: what the queue is bound to; with `#` on a topic.
        queue: its name.
        dead_letters: the queue for what cannot be read.
        clock: waits between repeats.
        new_id: makes ids of dead letters.

    Raises:
        ConfigError: the exchange is a direct one, on which nobody can watch everything.
    """

    def __init__(
        self,
        transport: Transport,
        consumer: MessageConsumerInterface,
        *,
        exchange: RMQExchangeConfig,
        queue: str,
        dead_letters: str,
        clock: Clock,
        new_id: Callable[[], str],
        prefetch: int = PREFETCH,
    ) -> None:
        if exchange.type not in {"fanout", "topic"}:
            raise ConfigError(
                f"exchange {exchange.name} is {exchange.type}: a queue cannot be bound to all that goes through it. "
                "Name the exchange where it can be watched: observer_exchange(...)"
            )
        self._transport = transport
        self._consumer = consumer
        self._exchange = exchange
        self._queue = queue
        self._dead_letters = dead_letters
        self._clock = clock
        self._new_id = new_id
        self._prefetch = prefetch
        self._subscription: Subscription | None = None
        self._in_hand: dict[asyncio.Task[None], Delivery] = {}

    async def setup(self) -> None:
        """Declare exchange, queue, binding and the queue for dead letters.

        Raises:
            QueueMismatch: one of them exists with other arguments, and is unsafe.
        """
        key = "#" if self._exchange.type == "topic" else ""
        notes = await self._transport.declare(
            Topology(
                exchanges=(self._exchange,),
                queues=(Queue(self._queue), Queue(self._dead_letters, None)),
                bindings=(Binding(self._exchange.name, self._queue, key),),
            )
        )
        for note in notes:
            log.warning("%s", note)

    async def start_consuming(self) -> None:
        """Begin to hand messages to the consumer."""
        self._subscription = await self._transport.consume(self._queue, self._take, prefetch=self._prefetch)

    async def stop_consuming(self) -> None:
        """Take no more; what is in hand and cannot be taken soon goes back to the queue. Idempotent."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.cancel()
        if self._in_hand:
            # What the consumer has stored and is not acked yet would come again.
            await asyncio.wait(list(self._in_hand), timeout=GRACE)
        in_hand = dict(self._in_hand)
        for task in in_hand:
            task.cancel()
        if in_hand:
            await asyncio.wait(in_hand)
        for delivery in in_hand.values():
            # What was acked meanwhile stays acked.
            delivery.requeue()

    def _take(self, delivery: Delivery) -> None:
        task = asyncio.create_task(self._handle(delivery))
        self._in_hand[task] = delivery
        task.add_done_callback(self._handled)

    def _handled(self, task: asyncio.Task[None]) -> None:
        del self._in_hand[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a message of %s stays unacked", self._queue, exc_info=error)

    async def _handle(self, delivery: Delivery) -> None:
        message: dict[str, Any] | Malformed | None
        try:
            message = _object(delivery.body)
        except Malformed as error:
            message = error
        # One id for all tries: a letter that may have arrived already is then known for the same.
        letter_id = self._new_id()
        for wait in held_backoff():
            if delivery.stale:
                return
            try:
                if message is not None:
                    await self._consume(message, delivery, letter_id)
            except Exception as error:  # noqa: BLE001 - a consumer and a store of any program, with errors of their own
                log.warning(
                    "a message of %s cannot be taken, kept in hand and tried again in %g s: %s: %s",
                    self._queue, wait, type(error).__name__, error, extra={"action": "held"},
                )  # fmt: skip
                await self._clock.sleep(wait)
            else:
                delivery.ack()
                return

    async def _consume(self, message: dict[str, Any] | Malformed, delivery: Delivery, letter_id: str) -> None:
        try:
            if isinstance(message, Malformed):
                raise message
            await self._consumer(message)
        except Malformed as error:
            await self._bury(delivery, letter_id, f"malformed envelope: {error}")
        except StoreRefused as error:
            await self._bury(delivery, letter_id, f"the store refuses it: {error}")

    async def _bury(self, delivery: Delivery, letter_id: str, reason: str) -> None:
        """Make it a dead letter, published and confirmed."""
        body, properties = envelope.unreadable(
            delivery.body,
            delivery.properties,
            queue=self._queue,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            reason=reason,
            at=self._clock.now(),
            letter_id=letter_id,
            where=Where(frame_max=self._transport.frame_max, user=self._transport.user),
        )
        log.warning(
            "a message of %s becomes a dead letter: %s", self._queue, reason, extra={"action": "dead"}
        )
        await self._transport.ready()
        try:
            await self._transport.send(Outgoing("", self._dead_letters, body, properties))
        except Unroutable:
            # The queue was deleted under us; the next try finds it again.
            await self.setup()
            raise


def _object(body: bytes) -> dict[str, Any] | None:
    """The JSON object of a body; None where it is none.

    Raises:
        Malformed: it is no JSON that can be read here, and seems to be a soft failure.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        if SOFT_FAILURE.encode() in body:
            raise Malformed(f"the body is no JSON: {error}") from error
        return None
    return value if isinstance(value, dict) else None
