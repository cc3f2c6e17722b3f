"""The RabbitMQ transport keeps the transport contract, on a node of the tests' own or on the broker that was named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
from tests.rabbitmq_node import NamedBroker, Node
from tests.rabbitmq_scene import RabbitHarness, harness_of, hurried_world

from leveret.testing.transport_contract import TransportContract
from leveret.transports.rabbitmq.transport import RabbitTransport


@pytest.mark.gentle
class TestRabbitTransport(TransportContract):
    @pytest_asyncio.fixture
    async def broker(self, any_rabbitmq: Node | NamedBroker) -> AsyncIterator[RabbitHarness]:
        async with harness_of(any_rabbitmq) as harness:
            yield harness

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
