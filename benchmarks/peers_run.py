"""Peers: what Leveret is measured against, each a script in `peers/` or `c/` that prints its figure as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_HERE: Final = Path(__file__).parent
_REQUIREMENTS: Final = _HERE / "requirements.txt"
#: An environment of their own, so that nothing of theirs is ever imported beside Leveret.
_ENVIRONMENT: Final = _HERE.parent / ".venv-bench"
#: Seconds that a peer may take; the slowest needs one.
_PATIENCE: Final = 300.0


def run(script: str, *arguments: object) -> float:
    """The figure of one peer.

    Raises:
        RuntimeError: it failed; its own words are in the message.
    """
    return _figure(script, [str(_interpreter()), str(_HERE / "peers" / script), *map(str, arguments)])


def c_limit(url: str, messages: int) -> float | None:
    """What the broker confirms through librabbitmq; None where there is no compiler or library for it."""
    program = _c_program()
    if program is None:
        return None
    parts = urlsplit(url)
    vhost = unquote(parts.path[1:]) or "/"
    host, port = parts.hostname or "localhost", parts.port or 5672
    user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
    return _figure(program.name, [str(program), host, str(port), user, password, vhost, str(messages)])


@cache
def _interpreter() -> Path:
    """The interpreter of the peers' environment, which is made where it is missing or its requirements have changed."""
    python = _ENVIRONMENT / "bin" / "python"
    stamp = _ENVIRONMENT / "requirements.txt"
    wanted = _REQUIREMENTS.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Installing the peers into {_ENVIRONMENT.name} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", _ENVIRONMENT], check=True)
        quiet = ("--quiet", "--disable-pip-version-check")
        subprocess.run([python, "-m", "pip", "install", *quiet, "-r", _REQUIREMENTS], check=True)
        stamp.write_text(wanted)
    return python


@cache
def _c_program() -> Path | None:
    """The compiled limit, beside the peers; on Debian root gets the library from the distribution first."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("No C compiler: the broker's own limit is not measured.", file=sys.stderr)
        return None
    _interpreter()
    source, program = _HERE / "c" / "publish_limit.c", _ENVIRONMENT / "publish_limit"
    # Compiled each time, which takes a moment: so it is never an old one.
    compile_it = [
        compiler,
        "-O2",
        "-Wno-deprecated-declarations",
        "-o",
        str(program),
        str(source),
        "-lrabbitmq",
    ]
    if _has_header(compiler) or _installed():
        subprocess.run(compile_it, check=True)
        return program
    print(
        "No librabbitmq: the broker's own limit is not measured. On Debian: sudo apt-get install librabbitmq-dev",
        file=sys.stderr,
    )
    return None


def _has_header(compiler: str) -> bool:
    command = [compiler, "-E", "-x", "c", "-include", "amqp.h", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _installed() -> bool:
    """Whether it could be installed just now."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    commands = (
        [apt, "update", "-qq"],
        [apt, "install", "-y", "-qq", "--no-install-recommends", "librabbitmq-dev"],
    )
    return all(
        subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode == 0
        for command in commands
    )


def _figure(name: str, command: list[str]) -> float:
    """Run a peer, with whatever it starts, to its end.

    Raises:
        RuntimeError: it failed or took too long. The message leaves its arguments out: they hold a password.
    """
    # A group of its own, so that what it started ends with it.
    peer = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        told, complaints = peer.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{name} did not end in {_PATIENCE:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(peer.pid, signal.SIGKILL)
    if peer.returncode or not told.strip():
        raise RuntimeError(f"{name} failed: {complaints.strip()[-2000:]}")
    return float(json.loads(told.splitlines()[-1])["per_second"])
