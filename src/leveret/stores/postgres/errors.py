"""The one door through which PostgreSQL's errors come out as leveret's: what happened, where, and what to do."""

from __future__ import annotations

from typing import Final

import psycopg

from leveret.core.errors import LeveretError, StoreError, StoreRefused
from leveret.stores.errors import no_memory, unavailable

#: Classes of SQLSTATE that speak of the data: other data would pass. 21: cardinality, 22: data exception, 23: integrity
#: constraint, 54: a limit of PostgreSQL's, such as the length of what an index can hold.
_OF_THE_DATA: Final = {"21", "22", "23", "54"}

#: What to do about the rest, by SQLSTATE or its class.
_REMEDIES: Final = {
    "25006": "the server takes no writes: it is a standby, or default_transaction_read_only is on. Name the primary",
    "28": "see the user, the password and pg_hba.conf",
    "3D000": "create the database first: createdb",
    "3F000": "the schema was dropped while it was in use; restore it, or restart to begin with a new one",
    "42501": "grant this user what it needs: docs/choosing-a-store.md has the statements",
    "42883": "the schema was dropped while it was in use; restore it, or restart to begin with a new one",
    "42P01": "tables were dropped while they were in use; restore them, or restart to begin with new ones",
    "53100": "its disk is full: make room; leveret goes on by itself",
    "53300": "raise max_connections, or let other programs keep fewer; leveret goes on by itself",
    "57014": "it took longer than leveret waits: see what the server is busy with",
    "57P": "nothing: leveret connects again by itself",
}
#: A connect that fails tells no SQLSTATE, only words.
_NO_CONNECTION: Final = (
    "see that the server runs there, lets this user in, and has connections left (max_connections); leveret tries "
    "again by itself"
)
_ANY_REMEDY: Final = "see what the words in brackets say; leveret tries again by itself"


def translated(error: Exception, display: str) -> Exception:
    """*error* as leveret's: StoreUnavailable for the server, StoreRefused for the data, anything else as it is."""
    if isinstance(error, LeveretError):
        return error
    if isinstance(error, psycopg.Error):
        return _of_postgres(error, display)
    if isinstance(error, OSError):
        return unavailable(display, f"it cannot be reached ({error})", _ANY_REMEDY)
    if isinstance(error, MemoryError):
        return no_memory(display)
    if isinstance(error, (OverflowError, UnicodeError)):
        return StoreRefused(f"PostgreSQL cannot hold this: {error or type(error).__name__}")
    return error


def _of_postgres(error: psycopg.Error, display: str) -> StoreError:
    code = error.sqlstate or ""
    if is_of_the_data(error):
        return StoreRefused(f"PostgreSQL cannot hold this: {words_of(error)}")
    otherwise = _ANY_REMEDY if code else _NO_CONNECTION
    remedy = next((_REMEDIES[key] for key in (code, code[:3], code[:2]) if key in _REMEDIES), otherwise)
    return unavailable(
        display, f"PostgreSQL says: {words_of(error)}" + (f" ({code})" if code else ""), remedy
    )


def is_of_the_data(error: psycopg.Error) -> bool:
    """Whether it speaks of the data, so that other data would pass."""
    code = error.sqlstate
    return code[:2] in _OF_THE_DATA if code else isinstance(error, psycopg.DataError)


def words_of(error: psycopg.Error) -> str:
    """The server's own sentence. Its details are left out: they may quote what lies in a row."""
    words = error.diag.message_primary or str(error) or type(error).__name__
    return " ".join(words.split())
