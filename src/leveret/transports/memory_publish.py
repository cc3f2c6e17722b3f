"""What a broker looks at in a publish beside its address: sizes, who claims to have sent it, how long it may live."""

from __future__ import annotations

from typing import Final, NamedTuple

from leveret.core import headers as h
from leveret.core.errors import PublishRefused
from leveret.core.message import Outgoing

#: RabbitMQ 3.x refuses a body over 128 MiB.
_MOST_BODY: Final = 128 * 1024 * 1024
#: A header frame is 7 bytes of frame header, 12 of class, weight and size, the properties, and 1 end octet.
_HEADER_FRAME: Final = 20
#: What the tag takes in a header table: the table's own length, name, type, length, and up to 32 characters.
_TAG_ENTRY: Final = 4 + 1 + len(h.TAG) + 1 + 4 + 32
#: Bits of the property flags, AMQP 0-9-1 section 4.2.6.1.
_HAS_EXPIRATION: Final = 0x0100
_HAS_USER_ID: Final = 0x0010


class Looked(NamedTuple):
    """What looking at a publish has shown."""

    #: As it is stored.
    message: Outgoing
    #: Seconds it may live, None for ever.
    ttl: float | None = None
    #: Routing keys beside its own.
    further_keys: tuple[str, ...] = ()


def look_at(message: Outgoing, *, user: str, frame_max: int) -> Looked:
    """Look at a publish by a connection of *user* with that frame size.

    Raises:
        PublishRefused: with RabbitMQ's code: 406 for a body, user-id, expiration or CC that it would not have, 501 for
            properties that fit no frame.
    """
    raw = message.properties.raw
    if len(message.body) > _MOST_BODY:
        raise PublishRefused(
            f"406 PRECONDITION_FAILED - message size {len(message.body)} is larger than the configured max size "
            f"{_MOST_BODY}. Publish where the data lies instead",
            code=406,
        )
    check_frame(message, frame_max=frame_max)
    # Nearly all messages have none of these, and decoding properties costs more than the rest of a publish.
    if not int.from_bytes(raw[:2]) & (_HAS_EXPIRATION | _HAS_USER_ID) and b"CC" not in raw:
        return Looked(message)
    _check_user(message, user)
    further = (*_copies(message, "CC"), *_copies(message, "BCC"))
    ttl = _seconds_to_live(message)
    if message.properties.header("BCC") is not None:
        message = message._replace(properties=message.properties.edit(drop=("BCC",)))
    return Looked(message, ttl, further)


def check_frame(message: Outgoing, *, frame_max: int) -> None:
    """A publish whose properties, tag included, do not fit a frame never leaves its client.

    Raises:
        PublishRefused: 501.
    """
    size = len(message.properties.raw)
    if size + _HEADER_FRAME + (_TAG_ENTRY if message.mandatory else 0) > frame_max:
        raise PublishRefused(
            f"501 FRAME_ERROR - {size} bytes of properties do not fit a frame of {frame_max}. Carry less in them",
            code=501,
        )


def _check_user(message: Outgoing, user: str) -> None:
    claimed = message.properties.user_id
    if claimed is not None and claimed != user:
        raise PublishRefused(
            f"406 PRECONDITION_FAILED - user_id property set to {claimed!r} but authenticated user was {user!r}. Leave "
            "it out",
            code=406,
        )


def _seconds_to_live(message: Outgoing) -> float | None:
    expiration = message.properties.expiration
    if expiration is None:
        return None
    if not (expiration.isascii() and expiration.isdigit()):
        raise PublishRefused(
            f"406 PRECONDITION_FAILED - invalid expiration {expiration!r}: expected milliseconds, in digits",
            code=406,
        )
    return int(expiration) / 1000


def _copies(message: Outgoing, name: str) -> list[str]:
    keys = message.properties.header(name)
    if keys is None:
        return []
    if not isinstance(keys, list):
        raise PublishRefused(
            f"406 PRECONDITION_FAILED - header {name} is {keys!r}: expected a list of routing keys", code=406
        )
    return [key for key in keys if isinstance(key, str)]
