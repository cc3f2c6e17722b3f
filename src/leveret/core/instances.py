"""Instances of a daemon and their RPC channels: data, from which names and topology follow.

A daemon may run several times in one namespace, each instance under a key of its own. Each takes requests over the same
list of channels; the one under the key `default` has the plain names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leveret.core.errors import ConfigError
from leveret.core.topology import Binding, Names, Queue, RMQExchangeConfig, Topology, check_namespace

#: The instance whose queues bear the plain names.
DEFAULT_INSTANCE_KEY: Final = "default"

#: A key is one word of a routing key: a dot, a star or a hash would make it several, or a pattern.
_WORD: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: One consumer at a time, across all processes; the others stand by.
SINGLE_ACTIVE_CONSUMER: Final = "x-single-active-consumer"


def _check_word(value: object, name: str) -> str:
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise ConfigError(
            f"{name} {value!r}: expected 1 to 64 of A-Z a-z 0-9 _ - (it is one word of a routing key)"
        )
    return value


@dataclass(frozen=True, slots=True)
class RpcChannel:
    """A queue of requests that each instance of a daemon has.

    Args:
        name: a word; it is part of the queue's name and of the routing key.
        ordered: one request after the other, also where several processes serve the queue.
        broadcast: also takes what is published to the namespace's broadcast exchange.
        default_only: the default instance alone has it.

    Raises:
        ConfigError: *name* is no word of 1 to 64 letters, digits, `_` and `-`.

    Example:
        >>> RpcChannel("move", ordered=True).queue("arm-2", "robots")
        'robots.arm-2.move.req'
    """

    name: str
    ordered: bool = False
    broadcast: bool = False
    default_only: bool = False

    def __post_init__(self) -> None:
        _check_word(self.name, "channel name")

    def queue(self, instance_key: str, namespace: str) -> str:
        """The queue of this channel of an instance.

        Raises:
            ConfigError: the key or the namespace is no word, or the instance has no such channel.
        """
        check_instance_key(instance_key)
        check_namespace(namespace)
        if instance_key == DEFAULT_INSTANCE_KEY:
            return f"{namespace}.{self.name}.req"
        if self.default_only:
            raise ConfigError(
                f"instance {instance_key!r} has no channel {self.name}: the default instance alone has it"
            )
        return f"{namespace}.{instance_key}.{self.name}.req"


#: What an instance has where a daemon does not name its own.
INSTANCE_CHANNELS: Final = (
    RpcChannel("intent", ordered=True),
    RpcChannel("slots"),
    RpcChannel("control", broadcast=True),
    RpcChannel("strategy_state_set"),
    RpcChannel("pause", default_only=True),
)


def check_instance_key(value: object) -> str:
    """*value* where it can be an instance's key.

    Raises:
        ConfigError: anything but 1 to 64 letters, digits, `_` and `-`.

    Example:
        >>> check_instance_key("live-1")
        'live-1'
    """
    return _check_word(value, "instance key")


def direct_routing_key(instance_key: str, channel: str) -> str:
    """The key under which the direct exchange leads to that channel of that instance.

    Raises:
        ConfigError: one of the two is no word.

    Example:
        >>> direct_routing_key("live-1", "intent")
        'live-1.intent'
    """
    return f"{check_instance_key(instance_key)}.{_check_word(channel, 'channel name')}"


def shared_topology(namespace: str) -> Topology:
    """What every daemon of a namespace stands on: events and their dead letters, alerts, direct and broadcast."""
    names = Names(check_namespace(namespace))
    return Topology(
        exchanges=(
            RMQExchangeConfig(names.events),
            RMQExchangeConfig(names.dead_letters, "fanout"),
            RMQExchangeConfig(names.alerts),
            RMQExchangeConfig(names.direct),
            RMQExchangeConfig(names.broadcast, "fanout"),
        ),
        queues=(Queue(names.dead_letters),),
        bindings=(Binding(names.dead_letters, names.dead_letters),),
    )


def channel_topology(channel: RpcChannel, instance_key: str, namespace: str) -> Topology:
    """One channel of an instance: its queue, durable and dead-lettered, and its bindings."""
    names = Names(namespace)
    queue = channel.queue(instance_key, namespace)
    arguments: dict[str, Any] = {"x-dead-letter-exchange": names.dead_letters}
    if channel.ordered:
        arguments[SINGLE_ACTIVE_CONSUMER] = True
    bindings = [Binding(names.direct, queue, direct_routing_key(instance_key, channel.name))]
    if channel.broadcast:
        bindings.append(Binding(names.broadcast, queue))
    return Topology(queues=(Queue(queue, arguments=arguments),), bindings=tuple(bindings))


def instance_topology(
    namespace: str,
    instance_key: str = DEFAULT_INSTANCE_KEY,
    channels: Iterable[RpcChannel] = INSTANCE_CHANNELS,
) -> Topology:
    """All that one instance of a daemon needs on the broker. Add the topologies of several instances with `+`.

    Args:
        namespace: first part of every name.
        instance_key: which instance; the one under `default` has the plain names.
        channels: what it takes requests over.

    Raises:
        ConfigError: namespace, key or a channel's name is no word, or two channels bear one name.

    Example:
        >>> topology = instance_topology("robots", "arm-2", [RpcChannel("move", ordered=True)])
        >>> [queue.name for queue in topology.queues]
        ['robots.events.dlq', 'robots.arm-2.move.req']
    """
    check_instance_key(instance_key)
    topology = shared_topology(namespace)
    known: set[str] = set()
    for channel in channels:
        if channel.name in known:
            raise ConfigError(f"channel {channel.name!r} stands twice in the list; leave one out")
        known.add(channel.name)
        if instance_key == DEFAULT_INSTANCE_KEY or not channel.default_only:
            topology += channel_topology(channel, instance_key, namespace)
    return topology


def channel_of(queue: str, namespace: str, channels: Sequence[RpcChannel]) -> RpcChannel | None:
    """The channel whose queue that is, of whatever instance; None where it is none of theirs.

    Example:
        >>> channel_of("robots.arm-2.intent.req", "robots", INSTANCE_CHANNELS)
        RpcChannel(name='intent', ordered=True, broadcast=False, default_only=False)
    """
    if not is_channel_queue(queue, namespace):
        return None
    name = queue.split(".")[-2]
    return next((channel for channel in channels if channel.name == name), None)


def is_channel_queue(queue: str, namespace: str) -> bool:
    """Whether that is the queue of a channel of that namespace, whatever the channel and the instance.

    Example:
        >>> is_channel_queue("robots.arm-2.move.req", "robots"), is_channel_queue("robots.charge", "robots")
        (True, False)
    """
    parts = queue.split(".")
    return parts[0] == namespace and parts[-1] == "req" and len(parts) in {3, 4}
