"""What every store asks of what it is given, whatever it stands on: a body, dates, and texts that can be shown."""

from __future__ import annotations

import hashlib
import math
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.errors import StoreRefused

if TYPE_CHECKING:
    from leveret.core.dead_letter import DeadLetter
    from leveret.core.retry_entry import RetryEntry

#: Ids of old bodies are made under this name, so that the same old body of a letter gets the same id.
_OLD_BODIES = uuid.UUID("6c657665-7265-5400-8000-6f6c64626f64")


def shown(text: str) -> str:
    r"""*text* as every database can hold and every terminal can show it: NUL and lone surrogates become escapes.

    For texts that people read (reason, traceback). Bodies and ids stay as they are.

    Example:
        >>> shown("a" + chr(0) + "b" + chr(0xD800))
        'a\\x00b\\ud800'
    """
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def entry_body(entry: RetryEntry) -> bytes:
    """The body of an entry that is to be stored.

    Raises:
        StoreRefused: it has none (it came from a listing), or its due time is no time.
    """
    if entry.body is None:
        raise StoreRefused(
            f"retry {entry.key!r} was given without its body, as listings show it: read it with entry() first"
        )
    if not math.isfinite(entry.due_at if entry.wait is None else entry.wait):
        raise StoreRefused(
            f"retry {entry.key!r} is due at {entry.due_at!r} (wait {entry.wait!r}): expected finite seconds"
        )
    return entry.body


def letter_body(letter: DeadLetter) -> bytes:
    """The body of a letter that is to be stored.

    Raises:
        StoreRefused: it has none (it came from a listing), or it died at no time.
    """
    if letter.body is None:
        raise StoreRefused(
            f"dead letter {letter.id!r} was given without its body, as listings show it: read it with letter() first"
        )
    if not math.isfinite(letter.died_at):
        raise StoreRefused(f"dead letter {letter.id!r} died at {letter.died_at!r}: expected finite seconds")
    return letter.body


def due_time(now: float, *, due_at: float | None, wait: float | None) -> float:
    """When a row is due that is rescheduled to a time, or to so many seconds from *now*.

    Raises:
        ValueError: neither was given, or both, or no finite number.
    """
    if (due_at is None) == (wait is None):
        raise ValueError(f"due_at={due_at!r}, wait={wait!r}: give exactly one of them")
    time = due_at if due_at is not None else now + (wait or 0.0)
    if not math.isfinite(time):
        raise ValueError(f"due_at={due_at!r}, wait={wait!r}: expected a finite number of seconds")
    return time


def with_new_body(letter: DeadLetter, body: bytes) -> tuple[DeadLetter, DeadLetter]:
    """A dead letter under a new body, and the discarded one that keeps its old body and names it.

    Raises:
        StoreRefused: it is not dead: somebody replays it, or it was put aside.
    """
    if letter.state != "dead":
        raise StoreRefused(
            f"dead letter {letter.id!r} is {letter.state}: only one that lies dead can be edited; restore it first"
        )
    old = letter.body or b""
    name = shown(f"{letter.namespace}/{letter.id}/{hashlib.sha256(old).hexdigest()}")
    old_id = str(uuid.uuid5(_OLD_BODIES, name))
    put_aside = replace(letter, id=old_id, first_letter=letter.id, state="discarded", replays=())
    return replace(letter, body=body, size=len(body)), put_aside
