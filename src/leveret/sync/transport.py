"""RabbitMQTransport: one transport for all threads of a daemon, a face over the async core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Self

from leveret.core.errors import (
    AccessRefused,
    BadPayload,
    BrokerUnreachable,
    ConfigError,
    TransportUnavailableError,
)
from leveret.core.instances import (
    DEFAULT_INSTANCE_KEY,
    INSTANCE_CHANNELS,
    RpcChannel,
    channel_of,
    channel_topology,
    instance_topology,
    shared_topology,
)
from leveret.core.payload import encode
from leveret.core.properties import check_short
from leveret.core.seconds import Seconds, seconds, whole
from leveret.core.topology import Binding, Names, Queue, RMQExchangeConfig, Topology, check_namespace
from leveret.core.urls import StoreUrl, parse_broker
from leveret.pipeline.broker_watch import BrokerWatch
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import Publisher
from leveret.rpc.client import RpcClient
from leveret.rpc.server import Request, RpcServer
from leveret.runtime import wiring
from leveret.runtime.config import load_config
from leveret.runtime.world import holder_name, system_world
from leveret.sync.consumer import Consumer
from leveret.sync.events import Event, EventServer
from leveret.sync.handlers import AlarmCallback, EventHandler, RpcHandler, RpcRequest, RpcResponse
from leveret.sync.line import Line, TransportHealth
from leveret.sync.portal import Portal, inherited
from leveret.sync.publisher import EventOutcome, SyncPublisher
from leveret.sync.topology import DEFAULT_NAMESPACE, strategy_queue_args

#: Deliveries that AMQP's 16 bits can ask for.
_MOST_PREFETCH: Final = 65535


class RabbitMQTransport:
    """Publishes, calls, answers and consumes for any number of threads, over connections that come back by themselves.

    All I/O is on a thread of its own, started at the first use; handlers run on the thread that consumes. It works in
    any thread, after a `fork` (the child gets connections of its own), in `atexit`, in `__del__`, and inside somebody
    else's event loop, which it holds up like any other blocking call.

    Args:
        url: `amqp://user:password@host/vhost`, `amqps://…`, or `memory://name`. It does not connect yet.
        timeout: seconds that a caller waits; it bounds the caller, not the connection.
        intent_prefetch: unsettled requests at a time on `intent` queues.
        snapshot_prefetch: the same on all other queues.
        alarm_callback: see `set_alarm_callback`.
        namespace: first part of every name on the broker.

    Raises:
        ConfigError: a URL that cannot be read (which part, and how to write it; never the password), no namespace, or
            settings that cannot be read (`[notify]` of the environment and of ./leveret.toml is used).
        ValueError: a timeout or prefetch that cannot be meant.

    Example:
        ```
        transport = RabbitMQTransport("amqp://trex:password@rabbit-1", namespace="trex")
        transport.declare_topology()
        transport.publish_event("order.filled", {"id": 17})
        ```
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: Seconds = 5.0,
        intent_prefetch: int = 1,
        snapshot_prefetch: int = 8,
        alarm_callback: AlarmCallback | None = None,
        namespace: str = DEFAULT_NAMESPACE,
    ) -> None:
        self._url: Final = parse_broker(url, "RabbitMQTransport(url)")
        self._names: Final = Names(check_namespace(namespace))
        self._timeout: Final = _some_seconds(timeout, "timeout")
        self._intent_prefetch: Final = _prefetch(intent_prefetch, "intent_prefetch")
        self._snapshot_prefetch: Final = _prefetch(snapshot_prefetch, "snapshot_prefetch")
        self._callback = _callable(alarm_callback, "alarm_callback")
        #: By name; those that were declared come on top.
        self._channels: dict[str, RpcChannel] = {channel.name: channel for channel in INSTANCE_CHANNELS}
        #: Who is told of alarms while the broker is not to be reached: set by whoever operates the daemon.
        self._notify: Final = load_config(code={"namespace": namespace}).notify
        self._portal: Final = Portal("leveret-io", owner="RabbitMQTransport", forked=self._forked)
        self._begin()

    def __repr__(self) -> str:
        return f"<RabbitMQTransport {self._names.namespace} at {self._url}: {self.health().value}>"

    def _begin(self) -> None:
        """All that belongs to one loop; nothing of it is connected yet."""
        # New in a child as well: two processes that draw the same numbers would write the same tags.
        world = system_world()
        transport = wiring.make_transport(self._url, world)
        self._alarms = wiring.make_alarms(
            world, self._names.namespace, broker=self._url, transport=transport, notify=self._notify
        )
        self._alarms.listen(self._callback)
        needs = shared_topology(self._names.namespace)
        self._line = Line(transport, world=world, needs=needs, opened=self._opened)
        self._world = world
        self._parts = Parts(
            names=self._names,
            exchange=RMQExchangeConfig(self._names.events),
            world=world,
            transport=transport,
            # A sync transport keeps nothing: what dies goes to the dead-letter queue, and a keeper takes it from there.
            store=wiring.make_store(StoreUrl(kind="memory"), world),
            alarms=self._alarms,
            base=needs,
            holder=holder_name(world),
        )
        self._letters = Publisher(self._parts, timeout=self._timeout, known_types=dict)
        self._publisher = SyncPublisher(
            self._portal,
            self._line,
            self._names,
            timeout=self._timeout,
            alarms=self._alarms,
            random=world.random,
        )
        self._client = RpcClient(self._line, world)
        self._consumers: list[Consumer[Any]] = []
        self._watch = BrokerWatch(self._consumers, self._parts)

    def _opened(self) -> None:
        self._alarms.start()
        self._watch.start()

    def _forked(self) -> None:
        # The sockets are the parent's, and so is what it has outstanding on them: nothing is said over them, and what
        # is in memory of them is kept as it is.
        inherited((self._line, self._parts, self._alarms, self._client, self._consumers, self._watch))
        self._line.transport.discard()
        self._begin()

    # ── Looking after it ──────────────────────────────────────────────────────────────────────────────────────────────

    def set_alarm_callback(self, callback: AlarmCallback | None) -> None:
        """Have *callback* called with (code, title, fields) for each alarm; None: no longer.

        It is called on a thread of its own, one call after another; what it raises is logged. A condition that goes on
        is told once in 300 s.
        """
        self._callback = _callable(callback, "callback")
        self._alarms.listen(callback)

    def health(self) -> TransportHealth:
        """Where the transport stands. Never blocks."""
        return TransportHealth.DISCONNECTED if self._portal.closed else self._line.health

    def keepalive_tick(self) -> None:
        """See to it that a connection that was lost is being made again. Never blocks, and raises nothing.

        Heartbeats go by themselves on the I/O thread, and notice a dead connection within 60 s; nobody has to call
        this. Does nothing where the transport was never used, or is closed.
        """
        if self._portal.running and not self._portal.closed:
            try:
                self._portal.submit(self._line.try_on)
            except TransportUnavailableError as error:
                # It is being closed, or the interpreter is ending.
                log.debug("keepalive_tick: %s", error)

    def close(self) -> None:
        """Disconnect, within some seconds. Idempotent; every later use raises TransportUnavailableError.

        What was handled is acked, what was not goes back to its queue. Consumer loops of other threads end: set their
        `stop` before, or they raise.

        Raises:
            LeveretError: called on the transport's own I/O thread.
        """
        self._portal.close(self._farewell())
        self._alarms.close()

    async def _farewell(self) -> None:
        await self._watch.stop()
        if self._url.scheme == "memory":
            await self._alarms.aclose()
        await self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── Declaring ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def declare_topology(
        self,
        instance_key: str = DEFAULT_INSTANCE_KEY,
        *,
        channels: Iterable[RpcChannel] = INSTANCE_CHANNELS,
    ) -> None:
        """Make sure that all that an instance needs is on the broker: exchanges, dead letters, its channels.

        Args:
            instance_key: which instance; the one under `default` has the plain names.
            channels: what it takes requests over, where these are others. `consume_rpc_forever` knows them then.

        Raises:
            ConfigError: the key is no word of 1 to 64 letters, digits, `_` and `-`.
            QueueMismatch: a queue exists with other arguments, and would lose messages.
            TransportUnavailableError: the broker is not to be reached within the timeout, or does not let us.
        """
        given = tuple(channels)
        self._declare(instance_topology(self._names.namespace, instance_key, given))
        self._channels |= {channel.name: channel for channel in given}

    def declare_strategy_queue(self, queue: str, binding_pattern: str) -> None:
        """Make sure that a strategy's queue is there: durable, dead-lettered, and bound to the events exchange.

        Raises:
            ValueError: queue or pattern is empty, or over 255 bytes.
            QueueMismatch, TransportUnavailableError: as `declare_topology` has it.
        """
        self._declare(self._strategy(queue, binding_pattern))

    def _strategy(self, queue: str, binding_pattern: str) -> Topology:
        _named(queue, "queue")
        _named(binding_pattern, "binding pattern")
        events = RMQExchangeConfig(self._names.events)
        return shared_topology(self._names.namespace) + Topology(
            (events,),
            (Queue(queue, arguments=strategy_queue_args(self._names.namespace)),),
            (Binding(events.name, queue, binding_pattern),),
        )

    def _declare(self, topology: Topology) -> None:
        async def declare() -> None:
            await self._line.connected()
            for sentence in await self._line.transport.declare(topology):
                log.warning("%s", sentence, extra={"action": "declare"})

        try:
            self._portal.call(declare(), within=self._timeout)
        except TimeoutError:
            raise TransportUnavailableError(
                f"declaring queues: no answer in {self._timeout:g} s, {self._line.why}"
            ) from None
        except (BrokerUnreachable, AccessRefused) as error:
            raise TransportUnavailableError(str(error)) from error

    # ── Publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish_event(self, routing_key: str, payload: dict[str, Any], *, mandatory: bool = True) -> None:
        """Publish an event, persistent, and return once the broker has it.

        An event that no queue is bound for goes to the dead letters, with an ERROR in the log; that is no exception.
        It ends within the timeout and two seconds: where no answer comes in half the timeout, a new connection is made,
        and it is published once more under the same message id.

        Args:
            routing_key: 1 to 255 bytes.
            payload: what JSON carries.
            mandatory: False: nobody has to take it; where no queue is bound, it is dropped.

        Raises:
            ValueError: key or payload cannot be written, with the path of the value; nothing was sent.
            TransportUnavailableError: says whether it was not sent, or may have arrived.
        """
        self._publisher.publish(self._publisher.compose(routing_key, payload, mandatory=mandatory))

    def publish_events(
        self, events: Iterable[tuple[str, dict[str, Any]]], *, mandatory: bool = True
    ) -> list[EventOutcome]:
        """Publish many events, pipelined: some ten times as fast. What became of each, in their order.

        Once the broker takes nothing any more, the rest is not sent, and told as refused.

        Args:
            events: routing keys and payloads; taken while earlier ones are on their way.
            mandatory: as in `publish_event`.

        Raises:
            TransportUnavailableError: the transport is closed.
        """
        return self._publisher.publish_many(events, mandatory=mandatory)

    def publish_alarm_event(self, routing_key: str, payload: dict[str, Any]) -> None:
        """Send a message of your own to the alerts exchange: transient, tried once, on a connection of its own.

        Returns at once whatever the broker does, and never raises for its sake: what it cannot take is dropped.

        Raises:
            ValueError: key or payload cannot be written.
            TransportUnavailableError: the transport is closed.
        """
        _named(routing_key, "routing key")
        body = encode(_object(payload, routing_key), type=routing_key)
        if self._portal.closed:
            raise TransportUnavailableError("RabbitMQTransport was closed: nothing was sent")
        self._alarms.publish(routing_key, body)

    # ── Calling and answering ─────────────────────────────────────────────────────────────────────────────────────────

    def call_rpc(
        self, queue: str, payload: dict[str, Any], *, correlation_id: str, timeout: Seconds
    ) -> dict[str, Any]:
        """Send a request, and return its answer.

        Args:
            queue: who is called.
            payload: what JSON carries.
            correlation_id: your own name for the request, in the logs of both ends.
            timeout: seconds until it is given up; nobody starts on it after that.

        Raises:
            ValueError: queue, payload, id or timeout cannot be meant; nothing was sent.
            RpcUnreachableError: there is no such queue; told at once.
            RpcTimeoutError: no answer in time.
            RpcRemoteError: the handler over there raised.
            RpcUnknownError: the connection went meanwhile; the request may be obeyed, or not.
            TransportUnavailableError: not connected, or the broker takes no messages; nothing was sent.
        """
        _named(queue, "queue")
        # Looked at before anything waits for a connection.
        encode(_object(payload, queue), type=queue)
        limit = _some_seconds(timeout, "timeout")

        return self._portal.call(
            self._client.call(queue, payload, correlation_id=correlation_id, timeout=limit)
        )

    def consume_rpc_forever(self, queue: str, handler: RpcHandler, stop: threading.Event) -> None:
        """Answer the requests of a queue on this thread, one after the other, until *stop* is set.

        It declares the queue. The reply goes out before the request is acked. A handler that raises makes the request a
        dead letter, and callers who understand it hear the error. A request whose caller has given up is not started.
        Intents are obeyed one at a time, also where several processes serve their queue.

        It survives any outage, and leaves within 0.5 s of *stop*, once the handler has returned.

        Raises:
            ValueError: the queue's name is empty, or over 255 bytes.
            QueueMismatch: the queue exists with other arguments, and would lose messages.
            BrokerError, TransportUnavailableError: the broker does not let us; the transport was closed meanwhile.
        """
        _named(queue, "queue")
        channel = channel_of(queue, self._names.namespace, tuple(self._channels.values()))
        ordered = channel is not None and channel.ordered
        prefetch = self._intent_prefetch if ordered else self._snapshot_prefetch

        def server(put: Callable[[Request], object]) -> RpcServer:
            name = queue.removeprefix(f"{self._names.namespace}.")
            return RpcServer(self._parts, self._letters, queue, prefetch=prefetch, on_request=put, name=name)

        def run(request: Request) -> dict[str, Any]:
            message = request.received.properties
            answer = handler(
                RpcRequest(
                    request.payload,
                    request.correlation_id,
                    request.reply_to,
                    {
                        "headers": dict(request.headers),
                        "message_id": message.message_id,
                        "type": message.type,
                        "redelivered": request.redelivered,
                    },
                )
            )
            if not isinstance(answer, RpcResponse):
                raise TypeError(f"the handler of {queue} returned {answer!r}: expected an RpcResponse")
            return answer.payload

        self._consume(
            Consumer(
                self._portal,
                self._line,
                self._world,
                queue=queue,
                topology=self._request_topology(queue, channel),
                server=server,
                run=run,
            ),
            stop,
        )

    def _request_topology(self, queue: str, channel: RpcChannel | None) -> Topology:
        namespace = self._names.namespace
        shared = shared_topology(namespace)
        if channel is not None:
            words = queue.split(".")
            return shared + channel_topology(
                channel, words[1] if len(words) == 4 else DEFAULT_INSTANCE_KEY, namespace
            )
        arguments = {"x-dead-letter-exchange": self._names.dead_letters}
        return shared + Topology(queues=(Queue(queue, arguments=arguments),))

    def consume_events_forever(
        self, queue: str, binding_pattern: str, handler: EventHandler, stop: threading.Event
    ) -> None:
        """Handle the events of a queue on this thread, one after the other, until *stop* is set.

        It declares queue and binding. An event whose handler returned is acked; one whose handler raised becomes a dead
        letter with its reason.

        It survives any outage, and leaves within 0.5 s of *stop*, once the handler has returned.

        Raises:
            ValueError: queue or pattern is empty, or over 255 bytes.
            QueueMismatch: the queue exists with other arguments, and would lose messages.
            BrokerError, TransportUnavailableError: the broker does not let us; the transport was closed meanwhile.
        """
        topology = self._strategy(queue, binding_pattern)

        def server(put: Callable[[Event], object]) -> EventServer:
            return EventServer(
                self._parts, self._letters, queue, prefetch=self._snapshot_prefetch, on_event=put
            )

        def run(event: Event) -> None:
            handler(event.routing_key, event.payload)

        self._consume(
            Consumer(
                self._portal, self._line, self._world, queue=queue, topology=topology, server=server, run=run
            ),
            stop,
        )

    def _consume(self, consumer: Consumer[Any], stop: threading.Event) -> None:
        self._portal.submit(partial(self._consumers.append, consumer))
        try:
            consumer.until(stop)
        finally:
            if not self._portal.closed:
                try:
                    self._portal.submit(partial(_remove, self._consumers, consumer))
                except TransportUnavailableError as error:
                    # It was closed at this very moment, and nobody watches any more.
                    log.debug("leaving %s: %s", consumer.queue, error)


def _remove(consumers: list[Consumer[Any]], consumer: Consumer[Any]) -> None:
    if consumer in consumers:
        consumers.remove(consumer)


def _named(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadPayload(f"{name} {value!r}: expected text of at least one character. Nothing was sent.")
    return check_short(value, name)


def _object(payload: object, about: str) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise BadPayload(
            f"the payload of {about!r} is of type {type(payload).__name__}: expected a dict. Nothing was sent."
        )
    return payload


def _some_seconds(value: Seconds, name: str) -> float:
    limit = seconds(value, name)
    if limit == 0:
        raise ValueError(f"{name}=0: no answer comes in no time. Expected more than 0 seconds")
    return limit


def _prefetch(value: int, name: str) -> int:
    if whole(value, name, least=1) > _MOST_PREFETCH:
        raise ConfigError(f"{name}={value}: expected at most {_MOST_PREFETCH} (AMQP has 16 bits for it)")
    return value


def _callable(value: AlarmCallback | None, name: str) -> AlarmCallback | None:
    if value is not None and not callable(value):
        raise ConfigError(f"{name}={value!r}: expected a function of code, title and fields, or None")
    return value
