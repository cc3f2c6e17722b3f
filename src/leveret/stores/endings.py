"""Short ids: a message is named by an ending of its id, which has to be long enough, and unique."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leveret.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = TypeVar("Row")

#: An ending shorter than this names too much by chance.
SHORTEST_ENDING = 6


def names(id: str, *, own: str, message_id: str | None) -> bool:
    """Whether *id* names a row with these ids: in full, or by an ending of six characters or more."""
    if len(id) < SHORTEST_ENDING:
        return id in (own, message_id)
    return own.endswith(id) or (message_id is not None and message_id.endswith(id))


def the_one(kind: str, id: str, found: Sequence[tuple[Row, str, str]]) -> Row | None:
    """Of the rows that *id* names, the one that is meant: with that very id of its own, or the only one.

    Args:
        kind: what they are called, for people.
        id: what was asked for.
        found: each row, its own id, and what else tells it from the others.

    Raises:
        NotFound: it names several.
    """
    in_full = [row for row, own, _ in found if own == id]
    rows = in_full if len(in_full) == 1 else [row for row, _, _ in found]
    if len(rows) > 1:
        words = sorted(f"{own} ({other})" for _, own, other in found)
        more = f" and {len(words) - 10} more" if len(words) > 10 else ""
        raise NotFound(
            f"{id!r} names {len(words)} {kind}: {', '.join(words[:10])}{more}. Give more of the id"
        )
    return rows[0] if rows else None
