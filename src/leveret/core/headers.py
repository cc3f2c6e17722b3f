"""Every header name that leveret writes, and every one that belongs to the broker. No string header stands elsewhere.

Ours begin with `leveret-`, never with `x-`: RabbitMQ keeps that prefix for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: All of ours begin so; a user's header may not.
PREFIX: Final = "leveret-"

#: What an envelope is: `soft-failure`, `delayed` or `dead-letter`.
ENVELOPE: Final = "leveret-envelope"
SOFT_FAILURE: Final = "soft-failure"
DELAYED: Final = "delayed"
DEAD_LETTER: Final = "dead-letter"

#: Unique per publish; a return is matched by it alone. Taken off before a handler sees the message.
TAG: Final = "leveret-tag"
#: How often this message is known to have been started without being settled (suspects).
STARTS: Final = "leveret-starts"
#: How many bytes of original properties stand in front of the body.
WRAPPED: Final = "leveret-wrapped"

# What travels with a retried message.
#: The number of the next run, from 1.
ATTEMPT: Final = "leveret-attempt"
RETRY_ID: Final = "leveret-retry-id"
#: Counts every failure, counted or not; a higher one replaces what waits.
FAILURE: Final = "leveret-failure"
FIRST_FAILED_AT: Final = "leveret-first-failed-at"
#: The numbers of the retry policy that governed the first failure, as compact JSON.
POLICY: Final = "leveret-policy"
#: How many runs a failure allowed this message for itself (`retry_max`).
ALLOWED: Final = "leveret-attempts-allowed"
ORIGIN_EXCHANGE: Final = "leveret-origin-exchange"
ORIGIN_KEY: Final = "leveret-origin-key"
#: The dead letter that this message was replayed from.
FIRST_LETTER: Final = "leveret-first-letter"
#: How often it was replayed.
REPLAYS: Final = "leveret-replays"

# What an envelope or dead letter adds.
QUEUE: Final = "leveret-queue"
WORKER: Final = "leveret-worker"
RETRY_AFTER: Final = "leveret-retry-after"
DUE_AT: Final = "leveret-due-at"
COUNTED: Final = "leveret-counted"
#: A retry that goes through the exchange to all who are bound, not straight to the queue that failed it.
THROUGH_EXCHANGE: Final = "leveret-through-exchange"
FAILED_AT: Final = "leveret-failed-at"
REASON: Final = "leveret-reason"
ERROR: Final = "leveret-error"
TRACEBACK: Final = "leveret-traceback"
HOST: Final = "leveret-host"
LETTER_ID: Final = "leveret-letter-id"
ENDING: Final = "leveret-ending"

#: Four that would misroute a copy or be refused by the broker travel under these names, for handlers to see.
SET_ASIDE: Final = {"CC": "leveret-cc", "BCC": "leveret-bcc"}
USER_ID: Final = "leveret-user-id"
REPLY_TO: Final = "leveret-reply-to"

# Requests and replies.
#: How long the caller of an RPC request waits, in milliseconds; it marks a message as such a request.
TIMEOUT_MS: Final = "leveret-timeout-ms"
#: What else than a plain reply the caller understands: `error`.
ACCEPTS: Final = "leveret-accepts"
ACCEPTS_ERROR: Final = "error"
#: On a reply: who gave it, host/pid. A reply that tells of an error bears `leveret-error` as well.
ANSWERED_BY: Final = "leveret-answered-by"
#: On a dead letter, and on what is replayed from it: it was a request, whatever its own headers say.
RPC: Final = "leveret-rpc"

#: Ours that a handler may see; the others are leveret's bookkeeping.
FOR_HANDLERS: Final = frozenset({*SET_ASIDE.values(), USER_ID, REPLY_TO})
#: Ours that go with a message on its way back to a queue; the others stay with the envelope.
TRAVELS: Final = frozenset({
    ATTEMPT, RETRY_ID, FAILURE, FIRST_FAILED_AT, POLICY, ALLOWED, ORIGIN_EXCHANGE, ORIGIN_KEY, FIRST_LETTER, REPLAYS,
    TIMEOUT_MS, RPC, *FOR_HANDLERS,
})  # fmt: skip

#: RabbitMQ's own, by beginning. A copy that carries them is taken for a dead-letter loop and dropped (3.13).
BROKER_OWNED: Final = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-")

#: Leveret's headers take at most so many bytes on a message; traceback and reason are cut first.
BUDGET: Final = 8192


def is_broker_owned(name: str) -> bool:
    """Whether RabbitMQ puts this header on, and no copy may carry it.

    Example:
        >>> is_broker_owned("x-death"), is_broker_owned("x-deathly")
        (True, False)
    """
    return name in {"x-death", "x-delivery-count"} or name.startswith(BROKER_OWNED[1:3] + BROKER_OWNED[4:])


def is_ours(name: str) -> bool:
    """Whether leveret wrote this header."""
    return name.startswith(PREFIX)


def for_handlers(found: Mapping[str, Any]) -> dict[str, Any]:
    """What a handler sees of a message's headers: without leveret's bookkeeping.

    Example:
        >>> for_handlers({"tenant": 42, "leveret-attempt": 2, "leveret-cc": ["copy"]})
        {'tenant': 42, 'leveret-cc': ['copy']}
    """
    return {name: value for name, value in found.items() if not is_ours(name) or name in FOR_HANDLERS}


def stays_behind(name: str) -> bool:
    """Whether a header is left off when a message goes back to a queue: the broker's, and ours that do not travel."""
    return is_broker_owned(name) or (is_ours(name) and name not in TRAVELS)
