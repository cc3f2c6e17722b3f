"""A namespace of a test's own on the session's node: apps that work there, and what another program sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from tests.rabbitmq_app import HeardAlarms, Place
from tests.rabbitmq_scene import RabbitHarness, until

from leveret import Leveret, RetryPolicy
from leveret.core.retry_entry import RetryEntry
from leveret.core.urls import parse_broker, parse_store
from leveret.runtime import wiring
from leveret.runtime.opening import Stand
from leveret.runtime.world import system_world

#: Comes back at once, so that tests need not wait.
SOON = RetryPolicy(first_delay=0.05, factor=1, jitter=0)


class Shop(Place):
    """Apps of one namespace, one after the other or side by side, on the node behind the test's proxy.

    Attributes:
        alarms: of the app that was listened to last.
    """

    alarms: HeardAlarms

    def __init__(self, broker: RabbitHarness, folder: Path) -> None:
        super().__init__(broker, folder)
        self._channel: BlockingChannel | None = None

    def name(self, of: str) -> str:
        """The queue or exchange of this namespace."""
        return f"{self.namespace}.{of}"

    def app(
        self,
        *,
        login: str = "guest:guest",
        query: str = "",
        reached: Callable[[str, str | None], Awaitable[object]] | None = None,
        **options: Any,
    ) -> Leveret:
        """An app that is not open yet; *reached* is told of every hand-over."""
        app = super().app(login=login, query=query, **{"retry": SOON, **options})
        if reached is not None:
            world = replace(system_world(), reached=reached)
            broker, store = self.url(login=login, query=query), self.store
            app._stand = Stand(
                world=world,
                transport=lambda: wiring.make_transport(parse_broker(broker, "the test"), world),
                store=lambda: wiring.make_store(parse_store(store, "the test"), world),
            )
        return app

    def listen(self, app: Leveret) -> None:
        """Have the open app tell its alarms to `alarms`."""
        self.alarms = HeardAlarms(app)

    async def cut(self, app: Leveret) -> None:
        """Cut the open app's connections, and return when it knows."""
        transport = app._open.parts.transport
        self.broker.proxy.cut()
        await until(lambda: transport.state != "connected")

    async def until_connected(self, app: Leveret) -> None:
        """Wait until the open app is connected, and may publish."""
        transport = app._open.parts.transport
        await until(lambda: transport.state == "connected" and transport.sendable)

    async def until_settled(self, app: Leveret) -> None:
        """Wait until the app says that nothing is queued, runs, waits or is dead."""
        async with asyncio.timeout(30):
            while await app.counts() != (0, 0, 0, 0):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)

    async def until_stored(self, app: Leveret) -> RetryEntry:
        """Wait until a message waits in the app's store, and return it."""
        async with asyncio.timeout(30):
            while not (page := await app.retries.list()).items:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)
        return page.items[0]

    # ── What another program does and sees ────────────────────────────────────────────────────────────────────────────

    @property
    def channel(self) -> BlockingChannel:
        """Another program's channel. It goes by no proxy."""
        if self._channel is None or not self._channel.is_open:
            self._channel = self.broker.channel()
        return self._channel

    def send(self, queue: str, body: bytes, properties: pika.BasicProperties | None = None) -> None:
        """Publish straight to a queue of this namespace, as another program does."""
        self.channel.basic_publish("", self.name(queue), body, properties)

    def take(self, queue: str) -> tuple[bytes, pika.BasicProperties] | None:
        """The first message of a queue, taken out of it."""
        _, properties, body = self.channel.basic_get(self.name(queue), auto_ack=True)
        return None if properties is None else (body, properties)

    def ready(self, queue: str) -> int:
        """How many messages lie ready in a queue."""
        return self.channel.queue_declare(self.name(queue), passive=True).method.message_count

    def consumers(self, queue: str) -> int:
        """How many consumers a queue has."""
        return self.channel.queue_declare(self.name(queue), passive=True).method.consumer_count

    async def until_ready(self, queue: str, number: int) -> None:
        """Wait until so many messages lie ready in a queue."""
        async with asyncio.timeout(20):
            while self.ready(queue) != number:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.02)

    async def listed(self, queue: str, *columns: str) -> list[str]:
        """What rabbitmqctl lists of a queue."""
        listed = await asyncio.to_thread(
            self.broker.node.ctl, "list_queues", "--no-table-headers", "name", *columns
        )
        rows = (line.split("\t") for line in listed.splitlines())
        return next(row[1:] for row in rows if row[0] == self.name(queue))

    async def until_unacked(self, queue: str, number: int) -> None:
        """Wait until so many messages of a queue are in somebody's hands. The broker counts them now and then."""
        async with asyncio.timeout(20):
            while await self.listed(queue, "messages_unacknowledged") != [str(number)]:
                pass

    async def set_limits(self, **settings: int) -> None:
        """Change settings of the running node."""
        await asyncio.to_thread(
            self.broker.node.evaluate,
            ", ".join(f"application:set_env(rabbit, {name}, {value})" for name, value in settings.items())
            + ".",
        )

    async def max_message_size(self) -> int:
        """The largest body that the node takes: 128 MiB as it comes, and 16 MiB from 4.0 on."""
        return int(
            await asyncio.to_thread(
                self.broker.node.evaluate, "element(2, application:get_env(rabbit, max_message_size))."
            )
        )

    async def set_max_message_size(self, size: int) -> None:
        """The largest body that the node takes; channels that are open keep what they have read."""
        await asyncio.to_thread(
            self.broker.node.evaluate,
            f"persistent_term:put(max_message_size, {size}), "
            f"application:set_env(rabbit, max_message_size, {size}).",
        )

    @asynccontextmanager
    async def limited_to(self, size: int) -> AsyncIterator[None]:
        """Inside, the node takes bodies up to that size on channels that are opened there."""
        usual = await self.max_message_size()
        await self.set_max_message_size(size)
        try:
            yield
        finally:
            await self.set_max_message_size(usual)

    def close(self) -> None:
        """Delete what lies on the node, and leave it."""
        for queue in self._queues():
            self.channel.queue_delete(queue)
        self.broker.close()

    def _queues(self) -> list[str]:
        # There is no asking over AMQP which queues there are; these tests make no others.
        return [
            self.name(queue)
            for queue in ("retry", "events.dlq", "charge", "charge.suspects", "ship", "ship.suspects")
        ]
