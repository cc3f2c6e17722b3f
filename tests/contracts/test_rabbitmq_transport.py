"""The RabbitMQ transport keeps the transport contract, on a node of the tests' own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio
from tests.cut_proxy import CutProxy
from tests.rabbitmq_node import Node
from tests.rabbitmq_scene import RabbitHarness, hurried_world

from leveret.testing.transport_contract import TransportContract
from leveret.transports.rabbitmq.transport import RabbitTransport


class TestRabbitTransport(TransportContract):
    @pytest_asyncio.fixture
    async def broker(self, rabbitmq: Node) -> AsyncIterator[RabbitHarness]:
        proxy = CutProxy(rabbitmq.port)
        await proxy.start()
        harness = RabbitHarness(rabbitmq, proxy)
        yield harness
        harness.close()
        await proxy.stop()

    @pytest_asyncio.fixture
    async def connect(self, broker: RabbitHarness) -> AsyncIterator[Callable[[], Awaitable[RabbitTransport]]]:
        world = hurried_world()
        opened: list[RabbitTransport] = []

        async def connect() -> RabbitTransport:
            transport = RabbitTransport(broker.url, world=world)
            await transport.open()
            opened.append(transport)
            return transport

        yield connect
        for transport in opened:
            await transport.close()
