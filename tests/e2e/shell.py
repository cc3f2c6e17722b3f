"""A shell for end-to-end tests: real processes of `leveret` in a folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

#: Seconds that anything may take on a busy machine.
PATIENCE = 60.0


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Process:
    """A command that runs. What it says on either stream can be waited for."""

    def __init__(self, call: list[str], folder: Path, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            call, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.told = ""
        self._more = threading.Condition()
        self._over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self.told += line
                self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        with self._more:
            self._more.wait_for(lambda: self._over or re.search(pattern, self.told), PATIENCE)
            found = re.search(pattern, self.told)
        assert found, f"never said {pattern!r}, but:\n{self.told}"
        return found

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def insist(self, number: signal.Signals) -> int:
        """Send it until the process ends: a second one that comes at once counts as the first."""
        while self.process.poll() is None:
            self.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
        return self.ended()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.ended()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ended()

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self._reader.join(PATIENCE)
        self.process.stdout.close()


class Shell:
    """A folder, and commands that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
        self._processes: list[Process] = []

    def __call__(self, *arguments: str, stdin: str = "", interpreter: str = sys.executable) -> Ended:
        ended = subprocess.run(
            [interpreter, "-m", "leveret.cli", *arguments],
            cwd=self.folder, env=self.environ, input=stdin, capture_output=True, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *arguments: str, interpreter: str = sys.executable) -> Process:
        process = Process([interpreter, "-m", "leveret.cli", *arguments], self.folder, self.environ)
        self._processes.append(process)
        return process

    def clean_up(self) -> None:
        for process in self._processes:
            process.clean_up()
