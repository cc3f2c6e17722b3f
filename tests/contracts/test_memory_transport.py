"""The memory transport keeps the transport contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio

from leveret.testing.fake_clock import FakeClock
from leveret.testing.transport_contract import (
    BLOCK,
    EXACT_BYTES,
    LOSE_CONFIRM,
    REFUSE,
    REPLIES_RETURNED,
    RESTART,
    TIME,
    TransportContract,
)
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryBroker, MemoryTransport


class MemoryHarness:
    """A memory broker with a clock of its own."""

    capabilities = frozenset({BLOCK, EXACT_BYTES, LOSE_CONFIRM, REFUSE, REPLIES_RETURNED, RESTART, TIME})

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.clock = FakeClock()

    async def declare_queue(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, durable: bool = True
    ) -> None:
        self.broker.declare_queue(name, arguments, durable=durable)

    async def delete_queue(self, name: str) -> None:
        self.broker.delete_queue(name)

    async def delete_exchange(self, name: str) -> None:
        self.broker.delete_exchange(name)

    async def drop_connections(self) -> None:
        self.broker.drop_connections()

    async def stop(self) -> None:
        self.broker.stop()

    async def start(self) -> None:
        self.broker.start()

    async def block(self) -> None:
        self.broker.block()

    async def unblock(self) -> None:
        self.broker.unblock()

    async def refuse_next(self, number: int) -> None:
        self.broker.refuse_next(number)

    async def lose_next_confirm(self, number: int) -> None:
        self.broker.lose_next_confirm(number)

    async def advance(self, seconds: float) -> None:
        await self.clock.advance(seconds)

    async def turn(self) -> None:
        await asyncio.sleep(0)


class TestMemoryTransport(TransportContract):
    @pytest.fixture
    def broker(self) -> MemoryHarness:
        return MemoryHarness()

    @pytest_asyncio.fixture
    async def connect(self, broker: MemoryHarness) -> AsyncIterator[Callable[[], Awaitable[MemoryTransport]]]:
        world = fake_world(clock=broker.clock)
        opened: list[MemoryTransport] = []

        async def connect() -> MemoryTransport:
            transport = MemoryTransport(broker.broker, world=world)
            await transport.open()
            opened.append(transport)
            return transport

        yield connect
        for transport in opened:
            await transport.close()
