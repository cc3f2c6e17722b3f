"""Run: one run of a handler, or what became of a message without one, as a value for whoever watches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: done: acked · soft: comes back · dead: a dead letter · moved: flagged, to its queue's end or to the suspects ·
#: stale: its channel went while it ran; the broker has it back.
Outcome = Literal["done", "soft", "dead", "moved", "stale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What became of one delivery, once it is settled."""

    worker: str
    outcome: Outcome
    message_id: str | None
    type: str
    #: The number of this run, from 1.
    attempt: int
    max_attempts: int
    reason: str = ""
    #: soft: seconds until it comes back.
    delay: float = 0.0
    #: soft: whether it spent an attempt.
    counted: bool = True
    #: How long it was in hand, in seconds.
    seconds: float = 0.0
    #: What the handler raised, if anything.
    error: BaseException | None = None
    #: Whether that was foreseen by nobody: no Failure, no timeout, and not named in the policy's `retry_on`.
    unexpected: bool = False
