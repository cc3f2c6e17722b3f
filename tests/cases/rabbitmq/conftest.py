from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_node import Node
from tests.rabbitmq_scene import harness_of


@pytest_asyncio.fixture
async def shop(rabbitmq: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    """A namespace of this test's own on the session's node, behind a proxy of its own; apps connect again at once."""
    monkeypatch.setattr("leveret.transports.rabbitmq.link.DELAYS", (0.05,))
    async with harness_of(rabbitmq) as harness:
        shop = Shop(harness, tmp_path)
        yield shop
        shop.close()
