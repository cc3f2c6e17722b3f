"""`python -m scripts.record_page`: put the results of docs/record/ into docs/record.md and the README.

To add a run, put what it printed with --json into a file there: `leveret torture --json > docs/record/one-node.json`.
"""
# ruff: noqa: INP001  a folder of scripts is no package

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "docs" / "record"
PAGES: Final = (ROOT / "docs" / "record.md", ROOT / "README.md")

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
        ValueError: a result is none of ours, or not clean: no record is made of what is not mended.
    """
    rows = [_row(_HEAD), _row("---" for _ in _HEAD)]
    for result in results:
        missing = {"date", "command", "versions", "seeds", "lost", "faults", "lateness"} - result.keys()
        if missing:
            raise ValueError(
                f"a result without {', '.join(sorted(missing))}: is it of simulate or torture --json?"
            )
        if result["lost"] or result["faults"] or result.get("troubles"):
            raise ValueError(
                f"{result['command']} on {result['date']} was not clean: mend it and run it again"
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


def used(results: Iterable[Mapping[str, Any]]) -> str:
    """One line for each life of a process that a soak has watched: what it used at first and at last."""
    return "".join(f"- {life}\n" for result in results for life in result.get("lives", ()))


def with_part(page: str, name: str, text: str) -> str:
    """*page* with *text* between the marks of that name; a page without these is left as it is."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    if begin not in page:
        return page
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}{end}{rest.partition(end)[2]}"


def with_results(page: str, results: Sequence[Mapping[str, Any]]) -> str:
    """*page* with what these runs came to."""
    return with_part(with_part(page, "runs", table(results)), "soak", used(results))


def results(folder: Path) -> list[dict[str, Any]]:
    """The last line of each file, which is the sum of its run, in the order of the files' names."""
    return [
        json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1])
        for path in sorted(folder.glob("*.json"))
    ]


if __name__ == "__main__":
    found = results(RESULTS)
    for page in PAGES:
        page.write_text(with_results(page.read_text(encoding="utf-8"), found), encoding="utf-8")
