"""How long it takes to begin: `import leveret`, the names that an app needs from it, and `leveret --help`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure

#: Fresh processes of each; the best counts, since everything that disturbs makes it slower.
ROUNDS: Final = 7
#: Beside the interpreter that runs this.
COMMAND: Final = Path(sys.executable).with_name("leveret")


def measure() -> list[Figure]:
    """Each in turn, its peer right after it."""
    library = "import asyncio, json, logging"
    app = "from leveret import Context, HardFailure, Leveret, RetryPolicy, SoftFailure"
    questions = (
        ("import_leveret", _python("import leveret"), library, _python(library)),
        ("import_app", _python(app), library, _python(library)),
        ("leveret_help", [str(COMMAND), "--help"], "a typer program of one command", _typer()),
    )
    figures = []
    for name, ours, peer, theirs in questions:
        times = [(_seconds(ours), _seconds(theirs)) for _ in range(ROUNDS)]
        if name != "leveret_help":
            # Of the imports alone: both start an interpreter first.
            bare = min(_seconds(_python("pass")) for _ in range(ROUNDS))
            times = [(one - bare, other - bare) for one, other in times]
        figures.append(
            Figure(
                name=name,
                value=min(one for one, _ in times),
                unit=" s",
                peer=peer,
                peer_value=min(other for _, other in times),
            )
        )
    return figures


def _python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def _typer() -> list[str]:
    return _python("import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])")


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started
