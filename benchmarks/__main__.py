"""`python -m benchmarks [--json] [NAME …]`: measure, print one line a figure, write results.json."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.broker import NoBroker
from benchmarks.figure import Figure

#: One file each; see README.md.
QUESTIONS: Final = (
    "import_time",
    "pipeline_memory",
    "publish_confirmed",
    "sync_publish",
    "consume_pipeline",
    "fail_and_return",
    "retry_persist",
    "retry_republish",
    "retry_postgres",
    "retry_lateness",
    "retry_burst",
    "retry_mongodb",
    "waiting_100k",
    "rpc",
    "alarms",
    "waiting_1m",
)
RESULTS: Final = Path(__file__).with_name("results.json")


def main(arguments: list[str]) -> int:
    """Measure what was asked for, all by default; the other figures in results.json stay as they are."""
    as_json = "--json" in arguments
    names = [each for each in arguments if each != "--json"]
    unknown = [name for name in names if name not in QUESTIONS]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(QUESTIONS)}", file=sys.stderr)
        return 2
    whole = 0
    for name in names or QUESTIONS:
        figures: Iterable[Figure] = importlib.import_module(f"benchmarks.{name}").measure()
        try:
            for figure in figures:
                print(json.dumps(figure.written()) if as_json else figure.line, flush=True)
                write([figure])
        except NoBroker as missing:
            print(f"{name:<24} {missing}", file=sys.stderr)
            whole = 1
    return whole


def write(figures: list[Figure]) -> None:
    """Write these into results.json, in the place of those of the same names."""
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    by_name = {each["name"]: each for each in found} | {each.name: each.written() for each in figures}
    RESULTS.write_text(json.dumps([by_name[name] for name in sorted(by_name)], indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
