"""What tests against a RabbitMQ node have at hand: a world that waits less, and a harness for the contract suite."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from tests.cut_proxy import CutProxy
from tests.rabbitmq_node import Node

from leveret.core.urls import BrokerUrl, parse_broker
from leveret.ports import Timer, World
from leveret.runtime.world import DaemonThreads, SystemClock, random_uuid
from leveret.testing.transport_contract import BLOCK, EXACT_BYTES, RESTART, TIME

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
    """A node behind a proxy, with a connection of its own to declare and delete behind the transport's back."""

    capabilities = frozenset({BLOCK, EXACT_BYTES, RESTART, TIME})

    def __init__(self, node: Node, proxy: CutProxy) -> None:
        self.node = node
        self.proxy = proxy
        self._connection: pika.BlockingConnection | None = None

    @property
    def url(self) -> BrokerUrl:
        """Where transports connect to: the proxy."""
        return url_of(self.proxy.port)

    def channel(self) -> BlockingChannel:
        """A channel that goes by no proxy."""
        if self._connection is None or self._connection.is_closed:
            self._connection = pika.BlockingConnection(
                pika.ConnectionParameters("127.0.0.1", self.node.port, heartbeat=0)
            )
        return self._connection.channel()

    def close(self) -> None:
        """Close it."""
        if self._connection is not None and self._connection.is_open:
            self._connection.close()

    async def declare_queue(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, durable: bool = True
    ) -> None:
        with self.channel() as channel:
            channel.queue_declare(name, durable=durable, arguments=dict(arguments or {}))

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
        await asyncio.to_thread(self.node.ctl, "set_vm_memory_high_watermark", "0.000001")

    async def unblock(self) -> None:
        await asyncio.to_thread(self.node.ctl, "set_vm_memory_high_watermark", "0.4")

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
