"""A queue that exists with other arguments than ours: used as it is and said so, or refused as it loses messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leveret.core.errors import QueueMismatch
from leveret.core.queue_harm import harm
from leveret.core.topology import Queue

#: What a queue is declared with beside its arguments, under the names that a broker's refusal gives them.
FLAGS: Final[Mapping[str, bool]] = {"durable": True, "auto_delete": False, "exclusive": False}


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
    if argument == "x-queue-type" and queue.pinned:
        return "its consumer must be the only one, and on such a queue the broker shares it without a word"
    return harm(argument, there, theirs)


def _shown(argument: str, value: Any) -> str:
    return f"no {argument}" if value is None else f"{argument}={value!r}"
