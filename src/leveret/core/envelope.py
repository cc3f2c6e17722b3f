"""Leveret's own envelopes and dead letters: the original body and property bytes, plus headers that say what happened.

Written by the side that failed, read by the retry worker and the keeper. The JSON form of other programs is in
`leveret.core.json_form`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast, get_args

from leveret.core import headers as h
from leveret.core.dead_letter import DeadLetter, Ending
from leveret.core.message import (
    Received,
    count_header,
    id_header,
    moment_header,
    number_header,
    retry_key,
    text_header,
    unwrap,
    wrap,
)
from leveret.core.policy import RetryAt, RetryPolicy
from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.core.seconds import LONGEST

T = TypeVar("T")

#: What a reason and a traceback may take of the header budget; the tail of a traceback is what tells.
REASON_BYTES = 2000
TRACEBACK_BYTES = 4000
#: Bytes of a header frame that message id, type, tag and its own fields may take at most.
BESIDE_BYTES = 700

#: Told with every failure, so that a dead letter says which machine to look at.
HOST = socket.gethostname()[:100]

ENDINGS = frozenset(get_args(Ending))


class Malformed(ValueError):
    """An envelope or stored entry that cannot be what it says; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a run failed, in words that travel with the message."""

    reason: str
    worker: str
    #: Epoch seconds.
    at: float
    #: Exception type; empty where there was none.
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What a transport's connection demands of a copy: its frame size, and the user that it may name."""

    frame_max: int = 131072
    user: str | None = None


def soft_failure(
    message: Received,
    plan: RetryAt,
    cause: Cause,
    *,
    retry_id: str,
    policy: str,
    through_exchange: bool,
    where: Where,
) -> tuple[bytes, Properties]:
    """The envelope of a message that will be tried again: body and properties to be published to the retry queue."""
    # What tells an envelope from a message in the JSON form stands in front, where it is found at once.
    added: dict[str, Any] = {
        h.ENVELOPE: h.SOFT_FAILURE,
        **_of_message(message, cause),
        h.RETRY_ID: retry_id,
        h.ATTEMPT: plan.attempt,
        h.FAILURE: message.failure + 1,
        h.RETRY_AFTER: plan.delay,
        h.COUNTED: plan.counted,
        h.POLICY: policy,
        h.ORIGIN_EXCHANGE: message.exchange,
        h.ORIGIN_KEY: message.routing_key,
    }
    if plan.attempts_allowed is not None:
        added[h.ALLOWED] = plan.attempts_allowed
    if through_exchange:
        added[h.THROUGH_EXCHANGE] = True
    return _copy(message, added, where)


def delayed(
    body: bytes,
    properties: Properties,
    *,
    exchange: str,
    routing_key: str,
    retry_id: str,
    at: float,
    wait: float | None,
    due_at: float | None,
    where: Where,
) -> tuple[bytes, Properties]:
    """The envelope of a message whose first publish waits: so many seconds, or until an epoch time."""
    added: dict[str, Any] = {
        h.ENVELOPE: h.DELAYED,
        h.RETRY_ID: retry_id,
        h.ORIGIN_EXCHANGE: exchange,
        h.ORIGIN_KEY: routing_key,
        h.FAILED_AT: at,
    }
    if due_at is not None:
        added[h.DUE_AT] = due_at
    else:
        added[h.RETRY_AFTER] = wait or 0.0
    return wrap(body, properties, added, frame_max=where.frame_max, user=where.user)


def restarted(
    body: bytes, properties: Properties, *, starts: int, exchange: str, routing_key: str, where: Where
) -> tuple[bytes, Properties]:
    """The same message once more, with the number of its starts and where it was first published (P12)."""
    added = {h.STARTS: starts, h.ORIGIN_EXCHANGE: exchange, h.ORIGIN_KEY: routing_key}
    if properties.header(h.WRAPPED) is not None:
        return body, properties.edit(drop=_left_off_a_retry, add=added)
    return wrap(body, properties, added, frame_max=where.frame_max, user=where.user)


