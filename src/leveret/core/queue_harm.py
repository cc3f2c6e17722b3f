"""What a queue's arguments do to messages: the ones that take some away are refused, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_LENGTH_LIMITS: Final = ("x-max-length", "x-max-length-bytes")
#: What a full queue may do without losing anything: say no.
_REFUSING: Final = ("reject-publish", "reject-publish-dlx")


def harm(argument: str, value: Any, arguments: Mapping[str, Any]) -> str | None:
    """What *argument* does to messages among *arguments*, None where it takes none away.

    Args:
        argument: its name, or `durable`, `auto_delete`, `exclusive`.
        value: what it is set to.
        arguments: all of the queue's, since some are harmless only together.

    Example:
        >>> harm("x-message-ttl", 60000, {"x-message-ttl": 60000})
        'messages that wait for 60000 ms are taken away'
    """
    if argument == "durable" and not value:
        return "it is gone after a restart of the broker, with all that lies in it"
    if argument == "auto_delete" and value:
        return "it is deleted, with all that lies in it, when its last consumer leaves"
    if argument == "exclusive" and value:
        return "it is deleted, with all that lies in it, when one certain connection ends"
    if argument == "x-expires" and value is not None:
        return f"it is deleted when nobody used it for {value} ms"
    if argument == "x-message-ttl" and value is not None:
        return f"messages that wait for {value} ms are taken away"
    limited = any(arguments.get(limit) is not None for limit in _LENGTH_LIMITS)
    if (
        argument in {*_LENGTH_LIMITS, "x-overflow"}
        and limited
        and arguments.get("x-overflow") not in _REFUSING
    ):
        return "when it is full, its oldest messages are dropped (x-overflow is not reject-publish)"
    finite = isinstance(value, int) and value >= 0
    if argument == "x-delivery-limit" and finite and arguments.get("x-dead-letter-exchange") is None:
        return f"a message that came back {value} times is deleted (there is no x-dead-letter-exchange)"
    return None
