"""A whole AMQP broker in process: exchanges, queues, bindings, acks, dead-lettering, and every fault on demand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from leveret.core import headers as h
from leveret.core.errors import (
    AccessRefused,
    NotFound,
    PublishError,
    PublishRefused,
    QueueMismatch,
    Unroutable,
)
from leveret.core.message import DIRECT_REPLY, Outgoing
from leveret.core.topology import Difference, ExchangeType, RMQExchangeConfig, Topology
from leveret.core.topology import Queue as QueueDeclaration
from leveret.ports import Clock, QueueState, Timer
from leveret.transports.memory_connection import Answer, Connection, Consumer, MemoryDelivery
from leveret.transports.memory_dead_lettering import dead_lettered, runs_in_circles
from leveret.transports.memory_publish import look_at
from leveret.transports.memory_queue import Queue, Reason, Stored
from leveret.transports.memory_routing import Routing
from leveret.transports.queue_mismatch import (
    FLAGS,
    compared,
    declared_arguments,
    declared_flags,
    missing,
    notes_of,
)

#: What the addresses of call channels begin with.
_REPLIES: Final = f"{DIRECT_REPLY}."


class QueueSnapshot(NamedTuple):
    """How a queue stands."""

    ready: int
    unsettled: int
    consumers: int


class MemoryBroker:
    """A broker that lives in this process, beyond any app, connection or event loop that uses it.

    What it has accepted stays in its queues while connections and loops come and go; `stop` and `start` are a restart.
    Its time is that of the clock of whoever connected last. It may be used from several threads.

    Args:
        name: what a `memory://name` URL calls it; empty for one of nobody else's.

    Example:
        >>> broker = MemoryBroker()
        >>> broker.declare_queue("orders")
        >>> broker.snapshot()
        {'orders': QueueSnapshot(ready=0, unsettled=0, consumers=0)}
    """

    _named: ClassVar[dict[str, MemoryBroker]] = {}
    _naming: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str = "") -> None:
        self.name: Final = name
        self.lock: Final = threading.RLock()
        #: Each is called with an accepted publish, and the queues that took it.
        self.on_publish: list[Callable[[Outgoing, Sequence[str]], object]] = []
        self.running = True
        self.blocked = False
        #: So many of the next acks get lost on their way: the messages come back when their connection goes.
        self.acks_to_lose = 0
        self._refusals = 0
        self._confirms_to_lose = 0
        self._routing: Final = Routing()
        self._queues: Final = self._routing.queues
        self._connections: dict[Connection, None] = {}
        self._connected = 0
        self._addresses = 0
        #: Called once, each in its loop, when the broker is up again.
        self._awaiting_start: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        #: Called at each change after which a consumer that was refused may be let in.
        self._hopeful: dict[Callable[[], None], None] = {}
        self._watchers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._clock: Clock | None = None
        #: When a message expires next, and the timer that tells.
        self._alarm: tuple[float, Timer] | None = None

    @classmethod
    def named(cls, name: str) -> MemoryBroker:
        """The one broker of that name in this process, made when first asked for."""
        with cls._naming:
            return cls._named.setdefault(name, cls(name))

    def __repr__(self) -> str:
        return f"<{self.display}: {len(self._queues)} queues, {len(self._connections)} connections>"

    @property
    def display(self) -> str:
        """Its address."""
        return f"memory://{self.name}"

    # ── What lies on it ───────────────────────────────────────────────────────────────────────────────────────────────

    def declare_exchange(self, name: str, type: ExchangeType = "topic", *, durable: bool = True) -> None:
        """Make sure that there is such an exchange.

        Raises:
            QueueMismatch: it exists with another type.
        """
        with self.lock:
            self._routing.declare_exchange(RMQExchangeConfig(name, type, durable))

    def declare_queue(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        exclusive: bool = False,
    ) -> None:
        """Make sure that there is such a queue, with exactly these arguments.

        Raises:
            QueueMismatch: it exists with others.
        """
        with self.lock:
            asked = {
                **(arguments or {}),
                "durable": durable,
                "auto_delete": auto_delete,
                "exclusive": exclusive,
            }
            there = self._queues.get(name)
            if there is not None:
                if asked != _declared(there):
                    raise QueueMismatch(
                        f"406 PRECONDITION_FAILED - queue {name} exists with {_declared(there)}, not with {asked}"
                    )
                return
            queue = Queue(
                name,
                arguments or {},
                durable=durable,
                auto_delete=auto_delete,
                exclusive=exclusive,
                monotonic=self._monotonic,
                dead_letter=self._dead_letter,
                expires_next=self._expires_next,
                emptied=self.changed,
            )
            self._routing.add(queue)
            self._let_in()

    def bind(self, exchange: str, queue: str, routing_key: str = "") -> None:
        """Have messages to *exchange* that match *routing_key* reach *queue*.

        Raises:
            NotFound: there is no such exchange or queue.
        """
        with self.lock:
            self._routing.bind(exchange, queue, routing_key)

    def declare(self, topology: Topology, connection: Connection | None = None) -> list[str]:
        """Make sure that all of it is there; see `leveret.ports.Transport.declare`.

        Args:
            topology: what has to be there.
            connection: whose temporary queues these are, gone with it.
        """
        notes: list[str] = []
        with self.lock:
            for exchange in topology.exchanges:
                self.declare_exchange(exchange.name, exchange.type, durable=exchange.durable)
            for queue in topology.queues:
                notes += self._declare(queue, connection)
            for binding in topology.bindings:
                self.bind(binding.exchange, binding.queue, binding.routing_key)
        return notes

    def _declare(self, queue: QueueDeclaration, connection: Connection | None) -> list[str]:
        there = self._queues.get(queue.name)
        if there is not None:
            return notes_of(compared(queue, _declared(there)))
        self.declare_queue(queue.name, declared_arguments(queue), **declared_flags(queue))
        if queue.temporary and connection is not None:
            connection.temporary.append(queue.name)
        return []

    def inspect(self, topology: Topology) -> list[Difference]:
        """How what lies here differs; see `leveret.ports.Transport.inspect`."""
        with self.lock:
            found = [each for exchange in topology.exchanges for each in self._routing.compared(exchange)]
            for queue in topology.queues:
                there = self._queues.get(queue.name)
                found += (
                    [missing("queue", queue.name)] if there is None else compared(queue, _declared(there))
                )
            return found

    def delete_queue(self, name: str) -> None:
        """Delete a queue with all that lies in it; its consumers are cancelled. Harmless where there is none."""
        with self.lock:
            queue = self._routing.remove(name)
            if queue is None:
                return
            queue.ready.clear()
            for connection in list(self._connections):
                connection.cancel_consumers(queue)
            self.changed()

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange with its bindings. Harmless where there is none."""
        with self.lock:
            self._routing.delete_exchange(name)

    def purge(self, name: str) -> int:
        """Take away all that lies ready in a queue. Returns how many.

        Raises:
            NotFound: there is no such queue.
        """
        with self.lock:
            queue = self._queue(name)
            gone = len(queue.ready)
            queue.ready.clear()
            self.changed()
            return gone

    def messages(self, name: str) -> list[Outgoing]:
        """What lies ready in a queue, in order, each with the tag it bears.

        Raises:
            NotFound: there is no such queue.
        """
        with self.lock:
            self._bury_the_dead()
            return [_with_tag(stored) for stored in self._queue(name).ready]

    def snapshot(self) -> dict[str, QueueSnapshot]:
        """How each queue stands, by name, in the order they were declared."""
        with self.lock:
            self._bury_the_dead()
            return {
                name: QueueSnapshot(len(queue.ready), queue.unsettled, len(queue.consumers))
                for name, queue in self._queues.items()
            }

    async def quiet(self, among: Callable[[str], bool] | None = None) -> None:
        """Return once nothing is left in any queue, ready or unsettled, and no publish awaits its answer.

        Args:
            among: which queues count, by name; by default all.
        """
        loop = asyncio.get_running_loop()
        while True:
            with self.lock:
                if not self.busy(among):
                    return
                watcher: asyncio.Future[None] = loop.create_future()
                self._watchers.append((loop, watcher))
            await watcher

    def busy(self, among: Callable[[str], bool] | None = None) -> bool:
        """Whether anything lies ready or unsettled in a queue, or a publish awaits its answer.

        Args:
            among: which queues count, by name; by default all.
        """
        self._bury_the_dead()
        return any(
            queue.ready or queue.unsettled
            for queue in self._queues.values()
            if among is None or among(queue.name)
        ) or any(connection.answers or connection.held for connection in self._connections)

    def changed(self) -> None:
        """Have those who wait for quiet look again."""
        if not self._watchers:
            return
        watchers, self._watchers = self._watchers, []
        for loop, watcher in watchers:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, watcher)

    # ── Faults on demand ──────────────────────────────────────────────────────────────────────────────────────────────

    def drop_connections(self) -> None:
        """Cut every connection: what was unsettled is back in its queue, flagged. Clients come back by themselves."""
        with self.lock:
            connections = list(self._connections)
            self._connections.clear()
            for connection in reversed(connections):
                self._forget_temporary(connection)
                connection.lose()
            self.changed()

    def stop(self) -> None:
        """Go down. Lost are transient messages, queues and exchanges; all that is durable is there at `start`."""
        with self.lock:
            self.running = False
            self.drop_connections()
            for queue in self._queues.values():
                queue.restart()
            self._routing.forget_what_is_not_durable()

    def start(self) -> None:
        """Be up again; clients come back by themselves."""
        with self.lock:
            self.running = True
            waiting, self._awaiting_start = self._awaiting_start, []
            for loop, back in waiting:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(back)

    def block(self) -> None:
        """Raise the memory alarm: what is published waits unread, acks and deliveries go on."""
        with self.lock:
            self.blocked = True

    def unblock(self) -> None:
        """Lift the memory alarm: what waited is read, in the order of the connections."""
        with self.lock:
            self.blocked = False
            for connection in list(self._connections):
                held, connection.held = connection.held, []
                for message, answer in held:
                    self.publish(connection, message, answer)
                connection.schedule()

    def refuse_next(self, number: int = 1) -> None:
        """Answer the next *number* publishes with a nack: they are not stored."""
        with self.lock:
            self._refusals += number

    def lose_next_confirm(self, number: int = 1) -> None:
        """Store the next *number* publishes and never answer: their senders learn nothing until the connection goes."""
        with self.lock:
            self._confirms_to_lose += number

    def lose_next_ack(self, number: int = 1) -> None:
        """Lose the next *number* acks on their way: their receivers think them sent, the next cut brings all back."""
        with self.lock:
            self.acks_to_lose += number

    def cancel_consumers(self, queue: str) -> None:
        """Cancel a queue's consumers, as a broker does whose queue moves, or after a consumer timeout.

        What they had unsettled is back in the queue, flagged; clients consume again by themselves.
        """
        with self.lock:
            for consumer in [c for c in self._queue(queue).consumers if c.on_delivery is not None]:
                consumer.connection.cancel(consumer)
            self.changed()

    # ── For its clients ───────────────────────────────────────────────────────────────────────────────────────────────

    def attach(
        self,
        clock: Clock,
        *,
        user: str,
        frame_max: int,
        process: str,
        answered: Callable[[], None],
        lost: Callable[[list[Answer]], None],
        consumer_gone: Callable[[], None],
    ) -> Connection:
        """A new connection from the running loop."""
        with self.lock:
            self._bury_the_dead()
            self._clock = clock
            self._connected += 1
            connection = Connection(
                self,
                self._connected,
                user=user,
                frame_max=frame_max,
                process=process,
                answered=answered,
                lost=lost,
                consumer_gone=consumer_gone,
            )
            self._connections[connection] = None
            # The timer of a loop that is gone will never ring; look at what expired meanwhile, and set a new one.
            self._alarm = None
            self._expire()
            return connection

    def lose(self, connection: Connection) -> None:
        """Cut one connection; others get what it had."""
        with self.lock:
            if not connection.open:
                return
            self._connections.pop(connection, None)
            queues = {consumer.queue: None for consumer in connection.consumers}
            self._forget_temporary(connection)
            connection.lose()
            for queue in queues:
                queue.hand_out()
            self._let_in()
            self.changed()

    def when_started(self, loop: asyncio.AbstractEventLoop, back: Callable[[], None]) -> None:
        """Call *back* in *loop* once, after the next `start`."""
        with self.lock:
            self._awaiting_start.append((loop, back))

    def while_hopeful(self, again: Callable[[], None], *, hopeful: bool) -> None:
        """Call *again* whenever a queue appears or a consumer leaves, until told that there is no more hope for it."""
        with self.lock:
            if hopeful:
                self._hopeful[again] = None
            else:
                self._hopeful.pop(again, None)

    def publish(self, connection: Connection, message: Outgoing, answer: Answer) -> None:
        """Take a publish, and answer it in the loop's next turn. Called with the lock held, or under `lock`."""
        with self.lock:
            if self.blocked:
                connection.held.append((message, answer))
                return
            refusal = self._take(connection, message)
            if self._confirms_to_lose and refusal is None:
                self._confirms_to_lose -= 1
                # What waited to be read may have been given up meanwhile.
                if not answer.done():
                    connection.unanswered.append(answer)
                return
            connection.answers.append((answer, refusal))
            connection.schedule()

    def listen(
        self, connection: Connection, replied: Callable[[Outgoing], object], lost: Callable[[], object]
    ) -> str:
        """A new address for replies, gone with its connection. Both are called in the client's loop."""
        with self.lock:
            self._addresses += 1
            address = f"{_REPLIES}{self._addresses}"
            connection.addresses[address] = (replied, lost)
            return address

    def listen_no_more(self, connection: Connection, address: str) -> None:
        """Have that address no more."""
        with self.lock:
            connection.addresses.pop(address, None)

    def consume(
        self,
        connection: Connection,
        queue: str,
        on_delivery: Callable[[MemoryDelivery], object],
        *,
        prefetch: int,
        exclusive: bool,
    ) -> Consumer:
        """A new consumer; see `leveret.ports.Transport.consume`."""
        with self.lock:
            self._bury_the_dead()
            source = self._queue(queue)
            if source.exclusively_consumed() or (exclusive and source.consumers and not source.quorum):
                raise AccessRefused(
                    f"403 ACCESS_REFUSED - queue '{queue}' in exclusive use: it has a consumer already, and "
                    f"{'this one' if exclusive else 'that one'} wants to be the only one. Stop the other one first"
                )
            consumer = Consumer(connection, source, on_delivery, prefetch=prefetch, exclusive=exclusive)
            connection.consumers[consumer] = None
            source.consumers.append(consumer)
            source.hand_out()
            return consumer

    def retire(self, consumer: Consumer) -> None:
        """Cancel a consumer at its client's wish."""
        with self.lock:
            consumer.retire()
            self._let_in()

    def fetch(self, connection: Connection, queue: str) -> MemoryDelivery | None:
        """One message of a queue, None where it is empty or gone."""
        with self.lock:
            self._bury_the_dead()
            source = self._queues.get(queue)
            if source is None:
                return None
            source.hand_out()
            if not source.ready:
                return None
            fetcher = next(
                (c for c in connection.consumers if c.queue is source and c.on_delivery is None), None
            )
            if fetcher is None:
                fetcher = Consumer(connection, source, None, prefetch=0)
                connection.consumers[fetcher] = None
            return fetcher.take(source.ready.popleft())

    def queue_state(self, name: str) -> QueueState | None:
        """How many lie ready, and how many consume; None where there is no such queue."""
        with self.lock:
            self._bury_the_dead()
            queue = self._queues.get(name)
            return None if queue is None else QueueState(len(queue.ready), len(queue.consumers))

    # ── Inside ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _forget_temporary(self, connection: Connection) -> None:
        for name in connection.temporary:
            self.delete_queue(name)

    def _take(self, connection: Connection, message: Outgoing) -> PublishError | None:
        """Route and store; what the broker has against it, or None."""
        try:
            takers = self._routing.route(message.exchange, message.routing_key)
            message, ttl, further = look_at(message, user=connection.user, frame_max=connection.frame_max)
            if further:
                also = (queue for key in further for queue in self._routing.route(message.exchange, key))
                takers = tuple(dict.fromkeys((*takers, *also)))
        except PublishRefused as refusal:
            return refusal
        if self._refusals:
            self._refusals -= 1
            return PublishRefused("the broker did not take the message (basic.nack); it may at a later try")
        if not message.mandatory and not message.exchange and message.routing_key.startswith(_REPLIES):
            # As on RabbitMQ before 4.2, such an address is no queue: what is mandatory comes back even where somebody
            # listens.
            for each in self._connections:
                if message.routing_key in each.addresses:
                    each.reply(message.routing_key, message)
            return None
        if not takers and message.mandatory:
            return Unroutable(
                f"{_address(message)} reaches no queue (312 NO_ROUTE), so the message was not accepted. Declare the "
                "queue of whoever is to take it, or publish with mandatory=False"
            )
        tag = connection.next_tag() if message.mandatory else None
        taken = True
        for queue in takers:
            taken &= queue.put(message, tag, ttl)
        if not taken:
            return PublishRefused(
                f"a queue that {_address(message)} reaches is full and refuses what comes (basic.nack); it may take "
                "it later"
            )
        if self.on_publish:
            names = [queue.name for queue in takers]
            for observer in self.on_publish:
                observer(message, names)
        return None

    def _dead_letter(self, queue: Queue, stored: Stored, reason: Reason) -> None:
        """Hand on what a queue gave up, where the queue says to; it is gone otherwise."""
        exchange = queue.dead_letter_exchange
        if exchange is None or not self._routing.has_exchange(exchange):
            return
        now = 0.0 if self._clock is None else self._clock.now()
        letter, keys = dead_lettered(
            stored.message,
            queue=queue.name,
            reason=reason,
            at=now,
            exchange=exchange,
            key=queue.dead_letter_key,
        )
        takers = dict.fromkeys(taker for key in keys for taker in self._routing.route(exchange, key))
        for taker in takers:
            if not runs_in_circles(letter, taker.name):
                taker.put(letter, stored.tag, None, by_force=True)

    def _queue(self, name: str) -> Queue:
        if name not in self._queues:
            raise NotFound(f"404 NOT_FOUND - no queue {name!r}. Declare it first")
        return self._queues[name]

    def _let_in(self) -> None:
        for again in list(self._hopeful):
            again()

    def _bury_the_dead(self) -> None:
        """Connections of loops that were closed without a goodbye count as dropped."""
        for connection in list(self._connections):
            if connection.loop.is_closed():
                self.lose(connection)

    def _monotonic(self) -> float:
        return 0.0 if self._clock is None else self._clock.monotonic()

    def _expires_next(self, due: float) -> None:
        """Look again when the message that is first in line somewhere expires."""
        if self._clock is None or (self._alarm is not None and self._alarm[0] <= due):
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # Outside any loop nothing can ring. Whoever connects next looks.
            return
        if self._alarm is not None:
            self._alarm[1].cancel()
        self._alarm = (due, self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._rung))

    def _rung(self) -> None:
        with self.lock:
            self._alarm = None
            self._expire()

    def _expire(self) -> None:
        for queue in list(self._queues.values()):
            queue.hand_out()


def _declared(queue: Queue) -> dict[str, Any]:
    return {**queue.arguments, **{flag: getattr(queue, flag) for flag in FLAGS}}


def _address(message: Outgoing) -> str:
    exchange = f"exchange {message.exchange}" if message.exchange else "the default exchange"
    return f"{exchange} with routing key {message.routing_key!r}"


def _wake(watcher: asyncio.Future[None]) -> None:
    if not watcher.done():
        watcher.set_result(None)


def _with_tag(stored: Stored) -> Outgoing:
    message = stored.message
    if stored.tag is None:
        return message
    return message._replace(properties=message.properties.edit(add={h.TAG: stored.tag}))
