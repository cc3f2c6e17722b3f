"""Reading dead letters: our own form, a sync transport's JSON, what the broker dead-lettered, and anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from leveret.core import envelope
from leveret.core import headers as h
from leveret.core.dead_letter import DeadLetter, Ending
from leveret.core.envelope import Malformed
from leveret.core.instances import is_channel_queue
from leveret.core.message import DIRECT_REPLY, unwrap
from leveret.ports import Delivery

#: What the broker writes as the reason of a dead-lettering, and what it means to us.
BY_BROKER: Mapping[str, Ending] = {
    "expired": "expired", "rejected": "rejected", "maxlen": "rejected", "delivery_limit": "worker died",
}  # fmt: skip


def read(
    delivery: Delivery, *, namespace: str, events: str, now: float, new_id: Callable[[], str]
) -> DeadLetter:
    """The letter that a delivery of the dead-letter queue is. Whatever it is, it is kept; nothing raises.

    Args:
        delivery: from the dead-letter queue.
        namespace: whose it is.
        events: the data exchange, where a transport's unroutable event was published.
        now: epoch seconds.
        new_id: a random id, for letters that bring none.
    """
    properties = delivery.properties
    body, original, found = unwrap(delivery.body, properties)
    # Of a wrapped message the sender's own headers stand inside.
    rpc = _is_request(found) or (
        original is not properties and (_is_request(original.headers) or original.reply_to == DIRECT_REPLY)
    )
    problem = ""
    if found.get(h.ENVELOPE) == h.DEAD_LETTER:
        try:
            letter = envelope.read_letter(
                delivery.body, properties, namespace=namespace, now=now, new_id=new_id
            )
        except Malformed as error:
            problem = f"; its envelope cannot be read: {error}"
        else:
            return replace(letter, rpc=True) if rpc else letter
    letter = DeadLetter(
        namespace=namespace,
        id=new_id(),
        ending="foreign",
        exchange=delivery.exchange,
        routing_key=delivery.routing_key,
        type=original.type or delivery.routing_key,
        message_id=original.message_id,
        reason=f"put into the dead-letter queue by another program, without a reason{problem}",
        first_failed_at=now,
        died_at=now,
        size=len(body),
        body=body,
        properties=original.edit(drop=h.is_broker_owned).raw,
    )
    died = _x_death(found)
    if died is None:
        letter = _unroutable(letter, events) or letter
    else:
        letter = _dead_lettered(letter, died)
        # A request of a program that is not ours bears no mark, and no address where nobody waits for its answer.
        rpc = rpc or is_channel_queue(letter.queue, namespace)
    return replace(letter, rpc=True) if rpc else letter


def is_expired_request(delivery: Delivery) -> bool:
    """Whether this is an RPC request whose caller gave up while it lay in a queue: nobody waits for it any more."""
    found = delivery.properties.headers
    died = _x_death(found)
    return h.TIMEOUT_MS in found and died is not None and died.get("reason") == "expired"


def _x_death(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    deaths = found.get("x-death")
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], Mapping):
        return deaths[0]
    return None


def _dead_lettered(letter: DeadLetter, died: Mapping[str, Any]) -> DeadLetter:
    why = str(died.get("reason") or "unknown")
    queue = died.get("queue") if isinstance(died.get("queue"), str) else ""
    keys = died.get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys and isinstance(keys[0], str) else letter.routing_key
    exchange = died.get("exchange") if isinstance(died.get("exchange"), str) else letter.exchange
    worker = queue.split(".", 1)[1] if queue and queue.startswith(f"{letter.namespace}.") else ""
    return replace(
        letter,
        ending=BY_BROKER.get(why, "rejected"),
        worker=worker,
        queue=queue or "",
        exchange=exchange or "",
        routing_key=key,
        type=letter.type if letter.type and letter.type != letter.routing_key else key,
        reason=f"dead-lettered by the broker from {queue or 'a queue'}: {why}",
    )


def _unroutable(letter: DeadLetter, events: str) -> DeadLetter | None:
    """A sync transport's `{"reason": "unroutable", "original_routing_key", "payload"}`."""
    try:
        told = json.loads(letter.body or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or told.get("reason") != "unroutable" or "payload" not in told:
        return None
    key = told.get("original_routing_key")
    if not isinstance(key, str):
        return None
    body = json.dumps(told["payload"], separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "backslashreplace"
    )
    return replace(
        letter,
        ending="unroutable",
        exchange=events,
        routing_key=key,
        type=key,
        reason=f"unroutable: no queue was bound for {key}",
        body=body,
        size=len(body),
    )


def _is_request(found: Mapping[str, Any]) -> bool:
    """Whether headers are those of an RPC request, whose caller has long given up."""
    return h.RPC in found or h.TIMEOUT_MS in found or found.get(h.REPLY_TO) == DIRECT_REPLY