def dead_letter(
    message: Received,
    cause: Cause,
    ending: Ending,
    *,
    letter_id: str,
    retry_id: str,
    attempts: int,
    where: Where,
    rpc: bool = False,
) -> tuple[bytes, Properties]:
    """A message that is dead: body and properties to be published to the dead-letter queue.

    *rpc*: it is a request, whose caller has given up by the time that anybody reads of it.
    """
    added = _of_message(message, cause)
    if rpc:
        added[h.RPC] = True
    added |= {
        h.ENVELOPE: h.DEAD_LETTER,
        h.LETTER_ID: letter_id,
        h.ENDING: ending,
        h.RETRY_ID: retry_id,
        h.ATTEMPT: attempts,
        h.FAILURE: message.failure + (1 if attempts else 0),
        h.ORIGIN_EXCHANGE: message.exchange,
        h.ORIGIN_KEY: message.routing_key,
    }
    return _copy(message, added, where)


def unreadable(
    body: bytes,
    properties: Properties,
    *,
    queue: str,
    exchange: str,
    routing_key: str,
    reason: str,
    at: float,
    letter_id: str,
    where: Where,
) -> tuple[bytes, Properties]:
    """What the retry worker cannot use, as a message that is dead: as it was before anybody wrapped it."""
    original, own, _ = unwrap(body, properties)
    message = Received(
        queue=queue, exchange=exchange, routing_key=routing_key, body=original, properties=without_ours(own)
    )
    cause = Cause(reason=reason, worker="retry worker", at=at, error="Malformed")
    return dead_letter(message, cause, "malformed", letter_id=letter_id, retry_id="", attempts=0, where=where)


def read_retry(body: bytes, properties: Properties, *, namespace: str) -> RetryEntry:
    """What waits, from an envelope as it was received.

    Raises:
        Malformed: it is no envelope of a soft failure or a delayed publish, or lacks what one must have.
    """
    found = properties.headers
    kind = text_header(found, h.ENVELOPE)
    if kind not in {h.SOFT_FAILURE, h.DELAYED}:
        raise Malformed(f"{h.ENVELOPE} is {kind!r}: expected {h.SOFT_FAILURE} or {h.DELAYED}")
    retry_id = _required(text_header(found, h.RETRY_ID), h.RETRY_ID)
    wait = number_header(found, h.RETRY_AFTER)
    due_at = moment_header(found, h.DUE_AT)
    if wait is None and due_at is None:
        raise Malformed(f"neither {h.RETRY_AFTER} nor {h.DUE_AT} is a number that can be meant")
    if wait is not None and not 0 <= wait <= LONGEST:
        raise Malformed(f"{h.RETRY_AFTER} is {wait!r}: expected 0 to {LONGEST:.0f} seconds")
    exchange = text_header(found, h.ORIGIN_EXCHANGE) or ""
    routing_key = text_header(found, h.ORIGIN_KEY) or ""
    failed_at = moment_header(found, h.FAILED_AT) or 0.0
    goes_out = properties.edit(drop=_left_off_a_retry)
    common: dict[str, Any] = {
        "namespace": namespace,
        "exchange": exchange,
        "routing_key": routing_key,
        "type": properties.type or routing_key,
        "message_id": properties.message_id,
        "retry_id": retry_id,
        "wait": None if due_at is not None else wait,
        "due_at": due_at or 0.0,
        "failed_at": failed_at,
        "size": len(body),
        "body": body,
        "properties": goes_out.raw,
    }
    if kind == h.DELAYED:
        if not exchange and not routing_key:
            raise Malformed(f"a delayed publish needs {h.ORIGIN_EXCHANGE} or {h.ORIGIN_KEY}")
        # A first publish leaves no trace of having waited: it bears no retry id and no origin of its own.
        first = goes_out.edit(drop=(h.RETRY_ID, h.ORIGIN_EXCHANGE, h.ORIGIN_KEY))
        return RetryEntry(
            **(common | {"properties": first.raw}),
            key=retry_key(f"{exchange}/{routing_key}", retry_id),
            kind="delayed",
            through_exchange=True,
        )
    queue = _required(text_header(found, h.QUEUE), h.QUEUE)
    attempt = _required(count_header(found, h.ATTEMPT, least=1), h.ATTEMPT)
    return RetryEntry(
        **common,
        key=retry_key(queue, retry_id),
        queue=queue,
        through_exchange=found.get(h.THROUGH_EXCHANGE) is True,
        worker=text_header(found, h.WORKER) or "",
        attempt=attempt - 1,
        max_attempts=count_header(found, h.ALLOWED, least=1) or _attempts_of(text_header(found, h.POLICY)),
        failure=_required(count_header(found, h.FAILURE), h.FAILURE),
        counted=found.get(h.COUNTED) is not False,
        reason=text_header(found, h.REASON) or "",
        error=text_header(found, h.ERROR) or "",
        traceback=text_header(found, h.TRACEBACK) or "",
        host=text_header(found, h.HOST) or "",
        first_failed_at=moment_header(found, h.FIRST_FAILED_AT) or failed_at,
    )


