"""A message: as a user publishes it, as it goes out, as it was received, and the ids that tell copies of one apart."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from leveret.core import headers as h
from leveret.core.errors import BadPayload
from leveret.core.properties import Properties
from leveret.core.seconds import LAST_MOMENT, Seconds

#: Namespace of the UUIDv5 ids that leveret derives; any fixed value does, this one is drawn once.
DERIVED_IDS = uuid.UUID("5b1d6c0e-7a0f-4f2e-9a55-0f3c8e6d21b7")

#: The address of RabbitMQ's direct reply-to; on a copy it would name nobody, or be refused.
DIRECT_REPLY = "amq.rabbitmq.reply-to"

#: A wrapped message bears its message id, type and priority alone; the rest is in front of its body.
_BARE: Mapping[str, Any] = {
    "content_type": None, "content_encoding": None, "delivery_mode": 2, "correlation_id": None, "reply_to": None,
    "expiration": None, "timestamp": None, "user_id": None, "app_id": None, "cluster_id": None,
}  # fmt: skip

#: Where these bytes are nowhere among the properties, no header is leveret's.
_OURS: Final = h.PREFIX.encode()

#: Nobody counts further; a stranger's larger number would not fit a header or a column once one is added.
MOST_COUNTED = 2**31

#: The longest id of a message, or of what leveret keeps. It is part of a key in every store, and PostgreSQL has none of
#: more than 2 700 bytes. A stranger's longer one counts as none, as does what is too long for a policy's numbers.
ID_BYTES = 255
POLICY_BYTES = 1000

#: Bytes kept for the header that a transport tells a mandatory publish by when it comes back.
TAG_ROOM = 64

#: What a message bears that names none.
NO_HEADERS: Final[Mapping[str, Any]] = MappingProxyType({})


class _Content(Struct, frozen=True):
    type: str
    payload: Any = None


# No dataclass, for the same reason as Received.
class Message(_Content, frozen=True, kw_only=True):
    """A message to be published: a type, a payload, and what should travel with them.

    Args:
        type: routing key, and AMQP `type` property, so that it survives a retry by queue name.
        payload: what JSON carries, a dataclass, a pydantic model, or bytes (sent as they are).
        id: minted by `publish` where it is None; a result's is derived from its input's.
        headers: your own; names that begin with `leveret-` or are the broker's are refused.
        expiration: seconds after which the broker may drop it unread: outside the promise.
        persistent, mandatory: False takes the message out of the promise.

    Example:
        >>> Message("order.placed", {"id": 1}).type
        'order.placed'
    """

    id: str | None = None
    headers: Mapping[str, Any] = NO_HEADERS
    correlation_id: str | None = None
    reply_to: str | None = None
    priority: int | None = None
    expiration: Seconds | None = None
    content_type: str = "application/json"
    persistent: bool = True
    mandatory: bool = True


def identified(message: Message, id: str) -> Message:
    """*message* under that id."""
    return message if message.id == id else replace(message, id=id)


class Outgoing(NamedTuple):
    """What a transport publishes: bytes, and where to."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    mandatory: bool = True


# No dataclass: one is made for each delivery, and a frozen dataclass of so many fields takes nine times as long.
class Received(Struct, frozen=True, kw_only=True):
    """A message as a worker's queue gave it: unwrapped, without tag, with what earlier failures say of it."""

    #: The worker's own queue, also for what came through its suspects queue.
    queue: str
    #: Where it was first published; a retry comes through the default exchange, and its headers remember.
    exchange: str
    routing_key: str
    body: bytes
    properties: Properties
    redelivered: bool = False
    #: The number of this run, from 1.
    attempt: int = 1
    #: How many failures, counted or not, lie behind it.
    failure: int = 0
    retry_id: str | None = None
    first_failed_at: float | None = None
    #: The policy's numbers at the first failure, as they travel.
    policy: str | None = None
    attempts_allowed: int | None = None
    starts: int = 0
    #: The dead letter that it was last replayed from, and how often it was.
    first_letter: str | None = None
    replays: int = 0

    @property
    def type(self) -> str:
        """Its message type: the AMQP `type`, else the routing key it was published with."""
        return self.properties.type or self.routing_key


