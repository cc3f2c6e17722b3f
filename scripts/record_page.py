"""`python -m scripts.record_page`: put the results of docs/record/ into the tables of docs/record.md and the README.

To add a run, put what it printed with --json into a file there: `leveret torture --json > docs/record/one-node.json`.
"""
# ruff: noqa: INP001  a folder of scripts is no package

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "docs" / "record"
PAGES: Final = (ROOT / "docs" / "record.md", ROOT / "README.md")
#: Between these a page has the table.
BEGIN: Final = "<!-- runs -->\n"
END: Final = "<!-- /runs -->\n"

_HEAD: Final = (
    "date",
    "command",
    "versions",
    "seeds",
    "accepted",
    "lost",
    "duplicated",
    "late",
    "p99 outside",
    "unknown",
)


def table(results: Iterable[Mapping[str, Any]]) -> str:
    """One row for each run.

    Args:
        results: each with `date`, `command`, `versions`, `seeds` and the figures of the ledger, as the commands print.

    Raises:
        ValueError: a result is none of ours, or has lost something: no record is made of what is not mended.
    """
    rows = [_row(_HEAD), _row("---" for _ in _HEAD)]
    for result in results:
        missing = {"date", "command", "versions", "seeds", "lost", "faults", "lateness"} - result.keys()
        if missing:
            raise ValueError(
                f"a result without {', '.join(sorted(missing))}: is it of simulate or torture --json?"
            )
        if result["lost"] or result["faults"]:
            raise ValueError(
                f"{result['command']} on {result['date']} broke the promise: mend it and run it again"
            )
        versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        figures = [
            f"{result[name]:,}".replace(",", " ") for name in ("accepted", "lost", "duplicated", "late")
        ]
        late = result["lateness"]["outside"]
        p99 = f"{late['p99']:.2g} s" if late["number"] else "–"
        rows.append(
            _row(
                [
                    result["date"],
                    f"`{result['command']}`",
                    versions,
                    str(result["seeds"]),
                    *figures,
                    p99,
                    str(result["unknown"]),
                ]
            )
        )
    return "\n".join(rows) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def with_table(page: str, rows: str) -> str:
    """*page* with *rows* as its table; a page without a place for it is left as it is."""
    if BEGIN not in page:
        return page
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{BEGIN}{rows}{end}{after}"


def results(folder: Path) -> list[dict[str, Any]]:
    """The last line of each file, which is the sum of its run, in the order of the files' names."""
    return [
        json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
        for path in sorted(folder.glob("*.json"))
    ]


if __name__ == "__main__":
    rows = table(results(RESULTS))
    for page in PAGES:
        page.write_text(with_table(page.read_text(encoding="utf-8"), rows), encoding="utf-8")
