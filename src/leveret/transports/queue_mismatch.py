"""A queue that exists with other arguments than ours: used as it is and said so, or refused as it loses messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from leveret.core.errors import QueueMismatch
from leveret.core.queue_harm import harm
from leveret.core.topology import Difference, Queue, RMQExchangeConfig

#: What a queue is declared with beside its arguments, under the names that a broker's refusal gives them.
FLAGS: Final[Mapping[str, bool]] = {"durable": True, "auto_delete": False, "exclusive": False}


def declared_arguments(queue: Queue) -> dict[str, Any]:
    """The arguments that *queue* is declared with, its type among them.

    Example:
        >>> declared_arguments(Queue("shop.charge"))
        {'x-queue-type': 'classic'}
    """
    arguments = dict(queue.arguments)
    if queue.queue_type is not None:
        # Classic as well: where a virtual host makes quorum queues by default, one that names no type is a quorum queue
        # with the delivery limit of that broker, which deletes messages.
        arguments["x-queue-type"] = queue.queue_type
    return arguments


def declared_flags(queue: Queue) -> dict[str, bool]:
    """What *queue* is declared with beside its arguments.

    Example:
        >>> declared_flags(Queue("shop.charge"))
        {'durable': True, 'auto_delete': False, 'exclusive': False}
    """
    return {flag: value != queue.temporary for flag, value in FLAGS.items()}


def differences(queue: Queue, theirs: Mapping[str, Any]) -> list[str]:
    """A sentence for each way in which the queue that exists differs harmlessly from the one we declare.

    Args:
        queue: as we would declare it.
        theirs: the existing one's arguments, and its `durable`, `auto_delete` and `exclusive` where known.

    Raises:
        QueueMismatch: one of the differences loses messages, or hides them from us.
    """
    return notes_of(compared(queue, theirs))


def notes_of(found: Sequence[Difference]) -> list[str]:
    """The sentences of harmless differences.

    Raises:
        QueueMismatch: one of them is not harmless.
    """
    for each in found:
        if each.state == "unsafe":
            raise QueueMismatch(each.words)
    return [each.words for each in found]


def compared(queue: Queue, theirs: Mapping[str, Any]) -> list[Difference]:
    """Each way in which the queue that exists differs from the one we declare; see `differences`."""
    ours: dict[str, Any] = {**declared_flags(queue), **declared_arguments(queue)}
    found = []
    for argument in sorted({*ours, *theirs}):
        here, there = ours.get(argument), theirs.get(argument, declared_flags(queue).get(argument))
        if argument == "x-queue-type":
            there = there or "classic"
            # Where no type is asked for, any will do.
            here = here or there
        if here == there:
            continue
        harm = _harm(queue, argument, there, theirs)
        words = f"queue {queue.name} exists with {_shown(argument, there)}, leveret declares {_shown(argument, here)}"
        if harm is not None:
            words += (
                f": {harm}. leveret neither uses nor deletes it. Delete it yourself once it is empty "
                f"(rabbitmqctl delete_queue {queue.name} --if-empty), then start again"
            )
        else:
            words += ". leveret uses it as it is, and never deletes a queue."
        found.append(
            Difference(
                kind="queue",
                name=queue.name,
                state="differs" if harm is None else "unsafe",
                argument=argument,
                there=there,
                here=here,
                words=words,
            )
        )
    return found


def missing(kind: Literal["exchange", "queue"], name: str) -> Difference:
    """It is not there."""
    return Difference(kind=kind, name=name, state="missing", words=f"{kind} {name} is not there")


def other_type(exchange: RMQExchangeConfig, there: str) -> Difference:
    """An exchange of that name is of another type."""
    return Difference(
        kind="exchange",
        name=exchange.name,
        state="unsafe",
        argument="type",
        there=there,
        here=exchange.type,
        words=f"exchange {exchange.name} exists with type={there!r}, leveret declares type={exchange.type!r}: messages "
        "would reach other queues than meant. Name another exchange, or delete that one when nobody uses it",
    )


def _harm(queue: Queue, argument: str, there: Any, theirs: Mapping[str, Any]) -> str | None:
    if argument == "x-queue-type" and queue.pinned:
        return "its consumer must be the only one, and on such a queue the broker shares it without a word"
    return harm(argument, there, theirs)


def _shown(argument: str, value: Any) -> str:
    return f"no {argument}" if value is None else f"{argument}={value!r}"
