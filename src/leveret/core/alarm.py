"""Alarms as values: what is told to people, under fixed codes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Severity = Literal["CRITICAL", "WARNING"]

PUBLISH_UNAVAILABLE: Final = "publish_unavailable_after_reconnect"
DLQ_PUBLISH_FAILED: Final = "dlq_publish_failed"
CONSUMER_LOST: Final = "consumer_lost"
CONNECTION_BLOCKED: Final = "connection_blocked"
RETRY_STORE_UNAVAILABLE: Final = "retry_store_unavailable"
RETRY_REPUBLISH_FAILED: Final = "retry_republish_failed"
RETRIES_EXHAUSTED: Final = "retries_exhausted"
POISON_MESSAGE: Final = "poison_message"
RETRIES_LATE: Final = "retries_late"
NO_CONSUMER: Final = "no_consumer"
DEAD_LETTERS_GROWING: Final = "dead_letters_growing"

WARNINGS: Final = frozenset({RETRIES_LATE, NO_CONSUMER, DEAD_LETTERS_GROWING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A condition that somebody should know of.

    `about` names what it concerns (a worker, a queue, a namespace): one alarm a code, thing and window.
    """

    code: str
    title: str
    about: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """CRITICAL, but for the codes that only warn."""
        return "WARNING" if self.code in WARNINGS else "CRITICAL"
