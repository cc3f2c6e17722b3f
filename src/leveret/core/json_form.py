"""The JSON form of envelopes: what other programs write and read, and what observers of leveret's own failures see."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from leveret.core import envelope
from leveret.core.envelope import Cause
from leveret.core.message import Received
from leveret.core.policy import RetryAt

SOFT_FAILURE: Final = "soft-failure"
HARD_FAILURE: Final = "hard-failure"

#: A copy for observers is best effort; nobody watches messages of this many bytes by their JSON.
MOST_OBSERVED: Final = 4 * 1024 * 1024


def soft_failure(message: Received, cause: Cause, plan: RetryAt, max_attempts: int, retry_id: str) -> bytes:
    """What observers see of a soft failure. `retry.count` numbers the retry to come, `retry.max` counts retries."""
    failed = _failed(message, cause)
    failed["retry"] = {
        "count": plan.attempt - 1 if plan.counted else message.attempt - 1,
        "after": plan.delay,
        "reason": cause.reason,
        "max": max(0, max_attempts - 1),
    }
    return _outer(SOFT_FAILURE, failed, cause, {"retry_id": retry_id})


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
    return json.dumps(outer, separators=(",", ":")).encode("ascii", "backslashreplace")


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
