"""The console: results to stdout, everything else to stderr. The only import of rich."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.console import Console as RichConsole
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text
from rich.theme import Theme

from leveret.cli.exits import NEEDS_YES, ReaderGone
from leveret.cli.options import Common
from leveret.cli.words import safe

#: Every style, by what it says.
STYLES: Final = Theme(
    {"head": "dim", "title": "bold", "ok": "green", "warn": "yellow", "fault": "bold red", "hint": "dim"}
)

#: A line as texts and their styles.
Line: TypeAlias = Sequence[tuple[str, str]]

#: Between two columns.
_GAP: Final = "   "

#: A last column that is cut to fit a terminal keeps at least so many cells.
_LEAST_LAST: Final = 20


class _Console(RichConsole):
    """Tells of a reader who has gone, instead of ending the process."""

    def on_broken_pipe(self) -> None:
        """Called in place of the error."""
        raise ReaderGone


class Console:
    """Where a command writes.

    Args:
        common: `--json`, `--quiet` and `--no-color` of the command.
    """

    def __init__(self, common: Common) -> None:
        self.json = common.json
        self.quiet = common.quiet
        # None: rich looks at NO_COLOR, and whether this is a terminal.
        color = True if common.no_color else None
        self._out = _Console(theme=STYLES, no_color=color, highlight=False, soft_wrap=True)
        self._err = _Console(theme=STYLES, no_color=color, highlight=False, soft_wrap=True, stderr=True)

    # ── Results ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def result(self, text: str, style: str = "") -> None:
        """A line of the result."""
        self._out.print(Text(text, style=style))

    def record(self, value: Mapping[str, Any], *, now: bool = False) -> None:
        """A result for programs, in one line; *now*: not only when more have come, since somebody waits for each."""
        try:
            sys.stdout.write(json.dumps(value) + "\n")
            if now:
                sys.stdout.flush()
        except BrokenPipeError:
            raise ReaderGone from None

    def head(self, text: str) -> None:
        """What stands above a listing, or below it; left out with --quiet."""
        if not self.quiet:
            self.result(text, "head")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        right: Sequence[str] = (),
        styles: Sequence[str] = (),
    ) -> None:
        """Rows under their titles; on a terminal the last column is cut to its width.

        Args:
            columns: the titles; all empty: none are shown.
            rows: texts from anybody are made safe here.
            right: titles of columns that are aligned at their right end.
            styles: one a row, for its first cell.
        """
        _print_table(self._out, columns, rows, right, styles)

    # ── Everything else ───────────────────────────────────────────────────────────────────────────────────────────────

    def note(self, text: str, style: str = "") -> None:
        """Progress, for a person; left out with --quiet."""
        if not self.quiet:
            self._err.print(Text(text, style=style))

    def notes(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
    ) -> None:
        """A table beside the results; left out with --quiet."""
        if not self.quiet:
            _print_table(self._err, columns, rows, right, ())

    def warning(self, text: str) -> None:
        """Something that a person should know; also with --quiet."""
        self._err.print(Text(text, style="warn"))

    @property
    def can_ask(self) -> bool:
        """Whether somebody sits there to answer."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def agreed(self, question: str, *, yes: bool) -> int | None:
        """Ask before a change to many messages.

        Returns:
            None to go ahead, else the exit code to end with: refused on a terminal, or nobody there to ask.
        """
        if yes:
            return None
        if not self.can_ask:
            self.warning(
                f"{question}: there is no terminal to ask on, and nothing was done. Say --yes, or --dry-run"
            )
            return NEEDS_YES
        self._err.print(Text(f"{question}? [y/N] "), end="")
        if sys.stdin.readline().strip().lower() in {"y", "yes"}:
            return None
        self._err.print("nothing was done")
        return 0

    @contextlib.contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[ProgressBar]:
        """A bar on a terminal; nothing elsewhere, and nothing with --quiet."""
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TaskProgressColumn(show_speed=True),
            console=self._err,
            disable=self.quiet or not self._err.is_terminal,
            transient=True,
        ) as bars:
            yield ProgressBar(bars, what, total)

    @property
    def live_possible(self) -> bool:
        """Whether there is a terminal to draw on, and somebody who wants to see it."""
        return self._err.is_terminal and not self.quiet

    @contextlib.contextmanager
    def live(self) -> Iterator[Callable[[Sequence[Line]], None]]:
        """Draw lines in place of those before; what was drawn last stays. Yields what draws."""
        # Not soft-wrapped: a line that is too long for the terminal is cut, so that all stay in their places.
        screen = RichConsole(theme=STYLES, no_color=self._err.no_color, highlight=False, stderr=True)
        with Live(
            console=screen, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as drawing:

            def draw(lines: Sequence[Line]) -> None:
                whole = Text("\n", no_wrap=True, overflow="ellipsis").join(
                    Text.assemble(*line) for line in lines
                )
                whole.no_wrap, whole.overflow = True, "ellipsis"
                drawing.update(whole, refresh=True)

            yield draw


class ProgressBar:
    """How far a command has come."""

    def __init__(self, bars: Progress, what: str, total: int | None) -> None:
        self._bars = bars
        self._task = bars.add_task(what, total=total)

    def advance(self, count: int = 1) -> None:
        """One more, or so many."""
        self._bars.advance(self._task, count)


def _print_table(
    console: RichConsole,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[str],
    styles: Sequence[str],
) -> None:
    titled = any(columns)
    shown = [[safe(cell) for cell in row] for row in ([columns, *rows] if titled else rows)]
    if not shown:
        return
    *widths, last = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
    room = max(_LEAST_LAST, console.width - 1 - sum(width + len(_GAP) for width in widths))
    for number, row in enumerate(shown):
        is_title = titled and number == 0
        line = Text(" ", style="title" if is_title else "")
        for place, width in enumerate(widths):
            gap = " " * (width - cell_len(row[place]))
            cell = gap + row[place] if columns[place] in right else row[place] + gap
            styled = styles and place == 0 and not is_title
            line.append(cell, style=styles[number - titled] if styled else "")
            line.append(_GAP)
        cell = row[-1]
        if columns[-1] in right:
            cell = " " * (last - cell_len(cell)) + cell
        if console.is_terminal and cell_len(cell) > room:
            cell = set_cell_size(cell, room - 1) + "…"
        line.append(cell)
        console.print(line)
