"""RetryEntry: a message that waits for its next try, or for its first one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, NamedTuple

RetryKind = Literal["soft-failure", "delayed"]
#: waiting: goes when due · blocked: its queue is gone, tried again with backoff · held: by hand, or as its body is not
#: whole, until released.
RetryState = Literal["waiting", "blocked", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryEntry:
    """A message that waits, with all that is needed to publish it when it is due.

    `body` and `properties` are exactly what goes out. Listings leave `body` None: it may be large.
    """

    namespace: str
    #: Where it goes and its retry id: one row a key, so no message overwrites another.
    key: str
    kind: RetryKind = "soft-failure"
    #: The queue that failed it, addressed by name; empty where it goes to an exchange.
    queue: str = ""
    #: For a delayed first publish (and `replay="exchange"`): where it goes. For a retry: where it once came from.
    exchange: str = ""
    routing_key: str = ""
    #: True: publish to exchange and routing key; False: straight to `queue`.
    through_exchange: bool = False
    worker: str = ""
    type: str = ""
    message_id: str | None = None
    retry_id: str = ""
    #: Runs that have been counted so far; 0 where none was.
    attempt: int = 0
    max_attempts: int = 0
    #: Counts every failure; a put with a higher one replaces, an equal or lower one changes nothing.
    failure: int = 0
    counted: bool = True
    reason: str = ""
    error: str = ""
    traceback: str = ""
    host: str = ""
    #: Seconds to wait, counted from when the store writes it. None: `due_at` is given.
    wait: float | None = None
    #: Epoch seconds by the store's clock; set by the store where `wait` is given.
    due_at: float = 0.0
    #: Seconds until it is due, at the moment it was read; negative: overdue.
    due_in: float = 0.0
    state: RetryState = "waiting"
    #: Why it is blocked or held.
    state_reason: str = ""
    first_failed_at: float = 0.0
    failed_at: float = 0.0
    size: int = 0
    body: bytes | None = None
    #: The raw property section of the content header that goes out.
    properties: bytes = b""


class Lane(IntEnum):
    """How a row came to be due. Where its queue has no room for all, none waits behind those of a later lane (R2)."""

    #: It was written while we looked on.
    WRITTEN = 0
    #: It was read from the store before its time.
    LOADED = 1
    #: It was due before we looked.
    OVERDUE = 2


class Due(NamedTuple):
    """A row that is due, or will be soon: enough to schedule it, without its body."""

    key: str
    failure: int
    #: Seconds from when it was read until it may be published; negative: overdue.
    due_in: float
    #: The queue it goes to, empty for an exchange.
    queue: str
    #: Bytes of its body, so that a batch can be bounded by them.
    size: int = 0
    lane: Lane = Lane.LOADED


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which retries or dead letters are meant. All that is given must hold; nothing given means all."""

    namespace: str | None = None
    #: Full ids, or any ending of six characters or more.
    ids: Collection[str] = field(default=())
    worker: str | None = None
    #: Text within the reason, in any case.
    reason: str | None = None
    type: str | None = None
    #: Text within the body, for bodies that are UTF-8 text.
    text: str | None = None
    #: Epoch seconds: failed (retries) or died (dead letters) between these.
    since: float | None = None
    until: float | None = None
    attempts: int | None = None
    #: Dead letters only: True for RPC requests, False for all others.
    rpc: bool | None = None

    @property
    def names_something(self) -> bool:
        """Whether anything but the namespace narrows it; acts never take nothing."""
        return bool(self.ids) or any(
            value is not None
            for value in (
                self.worker,
                self.reason,
                self.type,
                self.text,
                self.since,
                self.until,
                self.attempts,
            )
        )
