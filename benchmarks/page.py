"""`python -m benchmarks.page`: put the figures of results.json into the table of docs/benchmarks.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from benchmarks.__main__ import RESULTS

PAGE: Final = Path(__file__).parent.parent / "docs" / "benchmarks.md"
#: A row says in its first two cells which figure it shows and what is done; the others are written here.
_ROW: Final = re.compile(r"^\| `(?P<name>\w+)` \| (?P<what>[^|]*) \|.*$", re.MULTILINE)


def with_figures(page: str, results: list[dict[str, Any]]) -> str:
    """*page* with the rows of its table as *results* have them.

    Raises:
        KeyError: a row shows a figure that was never measured.
    """
    found = {each["name"]: each for each in results}

    def row(old: re.Match[str]) -> str:
        figure = found[old["name"]]
        cells = [_number(figure["value"], figure["unit"]), "", "", ""]
        if figure["peer"] is not None:
            cells[1:] = (
                figure["peer"],
                _number(figure["peer_value"], figure["unit"]),
                f"{figure['ratio']:.2f} ×",
            )
        return f"| `{old['name']}` | {old['what']} | {' | '.join(cells)} |"

    return _ROW.sub(row, page)


def _number(value: float, unit: str) -> str:
    shown = f"{value:,.0f}".replace(",", " ") if value >= 100 else f"{value:.3g}"
    return f"{shown}{unit}" if unit.startswith("/") else f"{shown} {unit}".rstrip()


if __name__ == "__main__":
    PAGE.write_text(with_figures(PAGE.read_text(), json.loads(RESULTS.read_text())))
