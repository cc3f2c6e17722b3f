from __future__ import annotations

import io

import pytest
from rich.console import Console as RichConsole

from leveret.cli.console import STYLES, _print_table


def printed(columns, rows, *, width=200, terminal=False, right=()):
    out = io.StringIO()
    console = RichConsole(
        file=out,
        width=width,
        force_terminal=terminal,
        color_system=None,
        theme=STYLES,
        soft_wrap=True,
        highlight=False,
    )
    _print_table(console, columns, rows, right, ())
    return out.getvalue().splitlines()


def test_columns_are_as_wide_as_what_stands_in_them():
    assert printed(
        ["a", "number", "why"], [["long cell", "7", "x"], ["b", "12", "y"]], right=("number",)
    ) == [
        " a           number   why",
        " long cell        7   x",
        " b               12   y",
    ]


def test_signs_of_double_width_keep_the_columns_straight():
    lines = printed(["a", "b"], [["漢字", "x"], ["abcd", "y"]])
    assert lines[1:] == [" 漢字   x", " abcd   y"]


def test_a_terminal_gets_the_last_column_cut_and_a_pipe_gets_it_whole():
    row = [["charge", "w" * 100]]
    assert printed(["worker", "reason"], row, width=60, terminal=True)[1] == " charge   " + "w" * 49 + "…"
    assert printed(["worker", "reason"], row, width=60)[1].endswith("w" * 100)


@pytest.mark.parametrize("cell", ["[bold]x[/bold]", "[/]", ":smile:"])
def test_what_looks_like_markup_is_text(cell):
    assert printed(["a"], [[cell]])[1] == f" {cell}"


def test_no_rows_and_no_titles_are_nothing():
    assert printed(["", ""], []) == []
