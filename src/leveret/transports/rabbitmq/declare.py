"""Declaring: what is there is left as it is; what differs harmlessly is used and told, what loses messages refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, TypeGuard

from leveret.core.errors import AccessRefused, BrokerError, NotFound, QueueMismatch
from leveret.core.topology import Binding, Difference, Queue, RMQExchangeConfig, Topology
from leveret.ports import QueueState
from leveret.transports.queue_mismatch import (
    FLAGS,
    compared,
    declared_arguments,
    declared_flags,
    missing,
    notes_of,
    other_type,
)
from leveret.transports.rabbitmq.channel import Channel
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone

#: A refusal names one argument; a queue has far fewer than so many.
_MOST_ROUNDS: Final = 30

_DELIVERY_LIMIT: Final = "x-delivery-limit"
#: How RabbitMQ says that something exists with another argument; the last two groups are of a value, or of a flag.
_INEQUIVALENT: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' for .*"
    r"but current is (?:none|the value '(?P<value>.*)' of type '(?P<type>\w+)'|'(?P<flag>.*)')\Z",
    re.DOTALL,
)
#: A number, as a refusal writes one.
_NUMBER: Final = re.compile(r"-?\d+")


class Calls:
    """Calls on one channel, one after the other; another one takes its place where the broker closes it over a call."""

    def __init__(self) -> None:
        self._lock: Final = asyncio.Lock()
        self._channel: Channel | None = None

    async def __call__(self, connection: RawConnection, method: str, /, **arguments: Any) -> Any:
        """Call pika's *method* of that name, and return the answer.

        Raises:
            Gone: the broker closed the channel over it, or the connection went.
        """
        async with self._lock:
            channel = self._channel
            if channel is None or channel.gone is not None or channel.connection is not connection:
                self._channel = channel = Channel(connection)
            return await channel.call(getattr(channel.pika, method), **arguments)


async def declare(calls: Calls, connection: RawConnection, topology: Topology) -> list[str]:
    """Make sure that all of it is there.

    Returns:
        A sentence for each difference that does no harm.

    Raises:
        QueueMismatch, AccessRefused, NotFound: as the port says, with the broker's words.
        Gone: the connection went.
    """
    notes: list[str] = []
    for exchange in topology.exchanges:
        notes += await _declare_exchange(calls, connection, exchange)
    for queue in topology.queues:
        notes += await _declare_queue(calls, connection, queue)
    for binding in topology.bindings:
        await _bind(calls, connection, binding)
    return notes


async def queue_state(calls: Calls, connection: RawConnection, queue: str) -> QueueState | None:
    """What the broker says of a queue, None where it does not exist.

    Raises:
        BrokerError: it is there, and not for us.
        Gone: the connection went.
    """
    try:
        answer = await calls(connection, "queue_declare", queue=queue, passive=True)
    except Gone as gone:
        if gone.code == 404:
            return None
        if gone.whole:
            raise
        raise _refused(f"queue {queue}", gone) from gone
    return QueueState(answer.message_count, answer.consumer_count)


async def inspect(calls: Calls, connection: RawConnection, topology: Topology) -> list[Difference]:
    """How what lies there differs from *topology*; nothing is made or changed.

    Raises:
        Gone: the connection went.
    """
    found: list[Difference] = []
    for exchange in topology.exchanges:
        found += await _inspected(calls, connection, "exchange", exchange.name, _look_at_exchange, exchange)
    for queue in topology.queues:
        found += await _inspected(calls, connection, "queue", queue.name, _look_at_queue, queue)
    return found


async def _inspected(
    calls: Calls,
    connection: RawConnection,
    kind: Literal["exchange", "queue"],
    name: str,
    look: Callable[[Calls, RawConnection, Any], Awaitable[list[Difference]]],
    ours: RMQExchangeConfig | Queue,
) -> list[Difference]:
    try:
        # Only asks whether it is there; to be told how it is made, one has to declare it, and that would make it.
        await calls(connection, f"{kind}_declare", passive=True, **{kind: name})
    except Gone as gone:
        if gone.whole:
            raise
        if gone.code == 404:
            return [missing(kind, name)]
        if gone.code != 405:
            return [_not_let(kind, name, _refused(f"{kind} {name}", gone))]
    try:
        return await look(calls, connection, ours)
    except (BrokerError, NotFound) as error:
        return [_not_let(kind, name, error)]


def _not_let(kind: Literal["exchange", "queue"], name: str, error: Exception) -> Difference:
    return Difference(kind=kind, name=name, state="refused", words=str(error))


async def _declare_exchange(
    calls: Calls, connection: RawConnection, exchange: RMQExchangeConfig
) -> list[str]:
    return notes_of(await _look_at_exchange(calls, connection, exchange))


async def _look_at_exchange(
    calls: Calls, connection: RawConnection, exchange: RMQExchangeConfig
) -> list[Difference]:
    """Declare it, as it is there where it is there; how that differs from ours."""
    ours = {"durable": exchange.durable, "auto_delete": False, "internal": False}
    there = dict(ours)
    for _ in range(_MOST_ROUNDS):
        try:
            await calls(
                connection,
                "exchange_declare",
                exchange=exchange.name,
                exchange_type=exchange.type,
                **there,
            )
        except Gone as gone:
            if gone.whole:
                raise
            found = inequivalent(gone, there)
            if found is None:
                raise _refused(f"exchange {exchange.name}", gone) from gone
            name, value = found
            if name == "type":
                return [other_type(exchange, value)]
            if name not in there or there[name] == value or name == "internal":
                raise _refused(f"exchange {exchange.name}", gone) from gone
            there[name] = bool(value)
        else:
            break
    return [
        Difference(
            kind="exchange",
            name=exchange.name,
            state="differs",
            argument=name,
            there=there[name],
            here=ours[name],
            words=f"exchange {exchange.name} exists with {name}={there[name]!r}, leveret declares "
            f"{name}={ours[name]!r}. leveret uses it as it is, and never deletes an exchange.",
        )
        for name in ours
        if there[name] != ours[name]
    ]


async def _declare_queue(calls: Calls, connection: RawConnection, queue: Queue) -> list[str]:
    return notes_of(await _look_at_queue(calls, connection, queue))


async def _look_at_queue(calls: Calls, connection: RawConnection, queue: Queue) -> list[Difference]:
    """Declare it, as it is there where it is there; how that differs from ours."""
    version = connection.server_version
    there: dict[str, Any] = {**declared_flags(queue), **queue_arguments(queue, version)}
    rounds = 0
    while True:
        try:
            await calls(
                connection,
                "queue_declare",
                queue=queue.name,
                arguments={name: value for name, value in there.items() if name not in FLAGS},
                **{flag: there[flag] for flag in FLAGS},
            )
        except Gone as gone:
            if gone.whole:
                raise
            if gone.code == 405 and not queue.temporary:
                # Locked by the connection that declared it for itself alone; nobody else is told more about it.
                return compared(queue, {**there, "exclusive": True})
            found = inequivalent(gone, there)
            if found is None or there.get(found[0]) == found[1] or rounds == _MOST_ROUNDS:
                raise _refused(f"queue {queue.name}", gone) from gone
            there[found[0]] = found[1]
            there = {name: value for name, value in there.items() if value is not None}
            rounds += 1
        else:
            return mismatches(queue, version, there) if rounds else []


def queue_arguments(queue: Queue, version: str) -> dict[str, Any]:
    """The arguments that *queue* is declared with on a broker of that version.

    Example:
        >>> queue_arguments(Queue("q", "quorum"), "4.0.5")
        {'x-queue-type': 'quorum', 'x-delivery-limit': -1}
        >>> queue_arguments(Queue("q", "quorum"), "3.13.7")
        {'x-queue-type': 'quorum'}
    """
    arguments = declared_arguments(queue)
    if arguments.get("x-queue-type") != "quorum":
        return arguments
    if _limits_by_default(version):
        arguments.setdefault(_DELIVERY_LIMIT, -1)
    elif _negative(arguments.get(_DELIVERY_LIMIT)):
        # Whoever asks for -1 means no limit, and here a queue has none where none is given.
        del arguments[_DELIVERY_LIMIT]
    return arguments


def mismatch_notes(queue: Queue, version: str, there: Mapping[str, Any]) -> list[str]:
    """A sentence for each harmless difference between what we declared and what is there; see `mismatches`.

    Raises:
        QueueMismatch: one of them loses messages.
    """
    return notes_of(mismatches(queue, version, there))


def mismatches(queue: Queue, version: str, there: Mapping[str, Any]) -> list[Difference]:
    """Each difference between what we declared and what is there.

    Args:
        queue: as leveret knows it.
        version: of the broker.
        there: arguments and flags of the existing one.
    """
    theirs = dict(there)
    limit, asked = theirs.get(_DELIVERY_LIMIT), queue.arguments.get(_DELIVERY_LIMIT)
    if asked is not None and not _negative(asked):
        return compared(queue, theirs)
    # No limit is what is wanted. How that is spelled depends on the version, so it is judged here alone.
    told: list[Difference] = []
    if theirs.get("x-queue-type") != "quorum":
        theirs.pop(_DELIVERY_LIMIT, None)
    elif _limits_by_default(version):
        if limit is None:
            told = [_limited(queue)]
        elif _negative(limit):
            del theirs[_DELIVERY_LIMIT]
    elif _negative(limit) and theirs.get("x-dead-letter-exchange") is None:
        told = [_forgetful(queue, limit)]
        del theirs[_DELIVERY_LIMIT]
    arguments = {name: value for name, value in queue.arguments.items() if name != _DELIVERY_LIMIT}
    return compared(replace(queue, arguments=arguments), theirs) + told


def _limited(queue: Queue) -> Difference:
    words = (
        f"queue {queue.name} exists without x-delivery-limit, leveret declares a quorum queue with -1: this broker "
        "deletes a message there that came back 20 times. leveret uses it as it is. Raise the limit by a policy: "
        f"rabbitmqctl set_policy leveret-{queue.name} '^{re.escape(queue.name)}$' '{{\"delivery-limit\": 1000000}}' "
        "--apply-to queues"
    )
    return Difference(
        kind="queue", name=queue.name, state="differs", argument=_DELIVERY_LIMIT, here=-1, words=words
    )


def _forgetful(queue: Queue, limit: int) -> Difference:
    words = (
        f"queue {queue.name} exists with x-delivery-limit={limit}, which means no limit only from RabbitMQ 4.0 on: "
        "this broker deletes a message there when it first comes back. leveret neither uses nor deletes it. Delete it "
        f"yourself once it is empty (rabbitmqctl delete_queue {queue.name} --if-empty), then start again"
    )
    return Difference(
        kind="queue", name=queue.name, state="unsafe", argument=_DELIVERY_LIMIT, there=limit, words=words
    )


async def _bind(calls: Calls, connection: RawConnection, binding: Binding) -> None:
    try:
        await calls(
            connection,
            "queue_bind",
            queue=binding.queue,
            exchange=binding.exchange,
            routing_key=binding.routing_key,
        )
    except Gone as gone:
        if gone.whole:
            raise
        raise _refused(f"the binding of {binding.queue} to {binding.exchange}", gone) from gone


def inequivalent(gone: Gone, sent: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The argument that a refusal names, and its value over there (None: it has none); None where it names none.

    Args:
        gone: the refusal.
        sent: what was declared.

    Example:
        >>> inequivalent(Gone("406 PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue 'q' in vhost '/': "
        ...     "received none but current is the value '100' of type 'signedint'", code=406), {})
        ('x-max-length', 100)
    """
    match = _INEQUIVALENT.search(gone.words) if gone.code == 406 else None
    if match is None:
        return None
    value: Any = match["value"]
    if match["flag"] is not None:
        # Erlang puts quotes around what has a dash in it, such as the type of an exchange.
        flag = match["flag"].strip("'")
        value = {"true": True, "false": False}.get(flag, flag)
        # No type is named where both sides have a value; it is that of ours.
        if type(sent.get(match["name"])) is int and _NUMBER.fullmatch(flag):
            value = int(flag)
    elif value is not None and match["type"] == "bool":
        value = value == "true"
    elif value is not None and match["type"] != "longstr":
        try:
            value = int(value)
        except ValueError:
            return None
    return match["name"], value


def _refused(what: str, gone: Gone) -> BrokerError | NotFound:
    if gone.code == 404:
        return NotFound(f"{what}: {gone.words}. Declare it first")
    if gone.code == 406:
        return QueueMismatch(f"{what}: {gone.words}")
    return AccessRefused(
        f"{what}: {gone.words}. Whoever administers the broker gives permissions with: rabbitmqctl set_permissions"
    )


def _limits_by_default(version: str) -> bool:
    """Whether a quorum queue that is given no limit deletes what came back 20 times; before, it has none."""
    number = version.partition(".")[0]
    return number.isdigit() and int(number) >= 4


def _negative(limit: Any) -> TypeGuard[int]:
    return isinstance(limit, int) and limit < 0
