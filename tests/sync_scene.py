"""Sync transports on a node: a namespace of a test's own, calls that hold up no loop, and what lies in queues."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable
from typing import Any, Self, TypeVar

from tests.rabbitmq_scene import RabbitHarness, until

from leveret.sync import RabbitMQTransport

R = TypeVar("R")


class SyncScene:
    """Transports of one namespace behind a test's proxy, which lives in the test's loop: so they are called beside it.

    Attributes:
        namespace: of all of them.
        alarms: code and fields of what they told of.
    """

    def __init__(self, broker: RabbitHarness) -> None:
        self.broker = broker
        self.namespace = f"sync-{uuid.uuid4().hex[:8]}"
        self.alarms: list[tuple[str, dict[str, Any]]] = []
        self._transports: list[RabbitMQTransport] = []
        self._loops: list[tuple[threading.Event, threading.Thread]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_loops()
        for transport in self._transports:
            await asyncio.to_thread(transport.close)

    def name(self, of: str) -> str:
        """The queue or exchange of this namespace."""
        return f"{self.namespace}.{of}"

    def url(self, query: str = "") -> str:
        """The node's address, through the proxy."""
        return f"amqp://guest:guest@127.0.0.1:{self.broker.proxy.port}{query}"

    def transport(self, *, query: str = "", **options: Any) -> RabbitMQTransport:
        """One that is closed in the end."""
        transport = RabbitMQTransport(
            self.url(query),
            namespace=self.namespace,
            alarm_callback=lambda code, _, fields: self.alarms.append((code, fields)),
            **options,
        )
        self._transports.append(transport)
        return transport

    @staticmethod
    async def threads(number: int, work: Callable[[int], object]) -> None:
        """Run *work* in so many threads, and wait for all of them; what one raises is raised here."""
        errors: list[BaseException] = []

        def run(each: int) -> None:
            try:
                work(each)
            except BaseException as error:  # noqa: BLE001 - handed on
                errors.append(error)

        running = [threading.Thread(target=run, args=(each,)) for each in range(number)]
        for thread in running:
            thread.start()
        for thread in running:
            await asyncio.to_thread(thread.join)
        if errors:
            raise errors[0]

    def loop(self, target: Callable[..., None], *arguments: Any) -> tuple[threading.Event, threading.Thread]:
        """Run a consumer loop in a thread; its stop comes last among the arguments."""
        stop = threading.Event()
        thread = threading.Thread(target=target, args=(*arguments, stop))
        thread.start()
        self._loops.append((stop, thread))
        return stop, thread

    async def stop_loops(self) -> None:
        """Stop them all, and wait until they have ended."""
        for stop, _ in self._loops:
            stop.set()
        for _, thread in self._loops:
            await asyncio.to_thread(thread.join, 20)
        self._loops.clear()

    def queue(self, name: str, key: str = "#") -> str:
        """Declare a queue that is bound to the events exchange."""
        with self.broker.channel() as channel:
            channel.exchange_declare(self.name("events"), "topic", durable=True)
            channel.queue_declare(self.name(name), durable=True)
            channel.queue_bind(self.name(name), self.name("events"), key)
        return self.name(name)

    def count(self, queue: str) -> tuple[int, int]:
        """Ready messages and consumers of a queue."""
        with self.broker.channel() as channel:
            found = channel.queue_declare(queue, passive=True).method
            return found.message_count, found.consumer_count

    async def consumed(self, queue: str, consumers: int = 1, seconds: float = 35) -> None:
        """Wait until the broker says that the queue has so many consumers."""

        def there() -> bool:
            try:
                return self.count(queue)[1] == consumers
            except Exception:  # noqa: BLE001 - not declared yet, or the broker is away
                return False

        await until(there, seconds)

    def take(self, queue: str) -> list[tuple[Any, Any]]:
        """Take all that lies in a queue: properties and payloads."""
        found = []
        with self.broker.channel() as channel:
            for method, properties, body in channel.consume(queue, auto_ack=True, inactivity_timeout=0.3):
                if method is None:
                    break
                found.append((properties, json.loads(body)))
            channel.cancel()
        return found
