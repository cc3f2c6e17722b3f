"""pymongo, and the one door through which its errors come out as leveret's: what happened, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from leveret.core.errors import LeveretError, MissingExtra, StoreRefused
from leveret.core.redaction import redact
from leveret.stores.errors import no_memory, unavailable

try:
    import pymongo
    from bson.datetime_ms import DatetimeMS
    from bson.errors import BSONError
    from pymongo import AsyncMongoClient, DeleteOne, ReadPreference
    from pymongo.asynchronous.client_session import AsyncClientSession
    from pymongo.asynchronous.collection import AsyncCollection
    from pymongo.asynchronous.database import AsyncDatabase
    from pymongo.errors import (
        BulkWriteError,
        ConfigurationError,
        ConnectionFailure,
        DuplicateKeyError,
        OperationFailure,
        PyMongoError,
    )
    from pymongo.write_concern import WriteConcern
except ImportError as error:
    raise MissingExtra(
        "MongoDB needs pymongo, which is not installed: pip install 'leveret[mongodb]'"
    ) from error

__all__ = [
    "AsyncMongoClient",
    "BulkWriteError",
    "Client",
    "Collection",
    "ConfigurationError",
    "Database",
    "DatetimeMS",
    "DeleteOne",
    "DuplicateKeyError",
    "OperationFailure",
    "PyMongoError",
    "Session",
    "pymongo",
    "translated",
]

Document: TypeAlias = dict[str, Any]
Client: TypeAlias = AsyncMongoClient[Document]
Database: TypeAlias = AsyncDatabase[Document]
Collection: TypeAlias = AsyncCollection[Document]
Session: TypeAlias = AsyncClientSession

#: What is acknowledged is on the disks of a majority: no new primary forgets it.
DURABLE = WriteConcern(w="majority", j=True)
#: What is read comes from whoever takes the writes, also where a URL says otherwise: a replica may be behind.
PRIMARY = ReadPreference.PRIMARY

#: What a server answers to a user whom it does not know, or who may not do this: (code, what, remedy).
_NOT_LET_IN = {
    8000: "it does not know the user",
    18: "the user or the password is wrong",
    13: "the user may not do this",
}
#: A document that is too large, or a value that a document cannot hold, by the server's codes.
_OF_THE_DATA = {2, 9, 22, 10334, 17280, 17419, 17420}
#: A few words of an error are enough: pymongo appends a description of every server.
_LONGEST = 300


T = TypeVar("T")


async def to_its_end(call: Coroutine[Any, Any, T], calls: set[asyncio.Task[Any]]) -> T:
    """What *call* gives; it runs to its end also where its caller is cancelled, and is among *calls* until then.

    Up to Python 3.11, a cancellation that reaches pymongo just as a wait of its own ends leaves its lock taken, and no
    call of that client returns any more.
    """
    task = asyncio.create_task(call)
    calls.add(task)

    def over(task: asyncio.Task[T]) -> None:
        calls.discard(task)
        # Whoever asked may be gone; an error that nobody fetches would be told as a fault of ours.
        if not task.cancelled():
            task.exception()

    task.add_done_callback(over)
    return await asyncio.shield(task)


@contextmanager
def cancelled_in_time() -> Iterator[None]:
    """Whoever is cancelled within the block is told so at its end, at the latest.

    pymongo sends through `asyncio.wait_for`, which up to Python 3.11 forgets a cancellation that comes as it ends.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


@contextmanager
def errors(display: str) -> Iterator[None]:
    """Whatever comes out of the block is an error of leveret's; *display* says of which store."""
    with cancelled_in_time():
        try:
            yield
        except Exception as error:
            ours = translated(error, display)
            if ours is error:
                raise
            raise ours from error


def translated(error: Exception, display: str) -> Exception:
    """*error* as leveret's: StoreUnavailable for the server, StoreRefused for the data, anything else as it is."""
    if isinstance(error, LeveretError):
        return error
    if isinstance(error, MemoryError):
        return no_memory(display)
    words = _words(error)
    if isinstance(error, (BSONError, OverflowError, UnicodeError)) or "too large" in words:
        return StoreRefused(f"MongoDB cannot hold this: {words}")
    if not isinstance(error, PyMongoError):
        return error
    code = error.code if isinstance(error, OperationFailure) else None
    if isinstance(error, BulkWriteError):
        codes = {each.get("code") for each in (error.details or {}).get("writeErrors", ())}
        code = next(iter(codes)) if len(codes) == 1 else code
    if code in _OF_THE_DATA:
        return StoreRefused(f"MongoDB cannot hold this: {words}")
    if code in _NOT_LET_IN:
        return unavailable(
            display,
            f"{_NOT_LET_IN[code]} ({words})",
            "see the user, the password and authSource in the store's URL, and the user's roles",
        )
    if isinstance(error, ConfigurationError):
        return unavailable(display, words, "see the options in the store's URL")
    what = "nobody answers" if isinstance(error, ConnectionFailure) else "MongoDB failed"
    return unavailable(
        display,
        f"{what} ({words})",
        "see whether the server runs and is reached from here; leveret goes on by itself",
    )


def _words(error: Exception) -> str:
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0]
    text = text.partition(" (configured timeouts")[0] or type(error).__name__
    return redact_within(text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …")


def redact_within(text: str) -> str:
    """*text* with every URL in it shown as URLs may be shown."""
    return " ".join(redact(word) if "mongodb" in word and "://" in word else word for word in text.split(" "))
