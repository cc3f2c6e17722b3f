"""A PostgreSQL server of our own: on a free port, with data of its own, gone with us."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from leveret.core.errors import ConfigError
from leveret.torture.server import Leashed, free_port

#: Where Debian keeps the programs, a folder for each version.
_DEBIAN: Final = Path("/usr/lib/postgresql")
#: Seconds until a server must answer or stop; it does in half a second here.
_PATIENCE: Final = 60.0
#: The server refuses to run as root.
_USER: Final = "postgres" if os.getuid() == 0 else None
#: Only what runs on this machine can reach it, and what it holds is made up.
PASSWORD: Final = "s3cret-of-p0stgres"


def find_postgres() -> Path:
    """The folder of the newest server's programs.

    Raises:
        ConfigError: there is none; says what to do.
    """
    found = [path.parent for path in _DEBIAN.glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    found = [folder for folder in found if (folder / "postgres").exists()]
    if not found:
        raise ConfigError(
            "there is no PostgreSQL to start a server of our own from. Install one (Debian: apt-get install "
            "postgresql), or name a store that is there: --store postgresql://…"
        )
    return max(found, key=lambda folder: int(folder.parent.name) if folder.parent.name.isdigit() else 0)


class Postgres:
    """A PostgreSQL server of our own. It may be killed, stopped, started again on the same data, and paused.

    It ends with the process that started it, however that ends. All calls block until what they say is so.

    Args:
        folder: an empty one, for all that it writes. Where we are root it runs as the user postgres, who must be able
            to enter that folder.
        durable: it syncs what it commits; without that, data outlives a kill of the server, and no power cut.

    Raises:
        ConfigError: no PostgreSQL is installed.

    Example:
        ```
        server = Postgres(folder)
        server.start()
        server.url
        server.restart()
        server.end()
        ```
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.port: Final = free_port()
        self.folder: Final = folder
        self._programs = find_postgres()
        self._server: Leashed | None = None
        self._settings = (
            {} if durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        )
        folder.chmod(0o755)
        data, words = folder / "data", folder / "password"
        data.mkdir()
        words.write_text(PASSWORD)
        rights: dict[str, Any] = {}
        if _USER is not None:
            rights = {"user": _USER, "group": _USER}
            shutil.chown(data, **rights)
            shutil.chown(words, **rights)
        subprocess.run(
            [self._programs / "initdb", "--no-sync", "-D", data, "-U", "leveret", "-E", "UTF8", "--locale=C.UTF-8",
             "--auth=scram-sha-256", f"--pwfile={words}"],
            check=True, capture_output=True, cwd=folder, **rights,
        )  # fmt: skip

    @property
    def url(self) -> str:
        """Its address, for the user that owns it."""
        return self.at(self.port)

    def at(self, port: int, *, user: str = "leveret", password: str = PASSWORD) -> str:
        """Its address behind another port, such as a proxy's, or for another user."""
        return f"postgresql://{user}:{password}@127.0.0.1:{port}/postgres"

    def start(self, **settings: str) -> None:
        """Start it, on the data that is there, and wait until it takes connections.

        Args:
            settings: of postgresql.conf.

        Raises:
            RuntimeError: it ended, or does not answer in time.
        """
        given = {"max_connections": "40"} | self._settings | settings
        places = ["-D", str(self.folder / "data"), "-p", str(self.port), "-h", "127.0.0.1", "-k", ""]
        options = [f"--{name}={value}" for name, value in given.items()]
        command = [str(self._programs / "postgres"), *places, *options]
        self._server = Leashed(command, out=self.folder / "out", folder=self.folder, user=_USER)
        self._server.until(self._answers, seconds=_PATIENCE, what=f"the PostgreSQL server in {self.folder}")

    def _answers(self) -> bool:
        asked = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False, cwd=self.folder).returncode == 0

    @property
    def pid(self) -> int:
        """The process that all others of the server are children of."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """Kill it with all its processes, as `kill -9` does."""
        if self._server is not None and not self._server.ended:
            # One that was started a moment ago has not written who it is, and has no processes yet.
            if (self.folder / "data" / "postmaster.pid").exists():
                self._signal(signal.SIGKILL)
            self._server.kill()

    def stop(self) -> None:
        """Have it end its connections and stop."""
        if self._server is not None and not self._server.ended:
            os.kill(self.pid, signal.SIGINT)
            self._server.wait(_PATIENCE)

    def restart(self) -> None:
        """Stop it, and start it on the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop all its processes where they stand; connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        # Each of its processes leads a group of its own; the children follow their parent, which then starts no more.
        pid = self.pid
        listed = Path(f"/proc/{pid}/task/{pid}/children")
        children = listed.read_text().split() if listed.exists() else []
        for each in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(each, number)

    def end(self) -> None:
        """Kill it, if it runs."""
        self.kill()
