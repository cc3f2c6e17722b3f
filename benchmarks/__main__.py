"""`python -m benchmarks [NAME …]`: measure, print one line a figure, write results.json."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks.figure import Figure

#: One file each; see README.md.
QUESTIONS: Final = ("import_time", "pipeline_memory", "retry_persist", "retry_republish", "waiting_100k")
RESULTS: Final = Path(__file__).with_name("results.json")


def main(names: list[str]) -> int:
    """Measure what was asked for, all by default; the other figures in results.json stay as they are."""
    unknown = [name for name in names if name not in QUESTIONS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(QUESTIONS)}", file=sys.stderr)
        return 2
    for name in names or QUESTIONS:
        figures: list[Figure] = importlib.import_module(f"benchmarks.{name}").measure()
        for figure in figures:
            print(figure.line, flush=True)
        write(figures)
    return 0


def write(figures: list[Figure]) -> None:
    """Write these into results.json, in the place of those of the same names."""
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    by_name = {each["name"]: each for each in found} | {each.name: each.written() for each in figures}
    RESULTS.write_text(json.dumps([by_name[name] for name in sorted(by_name)], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
