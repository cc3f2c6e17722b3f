from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.rabbitmq_app import Place
from tests.rabbitmq_node import NamedBroker, Node
from tests.rabbitmq_scene import RabbitHarness, harness_of, hurried_world

from leveret.core.urls import BrokerUrl
from leveret.transports.rabbitmq.transport import RabbitTransport


@pytest_asyncio.fixture
async def broker(any_rabbitmq: Node | NamedBroker) -> AsyncIterator[RabbitHarness]:
    """The test's broker behind a proxy of its own."""
    async with harness_of(any_rabbitmq) as harness:
        yield harness


@pytest_asyncio.fixture
async def connect(broker: RabbitHarness) -> AsyncIterator[Callable[..., Awaitable[RabbitTransport]]]:
    """Opens transports, by default through the proxy, and closes them in the end."""
    world = hurried_world()
    opened: list[RabbitTransport] = []

    async def connect(url: BrokerUrl | None = None) -> RabbitTransport:
        transport = RabbitTransport(url or broker.url, world=world)
        await transport.open()
        opened.append(transport)
        return transport

    yield connect
    for transport in opened:
        await transport.close()


@pytest.fixture
def place(broker: RabbitHarness, tmp_path: Path) -> Place:
    """Where whole apps live, behind the test's own proxy."""
    return Place(broker, tmp_path)


@pytest.fixture
def reconnects_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets apps connect again at once, where the wait is not what the test is about."""
    monkeypatch.setattr("leveret.transports.rabbitmq.link.DELAYS", (0.05,))
