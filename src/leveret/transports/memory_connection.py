"""A client's connection as the memory broker sees it: its consumers, what was handed to it, what it waits for."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.core import headers as h
from leveret.core.errors import PublishError
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.transports.memory_queue import Queue, Stored

if TYPE_CHECKING:
    from leveret.transports.memory_broker import MemoryBroker

#: RabbitMQ's own count of returns, on messages of quorum queues.
_DELIVERY_COUNT: Final = "x-delivery-count"
_TAG_BYTES: Final = h.TAG.encode()

Answer = asyncio.Future[None]


class MemoryDelivery:
    """A message handed over by a `MemoryBroker`; see `leveret.ports.Delivery`."""

    __slots__ = ("_properties", "_settled", "_stored", "redelivered", "source")

    def __init__(self, source: Consumer, stored: Stored) -> None:
        self.redelivered: Final = stored.redelivered
        #: Whom it was handed to.
        self.source: Final = source
        self._stored = stored
        self._settled = False
        self._properties: Properties | None = None

    @property
    def queue(self) -> str:
        return self.source.queue.name

    @property
    def exchange(self) -> str:
        return self._stored.message.exchange

    @property
    def routing_key(self) -> str:
        return self._stored.message.routing_key

    @property
    def body(self) -> bytes:
        return self._stored.message.body

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            stored = self._stored
            properties = stored.message.properties
            if _TAG_BYTES in properties.raw:
                properties = properties.edit(drop=(h.TAG,))
            if stored.returns and self.source.queue.quorum:
                # RabbitMQ sorts all headers where it writes one.
                properties = Properties(properties.edit(add={_DELIVERY_COUNT: stored.returns}).in_order())
            self._properties = properties
        return self._properties

    @property
    def tag(self) -> str | None:
        if self._stored.tag is not None:
            return self._stored.tag
        written = self._stored.message.properties.header(h.TAG)
        return written if isinstance(written, str) else None

    @property
    def stale(self) -> bool:
        return not self.source.open

    def ack(self) -> bool:
        source = self.source
        broker = source.connection.broker
        with broker.lock:
            if self._settled or not source.open:
                return False
            self._settled = True
            if broker.acks_to_lose:
                # It stays unsettled over there, and comes back when the connection goes.
                broker.acks_to_lose -= 1
                return True
            source.release(self)
            queue = source.queue
            if queue.ready:
                queue.hand_out()
            elif not queue.unsettled:
                broker.changed()
            return True

    def requeue(self) -> bool:
        source = self.source
        with source.connection.broker.lock:
            if self._settled or not source.open:
                return False
            self._settled = True
            source.release(self)
            source.queue.take_back(self._stored)
            source.queue.hand_out()
            return True

    def __repr__(self) -> str:
        return (
            f"<delivery from {self.queue} of {len(self.body)} bytes, {self.exchange!r} {self.routing_key!r}>"
        )

    def recall(self) -> Stored:
        """The broker's own way to take it back."""
        self._settled = True
        return self._stored

    @property
    def settled(self) -> bool:
        """Whether ack, requeue or the broker had its say."""
        return self._settled


class Consumer:
    """Somebody who takes messages of one queue, so many unsettled at a time. Called with the broker's lock held."""

    __slots__ = ("connection", "exclusive", "on_delivery", "open", "queue", "room", "unsettled")

    def __init__(
        self,
        connection: Connection,
        queue: Queue,
        on_delivery: Callable[[MemoryDelivery], object] | None,
        *,
        prefetch: int,
        exclusive: bool = False,
    ) -> None:
        self.connection: Final = connection
        self.queue: Final = queue
        #: None: it fetches one by one.
        self.on_delivery: Final = on_delivery
        self.exclusive: Final = exclusive
        self.room = prefetch
        self.open = True
        self.unsettled: dict[MemoryDelivery, None] = {}

    def take(self, stored: Stored) -> MemoryDelivery:
        """Have a message; a consumer hears of it in the loop's next turn."""
        delivery = MemoryDelivery(self, stored)
        self.room -= 1
        self.unsettled[delivery] = None
        self.queue.unsettled += 1
        if self.on_delivery is not None:
            self.connection.outbox.append(delivery)
            self.connection.schedule()
        return delivery

    def release(self, delivery: MemoryDelivery) -> None:
        """Have it no more."""
        del self.unsettled[delivery]
        self.room += 1
        self.queue.unsettled -= 1

    def retire(self) -> None:
        """Take no more; what was handed over can still be settled, what was not goes back as though never touched."""
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)
        unread = [d for d in self.connection.outbox if d in self.unsettled and not d.settled]
        for delivery in reversed(unread):
            self.release(delivery)
            self.queue.take_back(delivery.recall(), redelivered=False)
        self.queue.hand_out()

    def end(self, *, queue_gone: bool = False) -> None:
        """Everything handed over is stale, and back in the queue, flagged, unless the queue itself is gone."""
        if self in self.queue.consumers:
            self.queue.consumers.remove(self)
        self.open = False
        self.queue.unsettled -= len(self.unsettled)
        if not queue_gone:
            for delivery in reversed(self.unsettled):
                self.queue.take_back(delivery.recall())
        self.unsettled.clear()


