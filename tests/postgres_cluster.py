"""PostgreSQL clusters of a test session's own: on a free port, in a folder that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

#: Seconds until a cluster must answer; it does in half a second here.
_PATIENCE = 60.0
#: The server refuses to run as root.
_USER: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
_NUMBERS = count(1)

PASSWORD = "s3cret-of-p0stgres"


def _programs() -> Path | None:
    """The folder of the newest server's programs."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    found = [folder for folder in found if (folder / "postgres").exists()]
    return max(
        found, key=lambda folder: int(folder.parent.name) if folder.parent.name.isdigit() else 0, default=None
    )


class Cluster:
    """A PostgreSQL server of our own. It may be killed, stopped, and started again on the same data."""

    def __init__(self, folder: Path, *, durable: bool) -> None:
        programs = _programs()
        assert programs is not None
        self.port = _free_port()
        self._folder = folder
        self._programs = programs
        self._server: subprocess.Popen[bytes] | None = None
        #: Whether it runs as every test expects it.
        self.plain = False
        folder.chmod(0o755)
        #: Contracts are about what is committed, not about what a power cut leaves.
        self._settings = (
            {} if durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        )
        data = folder / "data"
        data.mkdir()
        words = folder / "password"
        words.write_text(PASSWORD)
        if _USER:
            shutil.chown(data, **_USER)
            shutil.chown(words, **_USER)
        subprocess.run(
            [programs / "initdb", "--no-sync", "-D", data, "-U", "leveret", "-E", "UTF8", "--locale=C.UTF-8",
             "--auth=scram-sha-256", f"--pwfile={words}"],
            check=True, capture_output=True, cwd=folder, **_USER,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """Its address, for the user that owns it."""
        return self.at(self.port)

    def at(self, port: int, *, user: str = "leveret", password: str = PASSWORD) -> str:
        """Its address behind another port, or for another user."""
        return f"postgresql://{user}:{password}@127.0.0.1:{port}/postgres"

    def schema(self) -> str:
        """A name that no other test has."""
        return f"test_{next(_NUMBERS)}"

    def start(self, **settings: str) -> None:
        """Start it, on the data that is there, and wait until it takes connections."""
        given = {"max_connections": "40"} | self._settings
        options = [f"--{name}={value}" for name, value in (given | settings).items()]
        with (self._folder / "out").open("ab") as out:
            self._server = subprocess.Popen(
                [self._programs / "postgres", "-D", self._folder / "data", "-p", str(self.port), "-h", "127.0.0.1",
                 "-k", "", *options],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=self._folder, **_USER,
            )  # fmt: skip
        self.plain = not settings
        until = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > until:
                words = (self._folder / "out").read_text()[-2000:]
                raise RuntimeError(f"the PostgreSQL server in {self._folder} does not answer: {words}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        asked = [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False, cwd=self._folder).returncode == 0

    def kill(self) -> None:
        """Kill the server and all that it has started, as `kill -9` does."""
        self._end(signal.SIGKILL, everything=True)

    def stop(self) -> None:
        """Have it end its connections and stop."""
        self._end(signal.SIGINT, everything=False)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the server and to all that it has started: SIGSTOP and SIGCONT are what it is for."""
        assert self._server is not None
        # Each of its processes leads a group of its own.
        listed = Path(f"/proc/{self._server.pid}/task/{self._server.pid}/children")
        children = listed.read_text().split() if listed.exists() else []
        for pid in (self._server.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end(self, number: signal.Signals, *, everything: bool) -> None:
        server = self._server
        self.plain = False
        if server is not None and server.poll() is None:
            if everything:
                self.signal(number)
            else:
                server.send_signal(number)
            server.wait(30)
        self._server = None

    def end(self) -> None:
        """Kill it, if it runs."""
        self.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed() -> bool:
    """Whether servers can be started here."""
    return _programs() is not None


def need_postgres() -> None:
    """Skip the test where no PostgreSQL can be had; in CI that is a failure."""
    if not installed():
        if os.environ.get("CI"):
            pytest.fail("needs PostgreSQL: make services")
        pytest.skip("needs PostgreSQL: make services")


@contextmanager
def running_cluster(*, durable: bool, on_disk: bool = False) -> Iterator[Cluster]:
    """A cluster that runs, and is gone afterwards with all its data.

    Args:
        durable: it syncs what it commits.
        on_disk: in /var/tmp, for /tmp lies in memory on many systems, where a sync costs nothing.
    """
    need_postgres()
    folder = Path(tempfile.mkdtemp(prefix="leveret-postgres-", dir="/var/tmp" if on_disk else None))
    cluster = None
    try:
        cluster = Cluster(folder, durable=durable)
        cluster.start()
        yield cluster
    finally:
        if cluster is not None:
            cluster.end()
        shutil.rmtree(folder, ignore_errors=True)