def received(
    *, queue: str, exchange: str, routing_key: str, body: bytes, properties: Properties, redelivered: bool
) -> Received:
    """Read a delivery: unwrap it where it is wrapped, and take what leveret's own headers say.

    A header of ours with a value that cannot be meant (text for a number) counts as absent: strangers write anything.
    """
    if _OURS not in properties.raw:
        return Received(
            queue=queue, exchange=exchange, routing_key=routing_key, body=body, properties=properties,
            redelivered=redelivered,
        )  # fmt: skip
    body, properties, extra = unwrap(body, properties)
    known = {name: value for name, value in extra.items() if h.is_ours(name)}
    return Received(
        queue=queue,
        exchange=_text(known, h.ORIGIN_EXCHANGE, exchange),
        routing_key=_text(known, h.ORIGIN_KEY, routing_key),
        body=body,
        properties=properties,
        redelivered=redelivered,
        attempt=count_header(known, h.ATTEMPT, least=1) or 1,
        failure=count_header(known, h.FAILURE) or 0,
        retry_id=id_header(known, h.RETRY_ID),
        first_failed_at=moment_header(known, h.FIRST_FAILED_AT),
        policy=text_header(known, h.POLICY, most=POLICY_BYTES),
        attempts_allowed=count_header(known, h.ALLOWED, least=1),
        starts=count_header(known, h.STARTS) or 0,
        first_letter=id_header(known, h.FIRST_LETTER),
        replays=count_header(known, h.REPLAYS) or 0,
    )


def wrap(
    body: bytes, original: Properties, added: Mapping[str, Any], *, frame_max: int, user: str | None = None
) -> tuple[bytes, Properties]:
    """A copy of a message with *added* headers of ours; wrapped where its header frame would not fit *frame_max* bytes.

    Taken off: the broker's own headers, ours that do not travel, `expiration` (the copy must not die waiting), and what
    would misroute the copy or be refused: `CC`, `BCC`, a user-id that is not *user*, a literal direct-reply address.
    Those four are kept under names of ours. Copies are persistent.

    Wrapped: the original property bytes stand in front of the body, and the message bears our headers alone. A frame
    over the negotiated size would cost the whole connection (501, AMQP 0-9-1 section 4.2.3).
    """
    aside: dict[str, Any] = {}
    fields: dict[str, Any] = {"expiration": None, "delivery_mode": 2}
    for name, ours in h.SET_ASIDE.items():
        if (value := original.header(name)) is not None:
            aside[ours] = value
    if original.user_id is not None and original.user_id != user:
        aside[h.USER_ID] = original.user_id
        fields["user_id"] = None
    if original.reply_to == DIRECT_REPLY:
        aside[h.REPLY_TO] = original.reply_to
        fields["reply_to"] = None
    try:
        properties = original.edit(drop=_left_off_a_copy, add={**aside, **added}, fields=fields)
    except BadPayload:
        # What was set aside holds a value that no encoder of ours can write again; the copy goes without it.
        properties = original.edit(drop=_left_off_a_copy, add=added, fields=fields)
    # A header frame is 7 bytes of frame header, 12 of class, weight and size, the properties, 1 end octet.
    if len(properties.raw) + 20 + TAG_ROOM <= frame_max:
        return body, properties
    raw = original.raw
    outer = original.edit(drop=lambda _: True, add={**added, h.WRAPPED: len(raw)}, fields=_BARE)
    return raw + body, outer


def _left_off_a_copy(name: str) -> bool:
    return h.stays_behind(name) or name in h.SET_ASIDE