def read_letter(
    body: bytes, properties: Properties, *, namespace: str, now: float, new_id: Callable[[], str]
) -> DeadLetter:
    """A dead letter of leveret's own form, as it was received.

    Raises:
        Malformed: it is none, or its ending is unknown.
    """
    body, original, found = unwrap(body, properties)
    if text_header(found, h.ENVELOPE) != h.DEAD_LETTER:
        raise Malformed(f"{h.ENVELOPE} is not {h.DEAD_LETTER}")
    ending = text_header(found, h.ENDING)
    if ending not in ENDINGS:
        raise Malformed(f"{h.ENDING} is {ending!r}")
    routing_key = text_header(found, h.ORIGIN_KEY) or ""
    died_at = moment_header(found, h.FAILED_AT) or now
    return DeadLetter(
        namespace=namespace,
        id=id_header(found, h.LETTER_ID) or new_id(),
        ending=cast("Ending", ending),
        worker=text_header(found, h.WORKER) or "",
        queue=text_header(found, h.QUEUE) or "",
        exchange=text_header(found, h.ORIGIN_EXCHANGE) or "",
        routing_key=routing_key,
        type=original.type or routing_key,
        message_id=original.message_id,
        retry_id=text_header(found, h.RETRY_ID) or "",
        attempts=count_header(found, h.ATTEMPT) or 0,
        failure=count_header(found, h.FAILURE) or 0,
        reason=text_header(found, h.REASON) or "",
        error=text_header(found, h.ERROR) or "",
        traceback=text_header(found, h.TRACEBACK) or "",
        host=text_header(found, h.HOST) or "",
        first_failed_at=moment_header(found, h.FIRST_FAILED_AT) or died_at,
        died_at=died_at,
        first_letter=text_header(found, h.FIRST_LETTER) or "",
        size=len(body),
        body=body,
        properties=without_ours(original).raw,
    )


def letter_of_entry(
    entry: RetryEntry, *, ending: Ending, reason: str, letter_id: str, now: float
) -> DeadLetter:
    """A message that waited and is now dead: cancelled, or refused where it should have gone."""
    body, original, found = unwrap(entry.body or b"", Properties(entry.properties))
    return DeadLetter(
        namespace=entry.namespace,
        id=letter_id,
        ending=ending,
        worker=entry.worker,
        queue=entry.queue,
        exchange=entry.exchange,
        routing_key=entry.routing_key,
        type=entry.type,
        message_id=entry.message_id,
        retry_id=entry.retry_id,
        attempts=entry.attempt,
        failure=entry.failure,
        reason=reason,
        error=entry.error,
        traceback=entry.traceback,
        host=entry.host,
        first_failed_at=entry.first_failed_at or entry.failed_at,
        died_at=now,
        first_letter=text_header(found, h.FIRST_LETTER) or "",
        size=len(body),
        body=body,
        properties=without_ours(original).raw,
    )


