"""The names on the broker that a threaded daemon uses: constants for the default namespace, functions for any other.

Channels are data: a daemon that needs others than `INSTANCE_CHANNELS` names its own.

Example:
    >>> intent_queue("live-1", namespace="trading")
    'trading.live-1.intent.req'
    >>> ROBOTS = instance_topology("robots", "arm-2", [RpcChannel("move", ordered=True), RpcChannel("state")])
"""

from __future__ import annotations

from typing import Any, Final

from leveret.core.instances import (
    DEFAULT_INSTANCE_KEY,
    INSTANCE_CHANNELS,
    RpcChannel,
    direct_routing_key,
    instance_topology,
)
from leveret.core.topology import Names

__all__ = [
    # The default namespace
    "DEFAULT_NAMESPACE",
    "EVENTS_EXCHANGE",
    "EVENTS_DLQ_EXCHANGE",
    "EVENTS_DLQ_QUEUE",
    "ALERTS_EXCHANGE",
    "DIRECT_EXCHANGE",
    "BROADCAST_EXCHANGE",
    "INTENT_REQ_QUEUE",
    "SLOTS_REQ_QUEUE",
    "CONTROL_REQ_QUEUE",
    "STRATEGY_STATE_SET_REQ_QUEUE",
    "PAUSE_REQ_QUEUE",
    "STRATEGY_QUEUE_ARGS",
    # Any namespace, any instance
    "DEFAULT_INSTANCE_KEY",
    "intent_queue",
    "slots_queue",
    "control_queue",
    "strategy_state_set_queue",
    "direct_routing_key",
    "strategy_queue_args",
    # Channels of your own
    "INSTANCE_CHANNELS",
    "RpcChannel",
    "instance_topology",
]

#: The namespace of a transport that names none.
DEFAULT_NAMESPACE: Final = "leveret"

_NAMES: Final = Names(DEFAULT_NAMESPACE)
_CHANNELS: Final = {channel.name: channel for channel in INSTANCE_CHANNELS}


def strategy_queue_args(namespace: str = DEFAULT_NAMESPACE) -> dict[str, Any]:
    """The arguments of a strategy's queue: what it rejects, or what it cannot hold, goes to the dead letters.

    Example:
        >>> strategy_queue_args("trading")
        {'x-dead-letter-exchange': 'trading.events.dlq'}
    """
    return {"x-dead-letter-exchange": Names(namespace).dead_letters}


def intent_queue(instance_key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The queue of an instance's intents: obeyed one at a time.

    Raises:
        ConfigError: key or namespace is no word of 1 to 64 letters, digits, `_` and `-`.
    """
    return _CHANNELS["intent"].queue(instance_key, namespace)


def slots_queue(instance_key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The queue of an instance's questions about slots. Raises as `intent_queue` does."""
    return _CHANNELS["slots"].queue(instance_key, namespace)


def control_queue(instance_key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The queue of an instance's control: its own, and what is broadcast. Raises as `intent_queue` does."""
    return _CHANNELS["control"].queue(instance_key, namespace)


def strategy_state_set_queue(instance_key: str, namespace: str = DEFAULT_NAMESPACE) -> str:
    """The queue over which an instance's strategies are given their state. Raises as `intent_queue` does."""
    return _CHANNELS["strategy_state_set"].queue(instance_key, namespace)


EVENTS_EXCHANGE: Final = _NAMES.events
EVENTS_DLQ_EXCHANGE: Final = _NAMES.dead_letters
EVENTS_DLQ_QUEUE: Final = _NAMES.dead_letters
ALERTS_EXCHANGE: Final = _NAMES.alerts
DIRECT_EXCHANGE: Final = _NAMES.direct
BROADCAST_EXCHANGE: Final = _NAMES.broadcast

INTENT_REQ_QUEUE: Final = intent_queue(DEFAULT_INSTANCE_KEY)
SLOTS_REQ_QUEUE: Final = slots_queue(DEFAULT_INSTANCE_KEY)
CONTROL_REQ_QUEUE: Final = control_queue(DEFAULT_INSTANCE_KEY)
STRATEGY_STATE_SET_REQ_QUEUE: Final = strategy_state_set_queue(DEFAULT_INSTANCE_KEY)
#: Of the default instance alone.
PAUSE_REQ_QUEUE: Final = _CHANNELS["pause"].queue(DEFAULT_INSTANCE_KEY, DEFAULT_NAMESPACE)

STRATEGY_QUEUE_ARGS: Final = strategy_queue_args()
