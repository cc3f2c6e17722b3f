"""Redis of a test session's own, in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.private_server import PrivateServer, where

from leveret.torture.server import free_port


class Redis(PrivateServer):
    """One Redis."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        command = [where("redis-server", "needs Redis: make services"), "--port", str(port)]
        super().__init__(
            [*command, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"], port=port, folder=folder
        )

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def running_redis() -> Iterator[Redis]:
    """A Redis that runs, ended with what it holds."""
    with tempfile.TemporaryDirectory(prefix="leveret-redis-") as folder:
        server = Redis(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()
