"""How entries and letters lie in documents.

Times that the server judges are dates, in milliseconds; times that somebody told are numbers, exactly as told. Texts
that name something are kept so that they come back as they were, and sort as they do.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from leveret.core.dead_letter import DeadLetter, Replay, fingerprint
from leveret.core.errors import StoreRefused
from leveret.core.retry_entry import RetryEntry
from leveret.stores.endings import SHORTEST_ENDING
from leveret.stores.intake import entry_body, letter_body, shown
from leveret.stores.mongodb.driver import DatetimeMS

if TYPE_CHECKING:
    from leveret.stores.mongodb.driver import Document

#: When a held row may be tried: at the end of the year 9999, the last date that every program can show.
NEVER = 253_402_300_799_999

_ESCAPED = re.compile(r"\\(\\|0|/|u[0-9a-f]{4})")


def exact(text: str) -> str:
    r"""A text that names something, as it lies in a document: NUL, lone surrogates and backslashes become escapes.

    Example:
        >>> exact("a" + chr(0) + "b" + chr(0xD800)), text_of("a\\0b\\ud800") == "a" + chr(0) + "b" + chr(0xD800)
        ('a\\0b\\ud800', True)
    """
    if text.isascii() and "\0" not in text and "\\" not in text:
        return text
    text = text.replace("\\", "\\\\").replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()


def text_of(field: str) -> str:
    """The text that `exact` wrote."""
    return _ESCAPED.sub(_plain, field) if "\\" in field else field


def _plain(match: re.Match[str]) -> str:
    code = match[1]
    return {"\\": "\\", "0": "\0", "/": "/"}.get(code) or chr(int(code[1:], 16))


def place(namespace: str, name: str) -> str:
    """The `_id` of what bears that name in that namespace."""
    return f"{exact(namespace).replace('/', chr(92) + '/')}/{exact(name)}"


def ending(id: str) -> str:
    """What of an id is indexed: its last characters, by which people name it."""
    return exact(id[-SHORTEST_ENDING:])


def moment(seconds: float) -> int:
    """Epoch milliseconds of a time, never before it.

    Raises:
        StoreRefused: it lies beyond the dates that can be written.
    """
    # The inner rounding takes off what a float of today's seconds cannot hold anyway.
    time = math.ceil(round(seconds * 1000, 3))
    if not -NEVER < time < NEVER:
        raise StoreRefused(
            f"{seconds!r} s since 1970 is no date before the year 10000: MongoDB cannot hold it"
        )
    return time


def date(time: int) -> DatetimeMS:
    """What lies in a document for epoch milliseconds."""
    return DatetimeMS(time)


def time_of(field: Any) -> int:
    """The epoch milliseconds of a date, whatever class the client reads dates as."""
    if isinstance(field, DatetimeMS):
        return int(field)
    return int(DatetimeMS(field))


def entry_document(entry: RetryEntry, now: int) -> Document:
    """An entry as it lies in its document, its wait counted from *now*, its body apart."""
    body = entry_body(entry)
    due_at = moment(entry.due_at) if entry.wait is None else now + moment(entry.wait)
    if due_at >= NEVER:
        moment(due_at / 1000)
    return {
        "_id": place(entry.namespace, entry.key),
        "namespace": exact(entry.namespace),
        "key": exact(entry.key),
        "failure": entry.failure,
        "state": entry.state,
        "state_reason": shown(entry.state_reason),
        "due_at": date(due_at),
        "try_at": date(NEVER if entry.state == "held" else due_at),
        "kind": entry.kind,
        "queue": exact(entry.queue),
        "exchange": exact(entry.exchange),
        "routing_key": exact(entry.routing_key),
        "through_exchange": entry.through_exchange,
        "worker": shown(entry.worker),
        "type": shown(entry.type),
        **_ids(entry.retry_id, entry.message_id),
        "retry_id": exact(entry.retry_id),
        "attempt": entry.attempt,
        "max_attempts": entry.max_attempts,
        "counted": entry.counted,
        **_words(entry),
        "first_failed_at": entry.first_failed_at,
        "failed_at": entry.failed_at,
        "size": len(body),
        "properties": entry.properties,
        # Under which term of the lease it was last taken (R4).
        "term": 0,
    }


def entry_of(doc: Document, now: int, body: bytes | None = None) -> RetryEntry:
    """The entry of a document."""
    due_at = time_of(doc["due_at"])
    return RetryEntry(
        namespace=text_of(doc["namespace"]),
        key=text_of(doc["key"]),
        failure=doc["failure"],
        state=doc["state"],
        state_reason=doc["state_reason"],
        due_at=due_at / 1000,
        due_in=(due_at - now) / 1000,
        kind=doc["kind"],
        queue=text_of(doc["queue"]),
        exchange=text_of(doc["exchange"]),
        routing_key=text_of(doc["routing_key"]),
        through_exchange=doc["through_exchange"],
        worker=doc["worker"],
        type=doc["type"],
        message_id=None if doc["message_id"] is None else text_of(doc["message_id"]),
        retry_id=text_of(doc["retry_id"]),
        attempt=doc["attempt"],
        max_attempts=doc["max_attempts"],
        counted=doc["counted"],
        reason=doc["reason"],
        error=doc["error"],
        traceback=doc["traceback"],
        host=doc["host"],
        first_failed_at=doc["first_failed_at"],
        failed_at=doc["failed_at"],
        size=doc["size"],
        properties=doc["properties"],
        body=body,
    )


def letter_document(letter: DeadLetter) -> Document:
    """A letter as it lies in its document, its body apart."""
    body = letter_body(letter)
    return {
        "_id": place(letter.namespace, letter.id),
        "namespace": exact(letter.namespace),
        "id": exact(letter.id),
        "state": letter.state,
        # The replay that has claimed it, empty where none has; and in which round.
        "replay_id": "",
        "claim": "",
        "died_at": letter.died_at,
        "ending": letter.ending,
        "worker": shown(letter.worker),
        "queue": exact(letter.queue),
        "exchange": exact(letter.exchange),
        "routing_key": exact(letter.routing_key),
        "type": shown(letter.type),
        **_ids(letter.id, letter.message_id),
        "retry_id": exact(letter.retry_id),
        "attempts": letter.attempts,
        "failure": letter.failure,
        **_words(letter),
        "first_failed_at": letter.first_failed_at,
        "first_letter": exact(letter.first_letter),
        "rpc": letter.rpc,
        "size": len(body),
        "replays": [replay_document(each) for each in letter.replays],
        "edits": 0,
        "properties": letter.properties,
        # Of the texts as they are read again, so that both ways lead to the same group.
        "fingerprint": fingerprint(shown(letter.worker), shown(letter.error), shown(letter.reason)),
    }


def letter_of(doc: Document, body: bytes | None = None) -> DeadLetter:
    """The letter of a document."""
    return DeadLetter(
        namespace=text_of(doc["namespace"]),
        id=text_of(doc["id"]),
        state=doc["state"],
        died_at=doc["died_at"],
        ending=doc["ending"],
        worker=doc["worker"],
        queue=text_of(doc["queue"]),
        exchange=text_of(doc["exchange"]),
        routing_key=text_of(doc["routing_key"]),
        type=doc["type"],
        message_id=None if doc["message_id"] is None else text_of(doc["message_id"]),
        retry_id=text_of(doc["retry_id"]),
        attempts=doc["attempts"],
        failure=doc["failure"],
        reason=doc["reason"],
        error=doc["error"],
        traceback=doc["traceback"],
        host=doc["host"],
        first_failed_at=doc["first_failed_at"],
        first_letter=text_of(doc["first_letter"]),
        rpc=doc["rpc"],
        size=doc["size"],
        replays=tuple(
            Replay(
                at=each["at"],
                replay_id=text_of(each["replay_id"]),
                to=text_of(each["to"]),
                outcome=each["outcome"],
            )
            for each in doc["replays"]
        ),
        properties=doc["properties"],
        body=body,
    )


def replay_document(replay: Replay) -> Document:
    """A replay within its letter's document."""
    return {
        "at": replay.at,
        "replay_id": exact(replay.replay_id),
        "to": exact(replay.to),
        "outcome": shown(replay.outcome),
    }


def _ids(own: str, message_id: str | None) -> Document:
    return {
        "message_id": None if message_id is None else exact(message_id),
        "id_ending": ending(own),
        "message_ending": None if message_id is None else ending(message_id),
    }


def _words(row: RetryEntry | DeadLetter) -> Document:
    reason = shown(row.reason)
    return {
        "reason": reason,
        # What is searched, in any case: no database folds case as Python does.
        "reason_folded": reason.casefold(),
        "error": shown(row.error),
        "traceback": shown(row.traceback),
        "host": shown(row.host),
    }
