"""How entries and letters lie in SQLite's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.stores import rows
from leveret.stores.rows import (
    LETTER,
    LETTER_STORED,
    LETTER_WHOLE,
    NEVER,
    RETRY,
    RETRY_WHOLE,
    replays_of,
    replays_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.dead_letter import DeadLetter
    from leveret.core.retry_entry import RetryEntry

__all__ = [
    "AFTER_ALL", "KEEP_LETTER", "LETTER", "LETTER_STORED", "LETTER_WHOLE", "NEVER", "RETRY", "RETRY_WHOLE",
    "exact", "letter_of", "letter_row", "marks", "place_of", "replays_of", "replays_text", "retry_of", "retry_row",
    "text_of",
]  # fmt: skip

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


def retry_row(entry: RetryEntry, now: float) -> tuple[Any, ...]:
    """An entry as the columns of `RETRY_WHOLE`, its wait counted from *now*."""
    return rows.retry_row(entry, now, exact)


def retry_of(row: Sequence[Any], now: float) -> RetryEntry:
    """The entry of a row of `RETRY` or `RETRY_WHOLE`."""
    return rows.retry_of(row, now, text_of)


def letter_row(letter: DeadLetter) -> tuple[Any, ...]:
    """A letter as the columns of `LETTER_STORED`."""
    return rows.letter_row(letter, exact)


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """The letter of a row of `LETTER` or `LETTER_WHOLE`."""
    return rows.letter_of(row, text_of)
