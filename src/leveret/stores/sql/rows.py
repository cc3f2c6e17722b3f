"""How entries and letters lie in the rows of every database with columns: which columns, and in which order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from leveret.core.dead_letter import DeadLetter, Replay, fingerprint
from leveret.core.retry_entry import RetryEntry
from leveret.stores import acts
from leveret.stores.intake import entry_body, letter_body, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.ports import Act

#: When a held row may be tried: never. It sorts behind everything else.
NEVER = float("inf")

#: All of a retry but its body, in the order of `retry_of`.
RETRY = (
    "namespace, key, failure, state, due_at, try_at, queue, state_reason, kind, exchange, routing_key,"
    " through_exchange, worker, type, message_id, retry_id, attempt, max_attempts, counted, reason, error, host,"
    " first_failed_at, failed_at, size, traceback, properties"
)
RETRY_WHOLE = f"{RETRY}, body"

#: All of a dead letter but its body, in the order of `letter_of`.
LETTER = (
    "namespace, id, state, died_at, ending, worker, queue, exchange, routing_key, type, message_id, retry_id, attempts,"
    " failure, reason, error, host, first_failed_at, first_letter, rpc, size, replays, traceback, properties"
)
LETTER_WHOLE = f"{LETTER}, body"
#: All of an act, in the order of `act_of`.
ACT = "id, namespace, verb, arguments, asked_at, report"

#: What `letter_row` gives: the whole letter, then what only the store needs.
LETTER_STORED = f"{LETTER_WHOLE}, fingerprint, replay_id"


def retry_row(entry: RetryEntry, now: float, exact: Callable[[str], Any]) -> tuple[Any, ...]:
    """An entry as the columns of `RETRY_WHOLE`, its wait counted from *now*.

    *exact*: how a text that names something lies in a column.
    """
    body = entry_body(entry)
    due_at = entry.due_at if entry.wait is None else now + entry.wait
    return (
        exact(entry.namespace),
        exact(entry.key),
        entry.failure,
        entry.state,
        due_at,
        NEVER if entry.state == "held" else due_at,
        exact(entry.queue),
        shown(entry.state_reason),
        entry.kind,
        exact(entry.exchange),
        exact(entry.routing_key),
        entry.through_exchange,
        shown(entry.worker),
        shown(entry.type),
        None if entry.message_id is None else exact(entry.message_id),
        exact(entry.retry_id),
        entry.attempt,
        entry.max_attempts,
        entry.counted,
        shown(entry.reason),
        shown(entry.error),
        shown(entry.host),
        entry.first_failed_at,
        entry.failed_at,
        len(body),
        shown(entry.traceback),
        entry.properties,
        body,
    )


def retry_of(row: Sequence[Any], now: float, text_of: Callable[[Any], str]) -> RetryEntry:
    """The entry of a row of `RETRY` or `RETRY_WHOLE`; *text_of* reads what *exact* wrote."""
    return RetryEntry(
        namespace=text_of(row[0]),
        key=text_of(row[1]),
        failure=row[2],
        state=row[3],
        due_at=row[4],
        due_in=row[4] - now,
        queue=text_of(row[6]),
        state_reason=row[7],
        kind=row[8],
        exchange=text_of(row[9]),
        routing_key=text_of(row[10]),
        through_exchange=bool(row[11]),
        worker=row[12],
        type=row[13],
        message_id=None if row[14] is None else text_of(row[14]),
        retry_id=text_of(row[15]),
        attempt=row[16],
        max_attempts=row[17],
        counted=bool(row[18]),
        reason=row[19],
        error=row[20],
        host=row[21],
        first_failed_at=row[22],
        failed_at=row[23],
        size=row[24],
        traceback=row[25],
        properties=row[26],
        body=row[27] if len(row) > 27 else None,
    )


def letter_row(letter: DeadLetter, exact: Callable[[str], Any]) -> tuple[Any, ...]:
    """A letter as the columns of `LETTER_STORED`."""
    body = letter_body(letter)
    return (
        exact(letter.namespace),
        exact(letter.id),
        letter.state,
        letter.died_at,
        letter.ending,
        shown(letter.worker),
        exact(letter.queue),
        exact(letter.exchange),
        exact(letter.routing_key),
        shown(letter.type),
        None if letter.message_id is None else exact(letter.message_id),
        exact(letter.retry_id),
        letter.attempts,
        letter.failure,
        shown(letter.reason),
        shown(letter.error),
        shown(letter.host),
        letter.first_failed_at,
        exact(letter.first_letter),
        letter.rpc,
        len(body),
        replays_text(letter.replays),
        shown(letter.traceback),
        letter.properties,
        body,
        # Of the texts as they are read again, so that both ways lead to the same group.
        fingerprint(shown(letter.worker), shown(letter.error), shown(letter.reason)),
        "",
    )


def letter_of(row: Sequence[Any], text_of: Callable[[Any], str]) -> DeadLetter:
    """The letter of a row of `LETTER` or `LETTER_WHOLE`."""
    return DeadLetter(
        namespace=text_of(row[0]),
        id=text_of(row[1]),
        state=row[2],
        died_at=row[3],
        ending=row[4],
        worker=row[5],
        queue=text_of(row[6]),
        exchange=text_of(row[7]),
        routing_key=text_of(row[8]),
        type=row[9],
        message_id=None if row[10] is None else text_of(row[10]),
        retry_id=text_of(row[11]),
        attempts=row[12],
        failure=row[13],
        reason=row[14],
        error=row[15],
        host=row[16],
        first_failed_at=row[17],
        first_letter=text_of(row[18]),
        rpc=bool(row[19]),
        size=row[20],
        replays=replays_of(row[21]),
        traceback=row[22],
        properties=row[23],
        body=row[24] if len(row) > 24 else None,
    )


def act_of(row: Sequence[Any], text_of: Callable[[Any], str]) -> Act:
    """The act of a row of `ACT`."""
    return acts.act_of(text_of(row[0]), text_of(row[1]), *row[2:])


def replays_text(replays: Sequence[Replay]) -> str:
    """Replays as JSON in plain ASCII."""
    return json.dumps(
        [
            {"at": each.at, "replay_id": each.replay_id, "to": each.to, "outcome": shown(each.outcome)}
            for each in replays
        ]
    )


def replays_of(text: str) -> tuple[Replay, ...]:
    """The replays that `replays_text` wrote."""
    return tuple(Replay(**each) for each in json.loads(text)) if text != "[]" else ()