def replayed(letter: DeadLetter, *, reset_attempts: bool, where: Where) -> tuple[bytes, Properties]:
    """What a replay of a dead letter publishes: the message as it was, and which letter it comes from."""
    added: dict[str, Any] = {
        h.FIRST_LETTER: letter.id,
        h.REPLAYS: len(letter.replays) + 1,
        # No replay resets the failure number: a late envelope of an earlier failure must not replace a newer one.
        h.FAILURE: letter.failure,
    }
    if letter.retry_id:
        added[h.RETRY_ID] = letter.retry_id
    if letter.rpc:
        added[h.RPC] = True
    if letter.queue:
        added[h.ORIGIN_EXCHANGE] = letter.exchange
        added[h.ORIGIN_KEY] = letter.routing_key
    if not reset_attempts:
        added[h.ATTEMPT] = letter.attempts + 1
        added[h.FIRST_FAILED_AT] = letter.first_failed_at
    return wrap(
        letter.body or b"", Properties(letter.properties), added, frame_max=where.frame_max, user=where.user
    )


def without_ours(properties: Properties) -> Properties:
    """A message's properties without what envelopes added; what was set aside for handlers stays."""
    return properties.edit(drop=lambda name: h.is_ours(name) and name not in h.FOR_HANDLERS)


def _copy(message: Received, added: Mapping[str, Any], where: Where) -> tuple[bytes, Properties]:
    ours = bounded(added, where.frame_max)
    return wrap(message.body, message.properties, ours, frame_max=where.frame_max, user=where.user)


def bounded(added: Mapping[str, Any], frame_max: int) -> dict[str, Any]:
    """Headers of ours cut to their budget of 8 KiB: the traceback's head goes first, then the reason's tail.

    Where a frame holds less, the budget is what it leaves beside ids, type and the like: they stand alone in front of
    what is wrapped.
    """
    result = dict(added)
    budget = min(h.BUDGET, frame_max - BESIDE_BYTES)
    for name, limit, keep_tail in ((h.TRACEBACK, TRACEBACK_BYTES, True), (h.REASON, REASON_BYTES, False)):
        if name in result:
            result[name] = cut(result[name], limit, keep_tail=keep_tail)
    for name, keep_tail in ((h.TRACEBACK, True), (h.REASON, False)):
        over = sum(len(key) + 16 + _size(value) for key, value in result.items()) - budget
        if over > 0 and name in result:
            result[name] = cut(result[name], max(0, _size(result[name]) - over), keep_tail=keep_tail)
    return result


def cut(text: str, limit: int, *, keep_tail: bool) -> str:
    """*text* as at most *limit* bytes of UTF-8, with an ellipsis where something went; lone surrogates are escaped."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    room = max(0, limit - 3)
    if keep_tail:
        return "…" + data[len(data) - room :].decode("utf-8", "ignore") if room else ""
    return data[:room].decode("utf-8", "ignore") + "…" if room else ""


def _of_message(message: Received, cause: Cause) -> dict[str, Any]:
    added: dict[str, Any] = {
        h.QUEUE: message.queue,
        h.WORKER: cause.worker,
        h.FAILED_AT: cause.at,
        h.FIRST_FAILED_AT: message.first_failed_at if message.first_failed_at is not None else cause.at,
        h.REASON: cause.reason,
        h.HOST: HOST,
    }
    if cause.error:
        added[h.ERROR] = cut(cause.error, 200, keep_tail=False)
    if cause.traceback:
        added[h.TRACEBACK] = cause.traceback
    # Said once more, because of a wrapped message nothing else stands outside.
    if message.first_letter is not None:
        added |= {h.FIRST_LETTER: message.first_letter, h.REPLAYS: message.replays}
    return added


# The same few names stand on every envelope.
@lru_cache(maxsize=1024)
def _left_off_a_retry(name: str) -> bool:
    # A wrapped message stays wrapped on its way back: whoever reads it unwraps.
    return h.stays_behind(name) and name != h.WRAPPED


def _required(value: T | None, name: str) -> T:
    if value is None:
        raise Malformed(f"{name} is missing, or nothing that leveret writes")
    return value


def _size(value: object) -> int:
    return len(value.encode("utf-8", "backslashreplace")) if isinstance(value, str) else 8


# The envelopes of one worker all bear the same numbers, and reading them takes as long as all the rest.
@lru_cache(maxsize=256)
def _attempts_of(policy: str | None) -> int:
    known = RetryPolicy.from_header(policy) if policy else None
    return known.max_attempts if known is not None else 0
