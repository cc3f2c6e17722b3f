"""Requests and replies as they travel, so that both ends say and read the same."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from leveret.core import headers as h
from leveret.core.envelope import Cause
from leveret.core.errors import BadPayload, RpcRemoteError
from leveret.core.message import DIRECT_REPLY, Outgoing, text_header
from leveret.core.payload import Undecodable, decoder, encode
from leveret.core.properties import Properties

#: RabbitMQ counts expirations in 32 bits.
_LONGEST_MS: Final = 2**32 - 1
#: What the address of a direct reply-to begins with; it is no queue.
_DIRECT: Final = f"{DIRECT_REPLY}."

_decode: Final = decoder(dict)


class Answer(NamedTuple):
    """What a call came to."""

    payload: dict[str, Any]
    #: Who gave it, host/pid; empty where that is not told.
    by: str
    #: From the request's way out to its answer.
    seconds: float


def written(payload: Any, whose: str) -> bytes:
    """*payload* as a JSON object; None is an empty one.

    Args:
        payload: a dict, a dataclass or a pydantic model.
        whose: what it is, for the error's text: `"price" is called with`.

    Raises:
        BadPayload: it cannot be written, or is no object.

    Example:
        >>> written([1], '"price" is called with')
        Traceback (most recent call last):
        leveret.core.errors.BadPayload: "price" is called with a JSON object, and payload is a list. Nothing was sent.
           Write a dict, a dataclass or a pydantic model.
    """
    if payload is None:
        return b"{}"
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        body = encode(payload, type=whose.split('"')[1])
        if body.startswith(b"{"):
            return body
    raise BadPayload(
        f"{whose} a JSON object, and payload is a {type(payload).__name__}. Nothing was sent.\n"
        "   Write a dict, a dataclass or a pydantic model."
    )


def request(queue: str, body: bytes, *, correlation_id: str, message_id: str, seconds: float) -> Outgoing:
    """A request to *queue* that nobody starts on after so many seconds."""
    milliseconds = min(max(1, math.ceil(seconds * 1000)), _LONGEST_MS)
    properties = Properties.build(
        content_type="application/json",
        headers={h.TIMEOUT_MS: milliseconds, h.ACCEPTS: h.ACCEPTS_ERROR},
        correlation_id=correlation_id,
        reply_to=DIRECT_REPLY,
        expiration=str(milliseconds),
        message_id=message_id,
    )
    return Outgoing("", queue, body, properties)


def reply(to: str, body: bytes, *, correlation_id: str | None, by: str) -> Outgoing:
    """The answer to a request. It is worth nothing once its caller is gone, and so not kept through a restart."""
    return _reply(to, body, {h.ANSWERED_BY: by}, correlation_id)


def error_reply(to: str, cause: Cause, *, correlation_id: str | None, by: str) -> Outgoing:
    """The answer to a request that failed, for a caller that understands it."""
    kind = cause.error or "Error"
    said = {"message": cause.reason.removeprefix(f"{kind}: "), "traceback": cause.traceback}
    body = encode({name: _sound(text) for name, text in said.items()}, type="error")
    return _reply(to, body, {h.ANSWERED_BY: by, h.ERROR: kind}, correlation_id)


def _reply(to: str, body: bytes, headers: dict[str, Any], correlation_id: str | None) -> Outgoing:
    properties = Properties.build(
        content_type="application/json", headers=headers, delivery_mode=1, correlation_id=correlation_id
    )
    # Before 4.2 RabbitMQ returns what is mandatory from such an address even where somebody listens there.
    return Outgoing("", to, body, properties, mandatory=not to.startswith(_DIRECT))


def _sound(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def read(queue: str, body: bytes, properties: Properties, *, seconds: float) -> Answer:
    """What a reply from *queue* says that came after so many seconds.

    Raises:
        RpcRemoteError: that something went wrong over there, or nothing that can be read.
    """
    found = properties.headers
    try:
        payload = _decode(body) if body else {}
    except Undecodable as error:
        raise _remote(queue, "Undecodable", f"its answer cannot be read: {error}") from error
    kind = text_header(found, h.ERROR)
    if kind is not None:
        message, traceback = payload.get("message"), payload.get("traceback")
        raise _remote(
            queue,
            kind,
            message if isinstance(message, str) else "",
            traceback if isinstance(traceback, str) else "",
        )
    return Answer(payload, text_header(found, h.ANSWERED_BY) or "", seconds)


def _remote(queue: str, kind: str, message: str, traceback: str = "") -> RpcRemoteError:
    return RpcRemoteError(
        f"{queue} answered with an error: {kind}: {message}", type=kind, message=message, traceback=traceback
    )
