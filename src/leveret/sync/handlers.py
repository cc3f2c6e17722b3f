"""What handlers of a threaded daemon take and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A request as its handler sees it.

    Attributes:
        payload: an object; `{}` where the body was empty.
        correlation_id: the caller's name for it, None where it has none.
        reply_to: where the answer goes; None: nobody waits for one.
        properties: `headers` without leveret's bookkeeping, `message_id`, `type`, and `redelivered`: True where it may
            have been run before, in part or whole.
    """

    payload: dict[str, Any]
    correlation_id: str | None = None
    reply_to: str | None = None
    properties: dict[str, Any] = field(default_factory=lambda: {"headers": {}})


@dataclass(frozen=True, slots=True)
class RpcResponse:
    """What a handler answers: an object."""

    payload: dict[str, Any]


#: Answers a request; what it raises makes the request a dead letter.
RpcHandler: TypeAlias = Callable[[RpcRequest], RpcResponse]
#: Takes routing key and payload of an event; what it raises makes the event a dead letter.
EventHandler: TypeAlias = Callable[[str, dict[str, Any]], object]
#: Told of alarms: code, title, fields.
AlarmCallback: TypeAlias = Callable[[str, str, dict[str, Any]], object]
