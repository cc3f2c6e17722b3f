"""What tests against a RabbitMQ node have at hand: a world that waits less, and a harness for the contract suite."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from tests.rabbitmq_log import used_on_purpose
from tests.rabbitmq_node import NamedBroker, Node

from leveret.core.topology import Queue, QueueType
from leveret.core.urls import BrokerUrl, parse_broker
from leveret.ports import Timer, World
from leveret.runtime.world import DaemonThreads, SystemClock, random_uuid
from leveret.testing.transport_contract import BLOCK, EXACT_BYTES, REPLIES_RETURNED, RESTART, TIME
from leveret.torture.proxy import CutProxy
from leveret.transports.rabbitmq.declare import queue_arguments

#: The type of the queues that tests leave open, of apps and of the harness; default: as leveret has it, classic.
QUEUE_TYPE = os.environ.get("LEVERET_TEST_QUEUE_TYPE")
PLAIN_TYPE: QueueType = "quorum" if QUEUE_TYPE == "quorum" else "classic"
#: How much shorter waits are. The longest between two tries to connect becomes 0.3 s.
_HURRY = 100
#: A broker takes a moment to notice that a connection is gone.
_LEAST = 0.03


class HurriedClock(SystemClock):
    """The system's clock, but whoever waits is called much earlier: the wait for a reconnect is what tests spend."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return super().call_later(max(min(seconds, _LEAST), seconds / _HURRY), callback)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(max(min(seconds, _LEAST), seconds / _HURRY))


def hurried_world(seed: int = 0) -> World:
    """The real world, in a hurry."""
    return World(clock=HurriedClock(), random=random.Random(seed), new_id=random_uuid, threads=DaemonThreads)


def url_of(port: int) -> BrokerUrl:
    """The broker at that port of this machine."""
    return parse_broker(f"amqp://guest:guest@127.0.0.1:{port}", "the test")


class RabbitHarness:
    """A broker behind a proxy, with a connection of its own to declare and delete behind the transport's back."""

    def __init__(self, broker: Node | NamedBroker, proxy: CutProxy) -> None:
        self.proxy = proxy
        self._broker = broker
        self._connection: pika.BlockingConnection | None = None

    @property
    def node(self) -> Node:
        """The node, for whoever does something to it."""
        assert isinstance(self._broker, Node), "this test is marked gentle, and it is not"
        return self._broker

    @property
    def url(self) -> BrokerUrl:
        """Where transports connect to: the proxy."""
        return replace(self._broker.address, nodes=(("127.0.0.1", self.proxy.port),))

    @property
    def capabilities(self) -> frozenset[str]:
        """What can be done to it, and what its version promises."""
        able = {TIME} if isinstance(self._broker, NamedBroker) else {BLOCK, RESTART, TIME}
        if self.version < (4,):
            able.add(EXACT_BYTES)
        if self.version < (4, 2):
            able.add(REPLIES_RETURNED)
        return frozenset(able)

    @property
    def version(self) -> tuple[int, ...]:
        """Its version, such as (3, 10, 8)."""
        told: bytes | str = self._connected()._impl.server_properties["version"]
        return tuple(map(int, (told.decode() if isinstance(told, bytes) else told).split(".")))

    def channel(self) -> BlockingChannel:
        """A channel that goes by no proxy."""
        return self._connected().channel()

    def _connected(self) -> pika.BlockingConnection:
        if self._connection is None or self._connection.is_closed:
            address = self._broker.address
            host, port = address.nodes[0]
            self._connection = pika.BlockingConnection(
                pika.ConnectionParameters(
                    host,
                    port,
                    address.vhost,
                    pika.PlainCredentials(address.user, address.password),
                    heartbeat=0,
                )
            )
        return self._connection

    def close(self) -> None:
        """Close it."""
        if self._connection is not None and self._connection.is_open:
            self._connection.close()

    async def declare_queue(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, durable: bool = True
    ) -> None:
        arguments = dict(arguments or {})
        if durable and not arguments and QUEUE_TYPE is not None:
            # As leveret declares it; what a test gives arguments to is what it says.
            arguments = queue_arguments(Queue(name, PLAIN_TYPE), ".".join(map(str, self.version)))
        with self.given_up() if not durable else nullcontext(), self.channel() as channel:
            channel.queue_declare(name, durable=durable, arguments=arguments)

    def given_up(self) -> AbstractContextManager[None]:
        """Inside, something is used on purpose that later versions refuse, such as a queue that does not last."""
        if isinstance(self._broker, NamedBroker) or self.version < (3, 13):
            return nullcontext()
        return used_on_purpose(self._broker)

    async def delete_queue(self, name: str) -> None:
        with self.channel() as channel:
            channel.queue_delete(name)

    async def delete_exchange(self, name: str) -> None:
        with self.channel() as channel:
            channel.exchange_delete(name)

    async def drop_connections(self) -> None:
        self.proxy.cut()
        # Until the ends of it have been read here.
        await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self.close()
        self._connection = None
        await asyncio.to_thread(self.node.ctl, "stop_app")

    async def start(self) -> None:
        await asyncio.to_thread(self.node.ctl, "start_app")

    async def block(self) -> None:
        await asyncio.to_thread(self.node.alarm, on=True)

    async def unblock(self) -> None:
        await asyncio.to_thread(self.node.alarm, on=False)

    async def refuse_next(self, number: int) -> None:
        raise AssertionError("no RabbitMQ can be told to")

    async def lose_next_confirm(self, number: int) -> None:
        raise AssertionError("no RabbitMQ can be told to")

    async def advance(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def turn(self) -> None:
        await asyncio.sleep(0.01)


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for what no event tells."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the transport tells nobody of it
            await asyncio.sleep(0.01)


def late_is_told_on(broker: RabbitHarness, kind: str) -> None:
    """Skip the test where the broker waits for an ack as long as it takes."""
    if kind == "classic" and broker.version >= (4, 3):
        pytest.skip("from 4.3 on RabbitMQ keeps its consumer timeout for quorum queues alone")


def needs_version(broker: RabbitHarness, *least: int, why: str) -> None:
    """Skip the test on an older broker; *why* says what is new."""
    if broker.version < least:
        needed, there = (".".join(map(str, version)) for version in (least, broker.version))
        pytest.skip(f"needs RabbitMQ {needed} or later (make matrix): {why}; this is {there}")


@asynccontextmanager
async def harness_of(broker: Node | NamedBroker) -> AsyncIterator[RabbitHarness]:
    """A harness with a proxy of its own."""
    proxy = CutProxy(*reversed(broker.address.nodes[0]))
    await proxy.start()
    harness = RabbitHarness(broker, proxy)
    yield harness
    harness.close()
    await proxy.stop()
