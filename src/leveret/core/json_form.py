"""The JSON form of envelopes: what other programs write and read, and what observers of leveret's own failures see."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from leveret.core import envelope
from leveret.core import headers as h
from leveret.core.envelope import Cause, Malformed
from leveret.core.errors import BadPayload
from leveret.core.message import Received, derived_id, retry_key
from leveret.core.policy import RetryAt
from leveret.core.properties import Properties, check_short
from leveret.core.retry_entry import RetryEntry
from leveret.core.seconds import seconds

SOFT_FAILURE: Final = "soft-failure"
HARD_FAILURE: Final = "hard-failure"
#: The type of whoever keeps these failures, and the last part of its queue's name.
RETRY_WORKER_TYPE: Final = "retry_worker"

#: Only the copies that leveret makes for observers bear it: their message waits in leveret's own store already.
RETRY_ID: Final = "retry_id"
#: What a failed message is published with where it goes back through an exchange.
REPLAY_KEY: Final = "_replay_routing_key"
#: Seconds to wait, and retries at most, where the envelope does not say.
USUAL_AFTER: Final = 30.0
USUAL_MAX: Final = 5
#: What differs between two failures of one and the same message. The key does: what went straight back to its queue
#: comes again with the queue's name.
_CHANGES = frozenset({"retry", "delivery_count", REPLAY_KEY})
#: Counts are informational here and lie in 64-bit columns; nobody retries more often than this.
_MOST_COUNTED = 2**31
_SCOPE = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")

#: A copy for observers is best effort; nobody watches messages of this many bytes by their JSON.
MOST_OBSERVED: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedMessage:
    """What an envelope of a soft failure says.

    Attributes:
        message: the failed message as it came; it goes back so.
        worker: who failed it; empty where the envelope does not say.
        after: seconds to wait, final.
        count: retries so far, this one included.
        max: retries at most.
        scope: whose it is, where it names a valid one.
        routing_key: what it goes back with where it goes through an exchange.
    """

    message: Mapping[str, Any]
    worker: str
    host: str
    job_id: str | None
    doc_id: str | None
    after: float
    count: int
    max: int
    reason: str
    scope: str | None
    routing_key: str

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that tell this message from others; every failure of one message has the same.

        Raises:
            Malformed: it holds what JSON cannot carry.
        """
        stays = {name: value for name, value in self.message.items() if name not in _CHANGES}
        try:
            text = json.dumps(stays, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise Malformed(f"the failed message cannot be written as JSON: {error}") from error
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def parse(message: Mapping[str, Any]) -> FailedMessage:
    """Read an envelope of a soft failure.

    Raises:
        Malformed: it is none, holds no message, or its `retry.after` cannot be meant.

    Example:
        >>> parse({"data_type": "soft-failure", "data": {"data_type": "page"}, "origin": {"type": "parser"}}).after
        30.0
    """
    if message.get("data_type") != SOFT_FAILURE:
        raise Malformed(f'data_type is {message.get("data_type")!r}: expected "{SOFT_FAILURE}"')
    failed = message.get("data")
    if not isinstance(failed, Mapping):
        raise Malformed(f"data is {type(failed).__name__}: expected the failed message, an object")
    retry = failed.get("retry")
    if retry is not None and not isinstance(retry, Mapping):
        raise Malformed(f"data.retry is {type(retry).__name__}: expected an object")
    retry = retry or {}
    after = retry.get("after")
    try:
        wait = USUAL_AFTER if after is None else seconds(after, "retry.after")
    except ValueError as error:
        raise Malformed(str(error)) from error
    origin = message.get("origin")
    origin = origin if isinstance(origin, Mapping) else {}
    inner = failed.get("data")
    inner = inner if isinstance(inner, Mapping) else {}
    job_id = _id(failed.get("job_id"))
    scope = failed.get("scope") if message.get("scope") is None else message.get("scope")
    return FailedMessage(
        message=failed,
        worker=_text(origin.get("type")),
        host=_text(origin.get("name")),
        job_id=_id(message.get("job_id")) if job_id is None else job_id,
        doc_id=_id(inner.get("doc_id")),
        after=wait,
        count=_count(retry.get("count"), 0),
        max=_count(retry.get("max"), USUAL_MAX),
        reason=_text(retry.get("reason")),
        scope=scope if isinstance(scope, str) and _SCOPE.fullmatch(scope) else None,
        routing_key=replay_key(failed),
    )


def replay_key(message: Mapping[str, Any]) -> str:
    """The routing key that a failed message goes back with: the one it came with, else its `data_type`."""
    key = message.get(REPLAY_KEY)
    return key if isinstance(key, str) else _text(message.get("data_type"))


def build_message_key(message: Mapping[str, Any]) -> str:
    """What names a message by job, document and part: the first part of a retry's key.

    Example:
        >>> build_message_key({"job_id": "j1", "data": {"doc_id": "d7", "part_idx": 2}}), build_message_key({})
        ('job:j1:doc:d7:part:2', 'job:-:doc:-:part:0')
    """
    inner = message.get("data")
    inner = inner if isinstance(inner, Mapping) else {}
    part = inner.get("part_idx")
    job, doc = (_id(value) or "-" for value in (message.get("job_id"), inner.get("doc_id")))
    return f"job:{job}:doc:{doc}:part:{0 if part is None else part}"


def read_retry(
    body: bytes, *, namespace: str, exchange: str, now: float, new_id: Callable[[], str]
) -> RetryEntry:
    """What waits, from an envelope in the JSON form as it was received.

    It goes back to the queue `<exchange>.<origin.type>`, and where there is none through *exchange* (see
    `may_go_through_exchange`). Each envelope is an entry of its own: failures that are not counted look alike, and none
    of them may take another one's place. The copies of one message can be told by their message id.

    Raises:
        Malformed: it cannot be read, or is no soft failure.
    """
    try:
        outer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the body is no JSON: {error}") from error
    if not isinstance(outer, dict):
        raise Malformed(f"the body is a JSON {type(outer).__name__}: expected an object")
    found = parse(outer)
    queue = short(f"{exchange}.{found.worker}") if found.worker else ""
    routing_key = short(found.routing_key)
    retry_id = new_id()
    data_type = found.message.get("data_type")
    message_id = derived_id("json", queue, found.digest)
    goes_out = written(found.message)
    return RetryEntry(
        namespace=namespace,
        key=retry_key(queue or f"{exchange}/{routing_key}", retry_id),
        queue=queue,
        exchange=exchange,
        routing_key=routing_key,
        through_exchange=not queue,
        worker=envelope.cut(found.worker, 255, keep_tail=False),
        type=data_type if isinstance(data_type, str) else routing_key,
        message_id=message_id,
        retry_id=retry_id,
        attempt=found.count,
        max_attempts=found.max + 1,
        failure=found.count,
        reason=envelope.cut(found.reason, envelope.REASON_BYTES, keep_tail=False),
        host=envelope.cut(found.host, 200, keep_tail=False),
        wait=found.after,
        first_failed_at=now,
        failed_at=now,
        size=len(goes_out),
        body=goes_out,
        properties=properties_of(found.message, message_id=message_id).raw,
    )


def may_go_through_exchange(entry: RetryEntry) -> bool:
    """Whether *entry* goes through its exchange where its queue is missing: what came in the JSON form, nothing else.

    Leveret's own retries bear their retry id, and wait for the queue that failed them.
    """
    return (
        entry.kind == "soft-failure"
        and not entry.through_exchange
        and h.RETRY_ID.encode() not in entry.properties
    )


def properties_of(message: Mapping[str, Any], *, message_id: str | None = None) -> Properties:
    """The AMQP properties of a message in the JSON form: persistent JSON, its `priority` and type where they fit."""
    priority = message.get("priority")
    data_type = message.get("data_type")
    job_id = _id(message.get("job_id"))
    return Properties.build(
        content_type="application/json",
        priority=priority if _is_whole(priority) and 0 <= priority <= 255 else None,
        correlation_id=None if job_id is None else short(job_id) or None,
        message_id=message_id,
        type=short(data_type) or None if isinstance(data_type, str) else None,
    )


def written(message: Mapping[str, Any]) -> bytes:
    """A message as JSON of ASCII: big integers and half surrogate pairs pass as they came.

    Raises:
        Malformed: it holds what JSON cannot carry.
    """
    try:
        return json.dumps(message, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise Malformed(f"the message cannot be written as JSON: {error}") from error


def short(text: str) -> str:
    """*text* where AMQP can carry it as a name or key, else empty."""
    try:
        return check_short(text, "name")
    except BadPayload:
        return ""


def soft_failure(message: Received, cause: Cause, plan: RetryAt, max_attempts: int, retry_id: str) -> bytes:
    """What observers see of a soft failure. `retry.count` numbers the retry to come, `retry.max` counts retries."""
    failed = _failed(message, cause)
    failed["retry"] = {
        "count": plan.attempt - 1 if plan.counted else message.attempt - 1,
        "after": plan.delay,
        "reason": cause.reason,
        "max": max(0, max_attempts - 1),
    }
    return _outer(SOFT_FAILURE, failed, cause, {RETRY_ID: retry_id})


def hard_failure(message: Received, cause: Cause) -> bytes:
    """What observers see of a hard failure."""
    return _outer(HARD_FAILURE, _failed(message, cause), cause, {"error": cause.reason})


def _failed(message: Received, cause: Cause) -> dict[str, Any]:
    return {
        "data_type": message.type,
        "data": _payload(message.body),
        "job_id": message.properties.correlation_id or message.properties.message_id,
        "origin": {"type": cause.worker, "name": envelope.HOST},
        "_replay_routing_key": message.routing_key,
    }


def _outer(data_type: str, failed: dict[str, Any], cause: Cause, more: dict[str, Any]) -> bytes:
    outer = {
        "data_type": data_type,
        "data": failed,
        "job_id": failed["job_id"],
        "origin": {"type": cause.worker, "name": envelope.HOST},
        **more,
    }
    return written(outer)


def _payload(body: bytes) -> Any:
    """The payload where it is a JSON object, else its bytes; nothing is lost by looking."""
    if len(body) <= MOST_OBSERVED:
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    return {"body_b64": base64.b64encode(body[:MOST_OBSERVED]).decode()}


def _id(value: object) -> str | None:
    """An id as text: numbers are ids too; None where it is missing, empty, or no id."""
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value) or None
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object, otherwise: int) -> int:
    # Strangers may write anything; a count that cannot be meant is as good as none.
    return value if _is_whole(value) and 0 <= value <= _MOST_COUNTED else otherwise


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
