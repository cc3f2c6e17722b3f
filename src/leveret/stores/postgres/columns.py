"""How entries and letters lie in PostgreSQL's rows, and how many of them go there in one statement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from leveret.core.errors import StoreRefused
from leveret.stores.sql.filters import Dialect
from leveret.stores.sql.rows import LETTER_STORED, RETRY_WHOLE

#: Sorts behind every text that names something.
AFTER_ALL: Final = "\U0010ffff" * 4

#: Rows and bytes of one statement at most; a larger body goes alone. A message to the server has a limit of 1 GiB.
_ROWS, _BYTES = 1000, 32 * 1024 * 1024
#: The longest body that fits into one field with room for the rest of its message.
LONGEST: Final = 1_000_000_000

_UNFIT = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(?:\\|u([0-9a-f]{4}))")


def exact(text: str) -> str:
    r"""A text that names something, as it lies in a column: what PostgreSQL's texts cannot hold is escaped.

    A text with a NUL or a lone surrogate (an id that somebody else minted) must come back as it was.

    Example:
        >>> exact("a" + chr(0) + "b"), exact("a/b")
        ('a\\u0000b', 'a/b')
    """
    if _UNFIT.search(text) is None:
        return text
    return _UNFIT.sub(lambda found: "\\\\" if found[0] == "\\" else f"\\u{ord(found[0]):04x}", text)


def text_of(column: str) -> str:
    """The text that `exact` wrote."""
    if "\\" not in column:
        return column
    return _ESCAPE.sub(lambda found: "\\" if found[1] is None else chr(int(found[1], 16)), column)


def _endings(text: str) -> list[tuple[str, int]]:
    """How *text* may lie at the end of a column: in one way, as each character is escaped for itself."""
    written = exact(text)
    return [(written, len(written))]


def arrays(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into columns."""
    return [list(column) for column in zip(*rows, strict=True)]


DIALECT: Final = Dialect(
    mark="%s",
    exact=exact,
    endings=_endings,
    given="SELECT * FROM unnest(%s::text[], %s::int[])",
    given_values=arrays,
    ending='"right"({text}, {length})',
    row="namespace, {key}",
    namespace="namespace || ''",
    in_reason="strpos(reason_folded, %s) > 0",
    in_body="position(%b::bytea in body) > 0",
)


class Columns(NamedTuple):
    """The columns of rows that go to the server as arrays, one parameter a column."""

    #: As in INSERT.
    names: str
    #: A parameter for each of them, for unnest(). In binary: text would have to be quoted, and doubles a body.
    arrays: str


#: The columns that are no text.
_TYPES: Final = {
    **dict.fromkeys(("failure", "attempt", "attempts", "max_attempts", "size"), "bigint"),
    **dict.fromkeys(("due_at", "try_at", "first_failed_at", "failed_at", "died_at"), "float8"),
    **dict.fromkeys(("through_exchange", "counted", "rpc"), "bool"),
    **dict.fromkeys(("properties", "body"), "bytea"),
}


def _columns(names: str) -> Columns:
    arrays = [f"%b::{_TYPES.get(name, 'text')}[]" for name in map(str.strip, names.split(","))]
    return Columns(names, ", ".join(arrays))


RETRY_COLUMNS: Final = _columns(f"{RETRY_WHOLE}, reason_folded")
LETTER_COLUMNS: Final = _columns(f"{LETTER_STORED}, reason_folded")

#: Where these stand in a row of `RETRY_WHOLE` and of `LETTER_STORED`.
RETRY_REASON, RETRY_BODY = 19, 27
LETTER_REASON, LETTER_BODY = 14, 24


def folded(row: tuple[Any, ...], reason: int) -> tuple[Any, ...]:
    """A row with its reason once more behind it, for searches in any case."""
    return (*row, row[reason].casefold())


def portions(rows: Iterable[tuple[Any, ...]], body: int) -> Iterator[list[tuple[Any, ...]]]:
    """Rows in their order, as many at a time as one statement carries; *body*: which of their columns may be large.

    Raises:
        StoreRefused: one is too long for PostgreSQL.
    """
    portion: list[tuple[Any, ...]] = []
    size = 0
    for row in rows:
        length = len(row[body])
        if length > LONGEST:
            raise StoreRefused(
                f"PostgreSQL cannot hold this: a body of {length} bytes, and its longest is {LONGEST}"
            )
        if portion and (len(portion) == _ROWS or size + length > _BYTES):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += length
    if portion:
        yield portion
