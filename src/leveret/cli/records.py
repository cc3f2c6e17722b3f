"""Retries, dead letters, groups and reports as JSON for programs: full ids, times in UTC."""

from __future__ import annotations

import base64
import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from leveret.cli.words import iso

if TYPE_CHECKING:
    from leveret.core.dead_letter import DeadLetter, LetterGroup
    from leveret.core.retry_entry import RetryEntry
    from leveret.retry.asking import ActReport


def retry(entry: RetryEntry) -> dict[str, Any]:
    """A waiting message; its body where it was read."""
    return _told(entry, left_out={"wait", "body", "properties"}) | _content(entry)


def letter(dead: DeadLetter) -> dict[str, Any]:
    """A dead letter; its body where it was read."""
    told = _told(dead, left_out={"body", "properties", "replays"})
    told["fingerprint"] = dead.fingerprint
    told["replays"] = [
        {"at": iso(done.at), "replay_id": done.replay_id, "to": done.to, "outcome": done.outcome}
        for done in dead.replays
    ]
    return told | _content(dead)


def group(found: LetterGroup) -> dict[str, Any]:
    """Letters that died of one thing."""
    return _told(found, left_out=set())


def report(act: ActReport, verb: str, namespace: str) -> dict[str, Any]:
    """What became of an act."""
    return {
        "act": verb,
        "namespace": namespace,
        **_told(act, left_out={"notes"}),
        "notes": list(act.notes),
    }


def _told(value: Any, *, left_out: set[str]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for field in fields(value):
        if field.name in left_out:
            continue
        each = getattr(value, field.name)
        told[field.name] = (iso(each) if each else None) if field.name.endswith("_at") else each
    return told


def _content(row: RetryEntry | DeadLetter) -> dict[str, Any]:
    """Body and headers. A body that is no UTF-8 is told in base64, under another name."""
    if row.body is None:
        return {}
    from leveret.core.properties import Properties

    properties = Properties(row.properties)
    try:
        body: dict[str, Any] = {"body": row.body.decode()}
    except UnicodeDecodeError:
        body = {"body_b64": base64.b64encode(row.body).decode()}
    return body | {
        "content_type": properties.content_type,
        "correlation_id": properties.correlation_id,
        "headers": {str(name): _plain(value) for name, value in properties.headers.items()},
    }


def _plain(value: Any) -> Any:
    """A header's value as JSON has it; what JSON has not, as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return str(value)
