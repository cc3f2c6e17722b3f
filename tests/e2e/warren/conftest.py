"""The package warren, in an environment of its own, on the session's node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from tests.e2e.warren.scene import Warren
from tests.rabbitmq_node import Node, need_rabbitmq

_SCRIPT = Path(__file__).parents[3] / "scripts" / "warren"
_ROOT = Path(os.environ.get("LEVERET_TEST_WARREN_ROOT") or "/var/tmp/leveret-warren")


@pytest.fixture(scope="session")
def warren_root() -> Path:
    """The folder with warren in it. In CI it is made where it is missing, which takes a minute."""
    need_rabbitmq()
    if os.geteuid() != 0:
        pytest.skip("needs root: warren runs in a folder with a Debian of its own")
    if not (_ROOT / ".complete").exists():
        if not os.environ.get("CI"):
            pytest.skip(f"needs the package warren on a Python of its own: scripts/warren {_ROOT}")
        subprocess.run([_SCRIPT, _ROOT], check=True, timeout=480)
    return _ROOT


@pytest_asyncio.fixture
async def warren(warren_root: Path, rabbitmq: Node, tmp_path: Path) -> AsyncIterator[Warren]:
    async with AsyncExitStack() as stack:
        yield Warren(warren_root, rabbitmq, tmp_path, stack)
