"""The sync face: leveret for programs of many threads, without an event loop of their own.

Example:
    >>> from leveret.sync import RabbitMQTransport
    >>> with RabbitMQTransport("memory://", namespace="trex") as transport:
    ...     transport.declare_strategy_queue("trex.momentum", "price.*")
    ...     transport.publish_event("price.eurex", {"bid": 17})
    ...     transport.health().value
    'connected'
"""

from __future__ import annotations

from leveret.core.errors import (
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    TransportUnavailableError,
)
from leveret.sync.handlers import AlarmCallback, EventHandler, RpcHandler, RpcRequest, RpcResponse
from leveret.sync.line import TransportHealth
from leveret.sync.publisher import EventOutcome
from leveret.sync.topology import DEFAULT_INSTANCE_KEY
from leveret.sync.transport import RabbitMQTransport

__all__ = [
    # The transport
    "RabbitMQTransport",
    "TransportHealth",
    "DEFAULT_INSTANCE_KEY",
    # Handlers
    "AlarmCallback",
    "EventHandler",
    "RpcHandler",
    "RpcRequest",
    "RpcResponse",
    # Outcomes
    "EventOutcome",
    "TransportUnavailableError",
    "RpcUnreachableError",
    "RpcUnknownError",
    "RpcTimeoutError",
    "RpcRemoteError",
]
