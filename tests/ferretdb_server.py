"""FerretDB of a test session's own: the protocol of MongoDB, on SQLite."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.private_server import PrivateServer, where

from leveret.torture.server import free_port

NEEDS = "needs FerretDB or MongoDB: make services"


class FerretDB(PrivateServer):
    """One FerretDB; with a user, it lets nobody else in. Unless durable, it syncs nothing to disk.

    Args:
        folder: its own. What it stores lies there too, unless *data* names another place.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data: Path | None = None,
        user: str = "",
        password: str = "",
        durable: bool = False,
    ) -> None:
        port = free_port()
        synced = "" if durable else "?_pragma=synchronous(off)"
        data = data or folder / "data"
        data.mkdir()
        login = (
            [
                "--test-enable-new-auth",
                "--setup-database=admin",
                f"--setup-username={user}",
                f"--setup-password={password}",
            ]
            if user
            else []
        )
        super().__init__(
            [
                where("ferretdb", NEEDS),
                "--handler=sqlite",
                f"--sqlite-url=file:{data}/{synced}",
                f"--listen-addr=127.0.0.1:{port}",
                "--debug-addr=-",
                "--telemetry=disable",
                "--log-level=ERROR",
                f"--state-dir={folder}",
                *login,
            ],
            port=port,
            folder=folder,
        )

    @property
    def url(self) -> str:
        """Its address, without a database."""
        return f"mongodb://127.0.0.1:{self.port}"


@contextmanager
def running_ferretdb(*, durable: bool = False) -> Iterator[FerretDB]:
    """A FerretDB that runs, ended with its data; a durable one lies on disk, where /tmp may not."""
    place = "/var/tmp" if durable and Path("/var/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="leveret-ferretdb-", dir=place) as folder:
        server = FerretDB(Path(folder), durable=durable)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def with_database(url: str, name: str) -> str:
    """The URL of a server with that database."""
    address, _, options = url.partition("?")
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{name}" + (f"?{options}" if options else "")
