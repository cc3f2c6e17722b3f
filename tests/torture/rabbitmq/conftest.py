from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest_asyncio
from tests.rabbitmq_node import Node
from tests.torture.rabbitmq.scene import Scene

from leveret.torture.proxy import CutProxy


@pytest_asyncio.fixture
async def proxy(rabbitmq: Node) -> AsyncIterator[CutProxy]:
    """A way to the session's node that can be cut."""
    proxy = CutProxy(rabbitmq.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest_asyncio.fixture
async def scene(rabbitmq: Node, proxy: CutProxy, tmp_path: Path) -> AsyncIterator[Callable[..., Scene]]:
    """Opens a scene on the session's node, and ends all its processes afterwards."""
    opened: list[Scene] = []

    async def open_scene(**options: Any) -> Scene:
        opened.append(found := Scene(rabbitmq, proxy, tmp_path, **options))
        await found.open()
        return found

    yield open_scene
    for one in opened:
        await one.close()
