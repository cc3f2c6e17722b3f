"""URLs for people to read: in logs, errors and listings, without their secrets.

Apart from the reading of URLs, because it has to be right for those that cannot be read.
"""

from __future__ import annotations

import re
from typing import Final

#: Query names whose values may be shown. All others are taken for secrets: drivers have many names for a password.
_HARMLESS: Final = frozenset({
    "cacertfile", "certfile", "keyfile", "verify", "server_name_indication", "heartbeat", "connection_timeout", "vhost",
    "schema", "sslmode", "application_name", "connect_timeout", "target_session_attrs",
    "replicaSet", "authSource", "readPreference", "retryWrites", "directConnection", "tls", "ssl",
})  # fmt: skip

#: The URLs of leveret itself.
_KNOWN: Final = frozenset({
    "amqp", "amqps", "memory", "sqlite", "postgresql", "mongodb", "mongodb+srv", "redis", "rediss",
})  # fmt: skip

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
#: As the drivers of stores take it: perhaps no host at all, a socket's path written with %2F, an empty port.
DRIVER_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.%-]*)(:[0-9]{0,5})?")
#: Lone surrogates are what an environment variable holds in place of bytes that are no UTF-8.
CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
#: A comma parts two URLs only where another one begins: passwords and lists of hosts have commas too.
NEXT_URL = re.compile(r",\s*(?=(?:amqps?|memory)://)", re.IGNORECASE)


def redact(url: str) -> str:
    """*url* with `***` for its password, also where it cannot be read; in doubt more is left out.

    Example:
        >>> redact("amqp://shop:p@s/s#w%:rd@rabbit-1/eu")
        'amqp://shop:***@rabbit-1/eu'
        >>> redact("postgresql://db/shop?schema=leveret&password=secret")
        'postgresql://db/shop?schema=leveret&password=***'
        >>> redact("secret")
        '***'
    """
    return ",".join(_redact(each) for each in NEXT_URL.split(CONTROL.sub("�", url.strip())))


def _redact(url: str) -> str:
    if url == ":memory:":
        return url
    scheme, found, rest = url.partition("://")
    if not found or not _SCHEME.fullmatch(scheme):
        # Without a scheme nobody can say what this is: a secret's file may hold the bare password.
        return "***"
    if scheme.lower() not in _KNOWN:
        # The rules below are those of our own URLs; tgram:// has its token where others have a host.
        return f"{scheme}://***"
    if scheme.lower() == "sqlite" and rest.startswith("/"):
        return f"{scheme}://{_redact_query(rest)}"
    before, at, after = rest.rpartition("@")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if not at and "#" not in rest and all(DRIVER_HOST.fullmatch(host) for host in authority.split(",")):
        return f"{scheme}://{_redact_query(rest)}"
    user, colon, _ = (before if at else authority).partition(":")
    # A user name with one of these may be the beginning of something else; redis:// takes a password for a user.
    if re.search(r"[/?#@]", user) or not (colon or (at and not scheme.lower().startswith("redis"))):
        user, colon = "***", ""
    shown = f"{scheme}://{user}{':***' if colon else ''}"
    # An "@" in a query may be part of a password there: what comes behind it may be the rest of that password.
    if not at or "=" in before.partition("?")[2]:
        return shown
    return f"{shown}@{_redact_query(after)}"


def _redact_query(text: str) -> str:
    shown, question, query = text.partition("?")
    separator = question
    for piece in query.split("&") if question else ():
        name, equals, value = piece.partition("=")
        if not equals or name not in _HARMLESS:
            # Nothing behind a secret is shown: its own "&" would look like the end of it.
            label = f"{name}=" if equals and re.fullmatch(r"\w+", name) else ""
            return f"{shown}{separator}{label}***"
        shown, separator = f"{shown}{separator}{name}={value}", "&"
    return shown
