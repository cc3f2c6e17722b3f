"""What a broker writes on a message that it gives up: the `x-death` headers, as RabbitMQ writes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from leveret.core.message import Outgoing

#: RabbitMQ's own headers on what it dead-letters. Leveret reads and strips them, and writes them nowhere else.
_DEATHS: Final = "x-death"
_FIRST: Final = "x-first-death-"
_LAST: Final = "x-last-death-"


def dead_lettered(
    message: Outgoing, *, queue: str, reason: str, at: float, exchange: str, key: str | None
) -> tuple[Outgoing, list[str]]:
    """A message as it goes to a dead-letter exchange, and the routing keys it goes by.

    Args:
        message: as it lay in the queue.
        queue: that gave it up.
        reason: `expired`, `maxlen`, `delivery_limit`.
        at: when, epoch seconds.
        exchange: the dead-letter exchange.
        key: the routing key that the queue names for it; None keeps the message's own, with its `CC`.
    """
    properties = message.properties
    copies = properties.header("CC")
    own_keys = [message.routing_key]
    if isinstance(copies, list):
        own_keys += [copy for copy in copies if isinstance(copy, str)]
    deaths = _deaths(message)
    before = next((d for d in deaths if d.get("queue") == queue and d.get("reason") == reason), None)
    counted = None if before is None else before.get("count")
    death: dict[str, Any] = {
        "count": counted + 1 if isinstance(counted, int) else 1,
        "reason": reason,
        "queue": queue,
        "time": datetime.fromtimestamp(int(at), UTC),
        "exchange": message.exchange,
        "routing-keys": own_keys,
    }
    if properties.expiration is not None:
        death["original-expiration"] = properties.expiration
    here = {"exchange": message.exchange, "queue": queue, "reason": reason}
    added: dict[str, Any] = {_DEATHS: [death, *(d for d in deaths if d is not before)]}
    added |= {_LAST + name: value for name, value in here.items()}
    if properties.header(_FIRST + "reason") is None:
        added |= {_FIRST + name: value for name, value in here.items()}
    letter = Outgoing(
        exchange,
        message.routing_key if key is None else key,
        message.body,
        properties.edit(drop=() if key is None else ("CC",), add=added, fields={"expiration": None}),
        mandatory=False,
    )
    return letter, own_keys if key is None else [key]


def runs_in_circles(letter: Outgoing, queue: str) -> bool:
    """Whether *letter* was in *queue* before, and nobody but the broker itself has sent it round since."""
    since = []
    for death in _deaths(letter):
        since.append(death.get("reason"))
        if death.get("queue") == queue:
            return "rejected" not in since
    return False


def _deaths(message: Outgoing) -> list[Mapping[str, Any]]:
    """What the header says, newest first; a stranger may have written anything there."""
    written = message.properties.header(_DEATHS)
    return [death for death in written if isinstance(death, Mapping)] if isinstance(written, list) else []