class Connection:
    """One connection, from attach to loss. It never comes back to life: the client attaches a new one.

    Args:
        broker: at the other end.
        number: unique at this broker: the generation in its tags.
        user: who is logged in.
        frame_max: no header frame may be longer.
        process: random text of the client's process.
        answered: told once a turn that answers were given, or that the broker reads again; at once where one was given
            up.
        lost: told with the publishes that were never answered.
        consumer_gone: told when the broker cancelled a consumer.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        number: int,
        *,
        user: str,
        frame_max: int,
        process: str,
        answered: Callable[[], None],
        lost: Callable[[list[Answer]], None],
        consumer_gone: Callable[[], None],
    ) -> None:
        self.broker: Final = broker
        self.user: Final = user
        self.frame_max: Final = frame_max
        self.loop: Final = asyncio.get_running_loop()
        self.open = True
        #: In the order they were made, so that what a connection leaves behind goes back in a fixed order.
        self.consumers: dict[Consumer, None] = {}
        self.outbox: list[MemoryDelivery] = []
        #: Addresses of its call channels, each with who is told of replies, and who when the connection is lost.
        self.addresses: dict[str, tuple[Callable[[Outgoing], object], Callable[[], object]]] = {}
        #: Names of queues that are gone with it.
        self.temporary: list[str] = []
        #: Publishes with their verdict, told in the loop's next turn.
        self.answers: list[tuple[Answer, PublishError | None]] = []
        #: Publishes that the broker took and will never answer, and whose answer is waited for.
        self.unanswered: list[Answer] = []
        #: Publishes that a blocked broker has not read.
        self.held: list[tuple[Outgoing, Answer]] = []
        self._answered: Final = answered
        self._lost: Final = lost
        self._consumer_gone: Final = consumer_gone
        self._thread: Final = threading.get_ident()
        # What the broker calls must not see the context variables of whoever happened to publish.
        self._context: Final = contextvars.copy_context()
        self._scheduled = False
        self._tags: Final = f"{process}-{number:x}-"
        self._tagged = 0

    @property
    def outstanding(self) -> int:
        """Publishes whose answer is waited for."""
        return len(self.answers) + len(self.held) + len(self.unanswered)

    def forget(self, answer: Answer) -> None:
        """Nobody waits for that answer any more."""
        with self.broker.lock:
            if answer in self.unanswered:
                self.unanswered.remove(answer)
            else:
                self.answers = [each for each in self.answers if each[0] is not answer]
        self._answered()

    def next_tag(self) -> str:
        """A tag that no other publish bears: text of the process, number of the connection, number of the publish."""
        self._tagged += 1
        return f"{self._tags}{self._tagged:x}"

    def schedule(self) -> None:
        """Have answers and deliveries told in the loop's next turn."""
        if not self._scheduled:
            self._scheduled = True
            self.post(self._tell)

    def post(self, call: Callable[[], object]) -> None:
        """Make a call in the client's loop, whichever thread this is. Nothing where that loop is closed."""
        here = threading.get_ident() == self._thread
        soon = self.loop.call_soon if here else self.loop.call_soon_threadsafe
        try:
            soon(call, context=self._context)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            # The loop was closed with this connection on it: its process died, as far as a broker can see.
            self.broker.lose(self)

    def lose(self) -> None:
        """Close it without a word; the client hears of it in its loop's next turn. Called with the lock held."""
        self.open = False
        unanswered = [answer for answer, _ in self.answers]
        unanswered += self.unanswered
        unanswered += [answer for _, answer in self.held]
        self.answers, self.unanswered, self.held, self.outbox = [], [], [], []
        # The youngest first: each goes back in front of what follows it.
        for consumer in reversed(self.consumers):
            consumer.end()
        self.consumers.clear()
        addresses, self.addresses = self.addresses, {}
        if not self.loop.is_closed():
            for _, gone in addresses.values():
                self.post(gone)
            self.post(lambda: self._lost(unanswered))

    def reply(self, address: str, message: Outgoing) -> None:
        """Hand a reply to the call channel of that address, in the client's loop."""
        heard, _ = self.addresses[address]
        self.post(partial(heard, message))

    def cancel(self, consumer: Consumer) -> None:
        """Cancel a consumer against its client's wish. Called with the broker's lock held."""
        consumer.end()
        del self.consumers[consumer]
        self.post(self._consumer_gone)

    def cancel_consumers(self, queue: Queue) -> None:
        """The queue is gone: so are its consumers. Called with the broker's lock held."""
        cancelled = [consumer for consumer in self.consumers if consumer.queue is queue]
        for consumer in cancelled:
            consumer.end(queue_gone=True)
            del self.consumers[consumer]
        if cancelled:
            self.post(self._consumer_gone)

    def _tell(self) -> None:
        with self.broker.lock:
            self._scheduled = False
            answers, self.answers = self.answers, []
            outbox, self.outbox = self.outbox, []
        for answer, refusal in answers:
            settle(answer, refusal)
        for delivery in outbox:
            # In between, its consumer may have been cancelled, or the connection lost.
            if not delivery.settled:
                self._hand_over(delivery)
        self._answered()
        with self.broker.lock:
            self.broker.changed()

    def _hand_over(self, delivery: MemoryDelivery) -> None:
        receiver = delivery.source.on_delivery
        if receiver is None:
            return
        try:
            receiver(delivery)
        except Exception as error:  # noqa: BLE001 - one receiver's fault must not cost others their messages
            self.loop.call_exception_handler(
                {"message": f"the receiver of messages from {delivery.queue} failed", "exception": error}
            )


def settle(answer: Answer, refusal: PublishError | None) -> None:
    """Give a publish its answer, unless its caller has cancelled it."""
    if answer.done():
        return
    if refusal is None:
        answer.set_result(None)
        return
    answer.set_exception(refusal)
    # Looked at once, so that asyncio does not complain of an answer that its caller chose not to wait for.
    answer.exception()
