"""Intake: envelopes from the retry queue into the store. Persist, then ack, then schedule (R1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from leveret.core import envelope, handover, json_form
from leveret.core import headers as h
from leveret.core.alarm import RETRY_STORE_UNAVAILABLE, Alarm
from leveret.core.envelope import Cause, Malformed
from leveret.core.errors import AccessRefused, BrokerError, NotFound, StoreRefused, StoreUnavailable
from leveret.core.message import Outgoing, Received
from leveret.core.retry_entry import Due, RetryEntry
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import Publisher, held_backoff
from leveret.ports import Delivery, Placed, Subscription

#: Envelopes in hand at once, and in one transaction at most.
PREFETCH = 2000
BATCH = 500
#: Seconds between tries where somebody else consumes the queue exclusively, and until that is told.
IN_USE_EVERY = 5.0
IN_USE_TOLD_AFTER = 120.0
#: The broker's words for it; it says 403 also where a right is missing.
IN_USE = "in exclusive use"


class Taken(NamedTuple):
    """An envelope in hand, and what it says."""

    delivery: Delivery
    entry: RetryEntry


class Intake:
    """Takes envelopes from the retry queue while the lease is held."""

    def __init__(self, parts: Parts, publisher: Publisher, *, scheduled: Callable[[Due], object]) -> None:
        self._parts = parts
        self._publisher = publisher
        self._scheduled = scheduled
        self._received: list[Delivery] = []
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None
        #: Envelopes in hand, unacked.
        self.in_hand = 0
        #: Those that nobody can use, on their way to the dead letters.
        self._burying: dict[asyncio.Task[None], Delivery] = {}
        self._closing = False
        #: Set between two batches.
        self._between = asyncio.Event()
        self._between.set()

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""
        return self._subscription is not None and self._subscription.active

    async def run(self) -> None:
        """Consume, until cancelled; then everything unacked goes back to the queue."""
        self._subscription = await consume_exclusively(
            self._parts, self._parts.names.retry_queue, self._take, prefetch=PREFETCH
        )
        batch: list[Delivery] = []
        try:
            while True:
                await self._arrived.wait()
                if self._closing:
                    # What has arrived goes back, or has gone back already.
                    await asyncio.get_running_loop().create_future()
                batch = self._received[:BATCH]
                del self._received[:BATCH]
                if not self._received:
                    self._arrived.clear()
                self._between.clear()
                await self._store([delivery for delivery in batch if not delivery.stale])
                self.in_hand -= len(batch)
                self._between.set()
        finally:
            self._between.set()
            burying = dict(self._burying)
            for task in burying:
                task.cancel()
            await self._subscription.cancel()
            if burying:
                await asyncio.wait(burying)
            # What was settled already stays settled.
            for delivery in (*batch, *self._received, *burying.values()):
                delivery.requeue()

    async def finish(self) -> None:
        """Take no more, and return when the batch in hand is stored and acked: what is stored must not come again."""
        self._closing = True
        if self._subscription is not None:
            # First of all: what goes back would be handed to us again at once.
            await self._subscription.cancel()
        self.in_hand -= len(self._received)
        for delivery in self._received:
            delivery.requeue()
        self._received.clear()
        await self._between.wait()
        if self._burying:
            await asyncio.wait(self._burying)

    def _take(self, delivery: Delivery) -> None:
        if self._closing:
            delivery.requeue()
            return
        self.in_hand += 1
        self._received.append(delivery)
        self._arrived.set()

    async def _store(self, deliveries: Sequence[Delivery]) -> None:
        """One batch: what cannot be read is buried, the rest is stored, acked, scheduled."""
        taken: list[Taken] = []
        for delivery in deliveries:
            if self._parts.world.reached is not None:
                await self._parts.reach(handover.RETRY_RECEIVED, delivery.properties.message_id)
            try:
                taken.append(Taken(delivery, self._read(delivery)))
            except Malformed as error:
                self._bury(delivery, f"malformed envelope: {error}")
            except Exception as error:  # noqa: BLE001 - whatever a stranger writes, it must not stop the rest (R8)
                log.exception("an envelope could not be read", extra={"action": "malformed"})
                self._bury(delivery, f"unreadable envelope: {type(error).__name__}: {error}")
        if taken:
            await self._put(taken)

    def _read(self, delivery: Delivery) -> RetryEntry:
        namespace = self._parts.names.namespace
        if delivery.properties.header(h.ENVELOPE) is not None:
            return envelope.read_retry(delivery.body, delivery.properties, namespace=namespace)
        return json_form.read_retry(
            delivery.body,
            namespace=namespace,
            exchange=self._parts.exchange.name,
            now=self._parts.world.clock.now(),
            new_id=self._parts.world.new_id,
        )

    async def _put(self, taken: Sequence[Taken]) -> None:
        """Store these in one transaction; what the store refuses is halved until the culprit stands alone."""
        alarms = self._parts.alarms
        namespace = self._parts.names.namespace
        for wait in held_backoff():
            try:
                placed = await self._parts.store.put([entry for _, entry in taken])
            except StoreRefused as error:
                if len(taken) == 1:
                    self._bury(taken[0].delivery, f"the store refuses it: {error}")
                else:
                    middle = len(taken) // 2
                    await self._put(taken[:middle])
                    await self._put(taken[middle:])
                return
            except StoreUnavailable as error:
                alarms.emit(
                    Alarm(
                        code=RETRY_STORE_UNAVAILABLE,
                        title=f"retries of {namespace} cannot be stored; they wait in {self._parts.names.retry_queue}",
                        about=namespace,
                        fields={"store": self._parts.store.display, "error": str(error)},
                    )
                )
                await self._parts.world.clock.sleep(wait)
                taken = [one for one in taken if not one.delivery.stale]
                if not taken:
                    return
            else:
                alarms.resolved(RETRY_STORE_UNAVAILABLE, namespace)
                await self._release(taken, placed)
                return

    async def _release(self, taken: Sequence[Taken], placed: Sequence[Placed]) -> None:
        for (delivery, entry), place in zip(taken, placed, strict=True):
            if self._parts.world.reached is not None:
                await self._parts.reach(handover.STORED, entry.message_id)
            delivery.ack()
            if place.written:
                self._scheduled(Due(entry.key, entry.failure, place.due_in, entry.queue, entry.size))

    def _bury(self, delivery: Delivery, reason: str) -> None:
        """A dead letter of what cannot wait; then ack. Apart from the rest, which goes on meanwhile (R8)."""
        message = Received(
            queue=self._parts.names.retry_queue,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            body=delivery.body,
            properties=envelope.without_ours(delivery.properties),
        )
        work = bury(self._parts, self._publisher, delivery, message, reason, worker="retry worker")
        task = asyncio.create_task(work, name=f"{self._parts.names.retry_queue} malformed")
        self.in_hand += 1
        self._burying[task] = delivery
        task.add_done_callback(self._buried)

    def _buried(self, task: asyncio.Task[None]) -> None:
        del self._burying[task]
        self.in_hand -= 1
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error(
                "an envelope could not be buried; it stays unacked", exc_info=fault, extra={"action": "held"}
            )


async def bury(
    parts: Parts, publisher: Publisher, delivery: Delivery, message: Received, reason: str, *, worker: str
) -> None:
    """Make a delivery that nobody can use a dead letter: published, confirmed, then acked."""
    cause = Cause(reason=reason, worker=worker, at=parts.world.clock.now(), error="Malformed")
    body, properties = envelope.dead_letter(
        message,
        cause,
        "malformed",
        letter_id=parts.world.new_id(),
        retry_id="",
        attempts=0,
        where=parts.where,
    )
    if await publisher.hand_over(
        Outgoing("", parts.names.dead_letters, body, properties),
        stale=lambda: delivery.stale,
        message_id=message.properties.message_id,
    ):
        await parts.reach(handover.DEAD_LETTER_CONFIRMED, message.properties.message_id)
        delivery.ack()


async def consume_exclusively(
    parts: Parts, queue: str, take: Callable[[Delivery], object], *, prefetch: int
) -> Subscription:
    """Consume a queue that one process at a time may have; where another has it, try until it lets go (R9)."""
    clock = parts.world.clock
    since = clock.monotonic()
    told = False
    while True:
        try:
            return await parts.transport.consume(
                queue, take, prefetch=prefetch, exclusive=not parts.store.shared
            )
        except AccessRefused as error:
            if IN_USE not in str(error):
                # Nobody has it: we may not read it, and no waiting changes that.
                if not told:
                    told = True
                    log.error(
                        "%s is not consumed, and what arrives lies there: %s. Tried again every %g s.",
                        queue, error, IN_USE_EVERY, extra={"action": "no_right"},
                    )  # fmt: skip
            elif not told and clock.monotonic() - since >= IN_USE_TOLD_AFTER:
                told = True
                log.error(
                    "another store or program consumes %s: %s. Two stores must not share one namespace's queue: each "
                    "would hide half the messages. Stop the other one, or give this one a namespace of its own.",
                    queue, error, extra={"action": "in_use"},
                )  # fmt: skip
        except (NotFound, BrokerError) as error:
            log.info("cannot consume %s yet: %s", queue, error, extra={"action": "consume"})
            if isinstance(error, NotFound):
                await parts.transport.declare(parts.base)
        await clock.sleep(IN_USE_EVERY)
