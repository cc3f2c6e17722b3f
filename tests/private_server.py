"""A server process of a test session's own, on a free port of this machine: started, killed, stopped, started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

#: A server is up within a second here; a busy machine takes longer.
_PATIENCE = 30.0


class PrivateServer:
    """A process that listens on a port. What it writes lies in its folder, and outlives a kill."""

    def __init__(self, command: Sequence[str | Path], *, port: int, folder: Path) -> None:
        self.port = port
        self.folder = folder
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, on the data that is there, and wait until it takes connections."""
        with (self.folder / "out").open("ab") as out:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        until = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(
                    f"{self._command[0]} does not answer: {(self.folder / 'out').read_text()[-2000:]}"
                )
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    @property
    def pid(self) -> int:
        """Of the process, which runs."""
        assert self._process is not None
        return self._process.pid

    def pause(self) -> None:
        """Stop it where it stands; connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
        except OSError:
            return False
        return True


def where(program: str, needs: str) -> str:
    """The path of *program*; the test is skipped where there is none, and fails in CI."""
    found = shutil.which(program) or shutil.which(
        program, path=f"/usr/local/bin:/usr/bin:{Path.home()}/go/bin"
    )
    if found is None:
        missing(needs)
    return found


def missing(needs: str) -> None:
    """Skip the test that needs a server which is not there; in CI, `make services` should have brought it."""
    if os.environ.get("CI"):
        pytest.fail(f"{needs}, and there is none although this is CI")
    pytest.skip(needs)
