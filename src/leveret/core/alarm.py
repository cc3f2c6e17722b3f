"""Alarms as values: what is told to people, under fixed codes, and the bytes in which it travels."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

#: A condition goes on, or has ended.
State = Literal["holds", "resolved"]

PUBLISH_UNAVAILABLE: Final = "publish_unavailable_after_reconnect"
DLQ_PUBLISH_FAILED: Final = "dlq_publish_failed"
CONSUMER_LOST: Final = "consumer_lost"
CONNECTION_BLOCKED: Final = "connection_blocked"
RETRY_STORE_UNAVAILABLE: Final = "retry_store_unavailable"
RETRY_REPUBLISH_FAILED: Final = "retry_republish_failed"
RETRIES_EXHAUSTED: Final = "retries_exhausted"
POISON_MESSAGE: Final = "poison_message"
RETRIES_LATE: Final = "retries_late"
NO_CONSUMER: Final = "no_consumer"
DEAD_LETTERS_GROWING: Final = "dead_letters_growing"

#: Codes that only warn, unless whoever tells says otherwise.
WARNINGS: Final = frozenset({RETRIES_LATE, NO_CONSUMER, DEAD_LETTERS_GROWING})

#: Characters of a title, of a name in the fields and of a text there: an alarm is a sentence, not a log file.
_LONGEST_TITLE: Final = 500
_LONGEST_NAME: Final = 100
_LONGEST_TEXT: Final = 1000
#: Fields of one alarm.
_MOST_FIELDS: Final = 50
#: Characters of a code or severity: with `alarm.` in front both must fit into a routing key of 255 bytes.
_LONGEST_WORD: Final = 100

#: User and password of a URL, or a token alone: all up to the last `@` of the word.
_CREDENTIALS = re.compile(r"(?<=://)[^\s\"']*@")
_NO_WORD = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A condition that somebody should know of.

    `about` names what it concerns (a worker, a queue, a namespace): one alarm a code, thing and window.
    """

    code: str
    title: str
    about: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: None: CRITICAL, but for the codes that only warn.
    severity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alarm as it is told: what, of whom, since when and how often. All of it is bounded, and plain JSON."""

    code: str
    title: str
    about: str
    fields: Mapping[str, Any]
    severity: str
    state: State
    #: How often the condition was met since it began.
    count: int
    #: When it was met first and last, epoch seconds.
    first: float
    last: float

    @property
    def routing_key(self) -> str:
        """On the alerts exchange.

        Example:
            >>> Alert(code="disk_full", title="", about="", fields={}, severity="CRITICAL", state="holds", count=1,
            ...       first=0.0, last=0.0).routing_key
            'alarm.CRITICAL.disk_full'
        """
        return f"alarm.{self.severity}.{self.code}"

    def body(self, *, namespace: str, host: str) -> bytes:
        """As JSON; times in UTC."""
        return msgspec.json.encode({
            "code": self.code,
            "title": self.title,
            "severity": self.severity,
            "state": self.state,
            "about": self.about,
            "fields": self.fields,
            "count": self.count,
            "first": _moment(self.first),
            "last": _moment(self.last),
            "namespace": namespace,
            "host": host,
        })  # fmt: skip


def alert(alarm: Alarm, *, state: State, count: int, first: float, last: float) -> Alert:
    """An alarm as it is told, made of whatever was given: it never raises for what stands in it.

    Passwords in URLs are left out, text is cut, and what JSON cannot carry is told as text.
    """
    severity = alarm.severity or ("WARNING" if alarm.code in WARNINGS else "CRITICAL")
    return Alert(
        code=_word(alarm.code) or "alarm",
        title=plain_text(alarm.title, _LONGEST_TITLE),
        about=plain_text(alarm.about, _LONGEST_TITLE),
        fields=_plain_fields(alarm.fields),
        severity=_word(severity) or "CRITICAL",
        state=state,
        count=count,
        first=first,
        last=last,
    )


def read_alert(routing_key: str, body: bytes) -> Mapping[str, Any]:
    """What an alert says, for people: every name of `Alert.body`, also where another program wrote it.

    Example:
        >>> told = read_alert("alarm.WARNING.disk", b'{"free": "2 GB"}')
        >>> told["code"], told["severity"], told["title"], told["fields"]
        ('disk', 'WARNING', 'disk', {'free': '2 GB'})
    """
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = body.decode("utf-8", "replace")
    alien = not isinstance(found, dict) or "code" not in found
    _, _, after = routing_key.partition("alarm.")
    severity, dot, code = after.partition(".")
    given: Mapping[str, Any] = found if isinstance(found, dict) else {}
    fields = given.get("fields", {})
    if alien:
        fields = given if isinstance(found, dict) else {"body": found}
    name = str(given.get("code") or (code if dot else routing_key))
    return {
        "code": plain_text(name, _LONGEST_TITLE),
        "title": plain_text(given.get("title") or name, _LONGEST_TITLE),
        "severity": plain_text(given.get("severity") or (severity if dot else "CRITICAL"), _LONGEST_NAME),
        "state": "resolved" if given.get("state") == "resolved" else "holds",
        "about": plain_text(given.get("about") or "", _LONGEST_TITLE),
        "fields": _plain_fields(fields if isinstance(fields, dict) else {"fields": fields}),
        "count": given.get("count") if isinstance(given.get("count"), int) else 1,
        "first": plain_text(given.get("first") or "", _LONGEST_NAME),
        "last": plain_text(given.get("last") or "", _LONGEST_NAME),
        "namespace": plain_text(given.get("namespace") or "", _LONGEST_NAME),
        "host": plain_text(given.get("host") or "", _LONGEST_NAME),
    }


def plain_text(value: object, most: int = _LONGEST_TEXT) -> str:
    """*value* as text that may be shown anywhere: cut, without the passwords of URLs, and always UTF-8.

    Example:
        >>> plain_text("no answer from amqp://shop:secret@rabbit-1")
        'no answer from amqp://***@rabbit-1'
    """
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:  # noqa: BLE001 - a value of the user's that cannot say what it is
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    # Cut twice: a URL must be whole when its password is looked for.
    text = text[: 8 * most]
    if "://" in text:
        text = _CREDENTIALS.sub("***@", text)
    text = text if len(text) <= most else f"{text[: most - 1]}…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _plain_fields(fields: object) -> Mapping[str, Any]:
    plain: dict[str, Any] = {}
    try:
        given = dict(fields).items() if isinstance(fields, Mapping) else {"fields": fields}.items()
    except Exception as error:  # noqa: BLE001 - a mapping of the user's, perhaps one that another thread changes
        given = {"fields": f"{type(error).__name__}: {plain_text(error)}"}.items()
    for name, value in given:
        if len(plain) == _MOST_FIELDS:
            break
        plain[plain_text(name, _LONGEST_NAME)] = _plain(value)
    return plain


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else plain_text(value)
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else plain_text(value)
    if isinstance(value, Mapping | list | tuple):
        try:
            encoded = msgspec.json.encode(value, enc_hook=plain_text)
            if len(encoded) <= _LONGEST_TEXT and b"://" not in encoded:
                return msgspec.json.decode(encoded)
        except Exception:  # noqa: BLE001 - told as text instead, just below
            return plain_text(value)
    return plain_text(value)


def _word(value: object) -> str:
    """A word of a routing key: without dots, blanks and what a pattern would read as a sign."""
    return _NO_WORD.sub("_", plain_text(value, _LONGEST_WORD).replace("…", ""))


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        # A clock that stands nowhere: the number says at least that.
        return str(seconds)
