"""A queue that exists with other arguments than ours: used as it is and said so, or refused as it loses messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leveret.core.errors import QueueMismatch
from leveret.core.topology import Queue

#: What a queue is declared with beside its arguments, under the names that a broker's refusal gives them.
FLAGS: Final[Mapping[str, bool]] = {"durable": True, "auto_delete": False, "exclusive": False}

_LENGTH_LIMITS: Final = ("x-max-length", "x-max-length-bytes")
#: What a full queue may do without losing anything: say no.
_REFUSING: Final = ("reject-publish", "reject-publish-dlx")


def declared_arguments(queue: Queue) -> dict[str, Any]:
    """The arguments that *queue* is declared with, its type among them where it is not the broker's default.

    Example:
        >>> declared_arguments(Queue("shop.charge", "quorum"))
        {'x-queue-type': 'quorum'}
    """
    arguments = dict(queue.arguments)
    if queue.queue_type == "quorum" or (queue.queue_type == "classic" and queue.pinned):
        arguments["x-queue-type"] = queue.queue_type
    return arguments


def differences(queue: Queue, theirs: Mapping[str, Any]) -> list[str]:
    """A sentence for each way in which the queue that exists differs harmlessly from the one we declare.

    Args:
        queue: as we would declare it.
        theirs: the existing one's arguments, and its `durable`, `auto_delete` and `exclusive` where known.

    Raises:
        QueueMismatch: one of the differences loses messages, or hides them from us.
    """
    ours: dict[str, Any] = {**FLAGS, **declared_arguments(queue)}
    notes = []
    for argument in sorted({*ours, *theirs}):
        here, there = ours.get(argument), theirs.get(argument, FLAGS.get(argument))
        if argument == "x-queue-type":
            there = there or "classic"
            # Where no type is asked for, any will do.
            here = here or ("classic" if queue.queue_type is not None else there)
        if here == there:
            continue
        if (harm := _harm(queue, argument, there, theirs)) is not None:
            raise QueueMismatch(
                f"queue {queue.name} exists with {_shown(argument, there)}, leveret declares {_shown(argument, here)}: "
                f"{harm}. leveret neither uses nor deletes it. Delete it yourself once it is empty "
                f"(rabbitmqctl delete_queue {queue.name} --if-empty), then start again"
            )
        notes.append(
            f"queue {queue.name} exists with {_shown(argument, there)}, leveret declares {_shown(argument, here)}. "
            "leveret uses it as it is, and never deletes a queue."
        )
    return notes


def _harm(queue: Queue, argument: str, there: Any, theirs: Mapping[str, Any]) -> str | None:
    """What that argument of the existing queue does to messages, None where it takes none away."""
    if argument == "durable" and not there:
        return "it is gone after a restart of the broker, with all that lies in it"
    if argument == "auto_delete" and there:
        return "it is deleted, with all that lies in it, when its last consumer leaves"
    if argument == "exclusive" and there:
        return "it is deleted, with all that lies in it, when one certain connection ends"
    if argument == "x-expires" and there is not None:
        return f"it is deleted when nobody used it for {there} ms"
    if argument == "x-message-ttl" and there is not None:
        return f"messages that wait for {there} ms are taken away"
    limited = any(theirs.get(limit) is not None for limit in _LENGTH_LIMITS)
    if argument in {*_LENGTH_LIMITS, "x-overflow"} and limited and theirs.get("x-overflow") not in _REFUSING:
        return "when it is full, its oldest messages are dropped (x-overflow is not reject-publish)"
    finite = isinstance(there, int) and there >= 0
    if argument == "x-delivery-limit" and finite and theirs.get("x-dead-letter-exchange") is None:
        return f"a message that came back {there} times is deleted (there is no x-dead-letter-exchange)"
    if argument == "x-queue-type" and queue.pinned:
        return "its consumer must be the only one, and on such a queue the broker shares it without a word"
    return None


def _shown(argument: str, value: Any) -> str:
    return f"no {argument}" if value is None else f"{argument}={value!r}"
