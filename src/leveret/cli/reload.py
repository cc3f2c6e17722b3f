"""`run --reload`: the command in a process of its own, started anew whenever a .py file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

#: Seconds between looks at the files.
_LOOK_EVERY: Final = 0.4

_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


def supervise(arguments: Sequence[str] | None = None) -> int:
    """Run `leveret` with these arguments (default: those of this process) but for `--reload`, over and over.

    Signals are handed on to the process that runs, which stops as it always does; then this one ends, too.

    Returns:
        The exit code of the last process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    call = [sys.executable, "-m", "leveret.cli", *(each for each in given if each != "--reload")]
    ended = False
    process = _start(call)

    def hand_on(number: int, _frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        if process.poll() is None:
            process.send_signal(number)

    for number in _SIGNALS:
        signal.signal(number, hand_on)
    files = changed_at(Path.cwd())
    told = False
    while True:
        if ended:
            code = process.wait()
            return code if code >= 0 else 128 - code
        time.sleep(_LOOK_EVERY)
        if process.poll() is not None and not told and not ended:
            told = True
            _say(f"ended with exit code {process.returncode}; waiting for a change")
        now = changed_at(Path.cwd())
        if now == files or ended:
            continue
        _say(f"{_which(files, now)} changed, starting anew")
        files, told = now, False
        if process.poll() is None:
            process.terminate()
            process.wait()
        if not ended:
            process = _start(call)


def _start(call: Sequence[str]) -> subprocess.Popen[bytes]:
    # A group of its own: what the terminal sends on Ctrl+C reaches this process only, and the other one once.
    return subprocess.Popen(call, process_group=0)  # noqa: S603 - our own command with the arguments we were given


def changed_at(folder: Path) -> dict[str, int]:
    """When each .py file below *folder* was last changed; environments and hidden folders are left out."""
    return dict(_files(str(folder)))


def _files(folder: str) -> Iterator[tuple[str, int]]:
    for below, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [
            each
            for each in folders
            if not each.startswith(".") and each not in {"__pycache__", "node_modules"}
        ]
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(below, name)  # noqa: PTH118 - walked as text, for there may be thousands
                try:
                    yield path, os.stat(path).st_mtime_ns  # noqa: PTH116
                except FileNotFoundError:
                    # Gone since the folder was read: an editor replaces a file so.
                    continue


def _which(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            return os.path.relpath(path)
    return "something"


def _say(text: str) -> None:
    sys.stderr.write(f" reload: {text}\n")
    sys.stderr.flush()
