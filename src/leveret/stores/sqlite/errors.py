"""The one door through which SQLite's errors come out as leveret's: what happened, to which file, and what to do."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from leveret.core.errors import LeveretError, StoreError, StoreRefused
from leveret.stores.errors import no_memory, unavailable

if TYPE_CHECKING:
    from pathlib import Path

#: Primary result codes that speak of the data, not of the file: other data would pass.
_OF_THE_DATA = {
    sqlite3.SQLITE_TOOBIG: "it is too large for one row of SQLite (1 000 000 000 bytes)",
    sqlite3.SQLITE_CONSTRAINT: "a value that must be there is missing or is no number",
    sqlite3.SQLITE_MISMATCH: "a value is of the wrong type",
}

#: Primary result codes that speak of the file: what happened, and what to do.
_OF_THE_FILE = {
    sqlite3.SQLITE_BUSY: (
        "somebody else has kept it locked for {seconds:g} s",
        "see who holds it open (fuser or lsof tells): a backup, a database browser, a stopped process; end that",
    ),
    sqlite3.SQLITE_FULL: ("its disk is full", "make room; leveret goes on by itself"),
    sqlite3.SQLITE_READONLY: (
        "it cannot be written",
        "give this user the right to write the file and its folder, or see whether the disk is mounted read-only",
    ),
    sqlite3.SQLITE_IOERR: (
        "its disk failed to read or write ({text})",
        "look at the disk, its quota and the system's log; leveret goes on by itself once it works",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "its content is damaged ({text})",
        "stop, keep a copy, and recover it with `sqlite3 FILE .recover`, or restore a backup",
    ),
    sqlite3.SQLITE_NOTADB: (
        "it is not a SQLite database",
        "name another file, or move this one out of the way",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "it cannot be opened",
        "see whether its folder exists and this user may read and write both",
    ),
    sqlite3.SQLITE_NOMEM: ("there is not enough memory", "free some; leveret goes on by itself"),
}
_OF_THE_FILE[sqlite3.SQLITE_LOCKED] = _OF_THE_FILE[sqlite3.SQLITE_BUSY]
_OF_THE_FILE[sqlite3.SQLITE_PERM] = _OF_THE_FILE[sqlite3.SQLITE_READONLY]
_OF_THE_FILE[sqlite3.SQLITE_PROTOCOL] = _OF_THE_FILE[sqlite3.SQLITE_BUSY]


def translated(error: Exception, path: Path, *, waited: float) -> Exception:
    """*error* as leveret's: StoreUnavailable for the file, StoreRefused for the data, anything else as it is.

    *waited*: how many seconds SQLite waits for a locked file.
    """
    if isinstance(error, LeveretError):
        return error
    if isinstance(error, sqlite3.Error):
        return _of_sqlite(error, path, waited)
    if isinstance(error, OSError):
        return unavailable(
            path, f"it cannot be looked at ({error.strerror})", "look at its disk and its folder's rights"
        )
    if isinstance(error, MemoryError):
        return no_memory(path)
    if isinstance(error, (OverflowError, UnicodeError)):
        return StoreRefused(f"SQLite cannot hold this: {error or type(error).__name__}")
    return error


def _of_sqlite(error: sqlite3.Error, path: Path, waited: float) -> StoreError:
    # An extended code tells more of the same: its low byte is the primary one. Errors of the module itself have none.
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if isinstance(error, (sqlite3.DataError, sqlite3.InterfaceError)) and primary is None:
        primary = (
            sqlite3.SQLITE_TOOBIG
            if "too big" in str(error) or "longer" in str(error)
            else sqlite3.SQLITE_MISMATCH
        )
    if primary in _OF_THE_DATA:
        return StoreRefused(f"SQLite cannot hold this: {_OF_THE_DATA[primary]} ({error})")
    what, remedy = _OF_THE_FILE.get(
        primary if primary is not None else -1,
        ("SQLite failed ({text})", "see what the words in brackets say; leveret tries again by itself"),
    )
    return unavailable(path, what.format(seconds=waited, text=error), remedy)
