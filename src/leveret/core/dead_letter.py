"""DeadLetter: a message that ended badly, kept with its reason; and what groups such letters together."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal

#: Why a message is dead.
Ending = Literal[
    "hard failure",
    "retries exhausted",
    "undecodable",
    "worker died",
    "unroutable result",
    "unroutable",
    "cancelled",
    "malformed",
    "rejected",
    "expired",
    "foreign",
]
#: dead: lies there · claimed: a replay has taken it · replayed: was published again · discarded: can be restored.
LetterState = Literal["dead", "claimed", "replayed", "discarded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One replay of a dead letter."""

    #: Epoch seconds.
    at: float
    #: Which replay act did it.
    replay_id: str
    #: Where it was published: a queue's name, or exchange/routing key.
    to: str
    #: published · `maybe twice` after a kill between publish and mark · failed, with its words.
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that ended badly: its bytes, where it came from, and why it is dead. Listings leave `body` None."""

    namespace: str
    id: str
    ending: Ending = "hard failure"
    worker: str = ""
    #: The queue that failed it; empty where it never was in one.
    queue: str = ""
    #: Where it was first published.
    exchange: str = ""
    routing_key: str = ""
    type: str = ""
    message_id: str | None = None
    retry_id: str = ""
    #: Runs that were counted; 0 where the handler never saw it.
    attempts: int = 0
    failure: int = 0
    reason: str = ""
    #: Exception type, such as `KeyError`; empty where there was none.
    error: str = ""
    traceback: str = ""
    host: str = ""
    first_failed_at: float = 0.0
    died_at: float = 0.0
    state: LetterState = "dead"
    replays: tuple[Replay, ...] = field(default=())
    #: The letter that this message was replayed from, where it died again.
    first_letter: str = ""
    size: int = 0
    body: bytes | None = None
    #: The raw property section of its content header, without what an earlier envelope had added.
    properties: bytes = b""
    #: An RPC request: left out of group replays.
    rpc: bool = False

    @property
    def fingerprint(self) -> str:
        """What letters of one kind share: worker, exception type, and the reason with its numbers and ids taken out."""
        return fingerprint(self.worker, self.error, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroup:
    """Dead letters that died of one thing."""

    fingerprint: str
    worker: str
    error: str
    #: The reason of the newest one.
    reason: str
    count: int
    first_died_at: float
    last_died_at: float


#: What differs between two deaths of one kind: quoted text, ids, hex strings, numbers.
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*\b|\d+(?:\.\d+)?")


def fingerprint(worker: str, error: str, reason: str) -> str:
    """Twelve hex digits that are the same for deaths of one kind.

    Example:
        >>> fingerprint("charge", "ValueError", "order 17 has no url") == fingerprint(
        ...     "charge", "ValueError", "order 4 has no url"
        ... )
        True
    """
    plain = _VARIABLE.sub("#", reason)
    return hashlib.sha256("\0".join((worker, error, plain)).encode("utf-8", "replace")).hexdigest()[:12]
