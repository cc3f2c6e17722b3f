"""How texts lie in SQLite's rows, and what it says in words of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from leveret.stores.sql.filters import Dialect
from leveret.stores.sql.rows import LETTER_STORED

#: Sorts behind every text that `exact` gives.
AFTER_ALL = b"\xff"


def marks(columns: str) -> str:
    """A question mark for each of these columns."""
    return ", ".join("?" for _ in columns.split(","))


#: Stores a letter; one that is there already is left as it is.
KEEP_LETTER = f"INSERT OR IGNORE INTO dead_letter ({LETTER_STORED}) VALUES ({marks(LETTER_STORED)})"  # noqa: S608


def exact(text: str) -> str | bytes:
    """A text that names something, as it lies in a column: bytes where it holds what SQLite's texts cannot.

    A text with a NUL or a lone surrogate (an id that somebody else minted) must come back as it was.
    """
    if "\0" not in text:
        if text.isascii():
            return text
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    return text.encode("utf-8", "surrogatepass")


def place_of(column: str | bytes) -> tuple[bool, str | bytes]:
    """What sorts as SQLite sorts what `exact` wrote: bytes behind texts."""
    return isinstance(column, bytes), column


def text_of(column: str | bytes) -> str:
    """The text that `exact` wrote."""
    return column if isinstance(column, str) else column.decode("utf-8", "surrogatepass")


def _endings(text: str) -> list[tuple[str | bytes, int]]:
    """How *text* may lie at the end of a column: as text, and as bytes where what stands before it is no text."""
    written = exact(text)
    raw = text.encode("utf-8", "surrogatepass")
    return [(written, len(written)), *([] if written == raw else [(raw, len(raw))])]


def _json(given: Sequence[tuple[str | bytes, int]]) -> list[str]:
    """A list in JSON, which carries no bytes: of these the hexadecimal digits, and 1 behind them."""
    return [
        json.dumps(
            [
                (name.hex(), length, 1) if isinstance(name, bytes) else (name, length, 0)
                for name, length in given
            ]
        )
    ]


DIALECT: Final = Dialect(
    mark="?",
    exact=exact,
    endings=_endings,
    given=(
        "SELECT CASE json_extract(value, '$[2]') WHEN 1 THEN unhexed(json_extract(value, '$[0]'))"
        " ELSE json_extract(value, '$[0]') END, json_extract(value, '$[1]') FROM json_each(?)"
    ),
    given_values=_json,
    ending="substr({text}, -{length})",
    row="rowid",
    namespace="+namespace",
    in_reason="instr(casefold(reason), ?) > 0",
    in_body="instr(body, ?) > 0",
)