def unwrap(body: bytes, properties: Properties) -> tuple[bytes, Properties, Mapping[str, Any]]:
    """Undo `wrap`: body, properties, and our headers, which stand outside where the message was wrapped."""
    found = properties.headers
    size = whole_header(found, h.WRAPPED)
    if size is None or not 0 <= size <= len(body):
        return body, properties, found
    return body[size:], Properties(body[:size]), found


def text_header(found: Mapping[str, Any], name: str, *, most: int | None = None) -> str | None:
    """The header where it is text, of *most* bytes at most, else None."""
    value = found.get(name)
    if not isinstance(value, str) or (most is not None and len(value.encode("utf-8", "replace")) > most):
        return None
    return value


def id_header(found: Mapping[str, Any], name: str) -> str | None:
    """The header where it is an id, else None."""
    return text_header(found, name, most=ID_BYTES)


def whole_header(found: Mapping[str, Any], name: str) -> int | None:
    """The header where it is a whole number, else None."""
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number_header(found: Mapping[str, Any], name: str) -> float | None:
    """The header where it is a finite number, else None."""
    value = found.get(name)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def count_header(found: Mapping[str, Any], name: str, *, least: int = 0) -> int | None:
    """The header where it is a count that can be meant, and one more of it can still be written; else None."""
    value = whole_header(found, name)
    return value if value is not None and least <= value <= MOST_COUNTED else None


def moment_header(found: Mapping[str, Any], name: str) -> float | None:
    """The header where it is a time that a calendar has, in epoch seconds, else None."""
    value = number_header(found, name)
    return value if value is not None and 0 <= value <= LAST_MOMENT else None


def _text(found: Mapping[str, Any], name: str, otherwise: str) -> str:
    value = text_header(found, name)
    return otherwise if value is None else value


def derived_id(*parts: str) -> str:
    """A UUIDv5 of *parts*: the same parts give the same id, in every process.

    Example:
        >>> derived_id("a", "b") == derived_id("a", "b") != derived_id("ab", "")
        True
    """
    named = "".join(f"{len(part)}:{part}" for part in parts)
    # As uuid.uuid5 does, in half the time: each message needs one or two.
    digest = hashlib.sha1(DERIVED_IDS.bytes + named.encode(), usedforsecurity=False).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def result_id(input_id: str | None, worker: str, position: int) -> str | None:
    """The id of a handler's result: derived, so that a repeat repeats it. None where the input has none."""
    return None if input_id is None else derived_id("result", input_id, worker, str(position))


def retry_id(message: Received) -> str | None:
    """What names this message among all retries of its queue, or None where only a random id can.

    From queue, message id, body and properties in canonical form: the broker may re-encode a table on the way (4.x),
    and two different messages may share a message id.
    """
    if message.retry_id is not None:
        return message.retry_id
    properties = message.properties
    if properties.message_id is None:
        return None
    digest = hashlib.sha256(message.body)
    canonical = (
        properties.content_type, properties.content_encoding, properties.priority, properties.correlation_id,
        properties.timestamp, properties.type, properties.app_id,
        # A copy that was moved has lost a literal direct-reply address, and is still the same message.
        None if properties.reply_to == DIRECT_REPLY else properties.reply_to,
        _canonical({n: v for n, v in properties.headers.items()
                    if not (h.is_ours(n) or h.is_broker_owned(n) or n in h.SET_ASIDE)}),
    )  # fmt: skip
    digest.update(repr(canonical).encode("utf-8", "surrogateescape"))
    return derived_id("retry", message.queue, properties.message_id, digest.hexdigest())


def _canonical(value: object) -> object:
    if isinstance(value, Mapping):
        return tuple(sorted((name, _canonical(inner)) for name, inner in value.items()))
    if isinstance(value, (list, tuple)):
        return [_canonical(inner) for inner in value]
    if isinstance(value, datetime):
        return ("time", value.timestamp())
    return (type(value).__name__, repr(value))


def retry_key(place: str, retry_id: str) -> str:
    """The key of what waits: where it goes (a queue, or exchange/routing key) and its retry id."""
    return f"{place}:{retry_id}"
