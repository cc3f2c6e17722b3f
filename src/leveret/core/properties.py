"""A message's AMQP properties, kept as the bytes they came in: what comes back is the same message.

The bytes are those of a content header frame (AMQP 0-9-1, section 4.2.6.1): flags that say which properties are there,
then the properties in a fixed order. They are decoded when somebody asks, and edited without being decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from leveret.core.errors import BadPayload
from leveret.core.table import (
    decode_entry,
    decode_table,
    edit_table,
    encode_table,
    header_name,
    short_string,
    sort_table,
    text,
    timestamp_seconds,
)

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def check_short(value: str, name: str) -> str:
    """*value*, if AMQP can carry it where a short string is meant: an exchange, a queue, a routing key.

    Raises:
        BadPayload: over 255 bytes in UTF-8, a lone surrogate, or no text; says *name* and the length in bytes.

    Example:
        >>> check_short("shop.events", "exchange")
        'shop.events'
    """
    short_string(value, name)
    return value


class Properties:
    r"""The properties of a message as AMQP writes them. Immutable, equal and hashed by their bytes.

    `Properties(raw)` takes whatever bytes a broker or a store gave and never raises. `Properties.build` makes new ones
    and refuses what AMQP cannot carry; `edit` makes a changed copy.

    Reading never raises either. Text that is not UTF-8 shows the bytes in question as `\xff`, so it can be printed and
    stored; `raw` has the bytes. A property that is absent is None; so is one that is cut off, and all behind it.

    Example:
        >>> order = Properties.build(message_id="o-1", headers={"tries": 3})
        >>> order.message_id, order.headers
        ('o-1', {'tries': 3})
        >>> order.edit(drop={"tries"}, fields={"priority": 5})
        Properties(delivery_mode=2, priority=5, message_id='o-1')
    """

    __slots__ = ("_bounds", "_numbers", "_raw")

    #: Where each property stands, found when first asked for; see `_locate`.
    _bounds: list[int]
    _numbers: Mapping[str, int] | None

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._numbers = None

    @classmethod
    def build(
        cls,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Mapping[str, Any] | None = None,
        delivery_mode: int | None = 2,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: int | datetime | None = None,
        type: str | None = None,
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> Properties:
        """The properties given; those that are None, and empty headers, are left out.

        Args:
            headers: text, numbers, bytes, times, None, and mappings and lists of them; see `leveret.core.table`.
            delivery_mode: 2 is persistent, 1 transient.
            priority: 0 to 255.
            expiration: milliseconds, as digits.
            timestamp: seconds since 1970, or a datetime with a time zone, whose fraction of a second is cut off.

        Raises:
            BadPayload: what AMQP cannot carry: text over 255 bytes in UTF-8, an integer of more than 64 bits, NaN, a
                time without a zone, an unknown type …; says which property or header, and why. Nothing was sent.

        Example:
            >>> Properties.build(headers={"a": [1, {"b": 1j}]})
            Traceback (most recent call last):
            leveret.core.errors.BadPayload: headers["a"][1]["b"]: complex is no type that AMQP headers carry; ...
        """
        flags = 0
        raw = b""
        # Written out in the order of _FIELDS, which is that on the wire: a loop over them takes twice as long.
        if content_type is not None:
            flags |= 0x8000
            raw = (
                _JSON_FIRST
                if content_type == "application/json"
                else short_string(content_type, "content_type")
            )
        if content_encoding is not None:
            flags |= 0x4000
            raw += short_string(content_encoding, "content_encoding")
        if headers:
            flags |= 0x2000
            raw += _encode_headers(headers, "headers")
        if delivery_mode is not None:
            flags |= 0x1000
            raw += b"\x02" if delivery_mode == 2 else _encode_delivery_mode(delivery_mode, "delivery_mode")
        if priority is not None:
            flags |= 0x0800
            raw += _encode_priority(priority, "priority")
        if correlation_id is not None:
            flags |= 0x0400
            raw += short_string(correlation_id, "correlation_id")
        if reply_to is not None:
            flags |= 0x0200
            raw += short_string(reply_to, "reply_to")
        if expiration is not None:
            flags |= 0x0100
            raw += short_string(expiration, "expiration")
        if message_id is not None:
            flags |= 0x0080
            raw += short_string(message_id, "message_id")
        if timestamp is not None:
            flags |= 0x0040
            raw += _encode_timestamp(timestamp, "timestamp")
        if type is not None:
            flags |= 0x0020
            raw += short_string(type, "type")
        if user_id is not None:
            flags |= 0x0010
            raw += short_string(user_id, "user_id")
        if app_id is not None:
            flags |= 0x0008
            raw += short_string(app_id, "app_id")
        if cluster_id is not None:
            flags |= 0x0004
            raw += short_string(cluster_id, "cluster_id")
        return cls(flags.to_bytes(2) + raw)

    @property
    def raw(self) -> bytes:
        """The property flags and the property list, exactly as they came."""
        return self._raw

    @property
    def encoded_size(self) -> int:
        """How many bytes the properties take on the wire."""
        return len(self._raw)

    @property
    def is_plain_json(self) -> bool:
        """Whether the content type is `application/json`, as it stands there, and no content encoding is given.

        Nearly all messages say so, and it shows without a look at any other property.

        Example:
            >>> Properties.build(content_type="application/json", message_id="o-1").is_plain_json
            True
        """
        raw = self._raw
        # One more octet of flags would stand where the content type is looked for.
        return raw.startswith(_JSON_FIRST, 2) and raw[0] & 0xC0 == 0x80 and not raw[1] & 1

    @property
    def content_type(self) -> str | None:
        """The MIME type of the body."""
        return self._text("content_type")

    @property
    def content_encoding(self) -> str | None:
        """How the body is compressed, such as `gzip`."""
        return self._text("content_encoding")

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers, decoded afresh each time: a change to what this gives changes nothing here.

        Where they cannot be read any further, what follows is one `RawValue` under the name of the header that
        stopped it.
        """
        start, end = self._span("headers")
        return decode_table(self._raw, start + 4, end)

    @property
    def delivery_mode(self) -> int | None:
        """2 is persistent, 1 transient."""
        return self._number("delivery_mode")

    @property
    def priority(self) -> int | None:
        """0 to 255."""
        return self._number("priority")

    @property
    def correlation_id(self) -> str | None:
        """Which request a reply belongs to."""
        return self._text("correlation_id")

    @property
    def reply_to(self) -> str | None:
        """The queue that a reply is to go to."""
        return self._text("reply_to")

    @property
    def expiration(self) -> str | None:
        """Milliseconds after which the broker may drop the message, as text."""
        return self._text("expiration")

    @property
    def message_id(self) -> str | None:
        """The id that the publisher gave."""
        return self._text("message_id")

    @property
    def timestamp(self) -> int | None:
        """The number on the wire: seconds since 1970, though some publishers write milliseconds."""
        return self._number("timestamp")

    @property
    def type(self) -> str | None:
        """The message type."""
        return self._text("type")

    @property
    def user_id(self) -> str | None:
        """The user who published it, as the broker has checked."""
        return self._text("user_id")

    @property
    def app_id(self) -> str | None:
        """The application that published it."""
        return self._text("app_id")

    @property
    def cluster_id(self) -> str | None:
        """Reserved by AMQP; some publishers set it all the same."""
        return self._text("cluster_id")

    def header(self, name: str, default: Any = None) -> Any:
        """The value of the header *name*, decoded alone; *default* where it is absent. Never raises.

        Example:
            >>> Properties.build(headers={"tries": 3}).header("tries")
            3
        """
        key = _exact(name)
        if key is None:
            return self.headers.get(name, default)
        if key not in self._raw:
            return default
        start, end = self._span("headers")
        return decode_entry(self._raw, start + 4, end, key, default)

    def in_order(self) -> bytes:
        """The bytes with the headers in the order of their names, and an empty table left off. Never raises.

        RabbitMQ sorts the headers of a message where it writes one of its own among them, so two deliveries of one
        message may differ in their order.

        Example:
            >>> (
            ...     Properties.build(headers={"b": 1, "a": 2}).in_order()
            ...     == Properties.build(headers={"a": 2, "b": 1}).in_order()
            ... )
            True
        """
        raw = self._raw
        start, end = self._span("headers")
        if not end:
            return raw
        if end - start == 4:
            return self._assembled(b"", _NOTHING)
        return raw[: start + 4] + sort_table(raw, start + 4, end) + raw[end:]

    def edit(
        self,
        *,
        drop: Collection[str] | Callable[[str], bool] = (),
        add: Mapping[str, Any] = _NOTHING,
        fields: Mapping[str, Any] = _NOTHING,
    ) -> Properties:
        """A copy without some headers, with others added, and with other properties set or taken off.

        Every other byte stays as it is and where it is, whether anybody can decode it or not. Headers behind one that
        nobody can step over (a letter that AMQP does not know) cannot be dropped and stay; what is added then stands
        in front of it. A table that loses its last header goes; one that was empty stays. Of properties that are cut
        off, the readable ones are kept, so that the copy can always be sent.

        Args:
            drop: names of headers, or a function that says of a name whether it goes.
            add: headers, appended; one that exists is replaced.
            fields: other properties by the names of `build`, None takes one off: `{"expiration": None}`.

        Raises:
            BadPayload: what AMQP cannot carry in *add* or *fields*, as in `build`. Never for what is already there.

        Example:
            >>> Properties.build(headers={"a": 1, "b": 2}).edit(drop={"a"}, add={"c": 3}).headers
            {'b': 2, 'c': 3}
        """
        raw = self._raw
        start, end = self._span("headers")
        added = encode_table(add) if add else b""
        if end:
            entries = edit_table(raw, start + 4, end, _unwanted(drop, add), added)
            table = len(entries).to_bytes(4) + entries if entries or end - start == 4 else b""
        else:
            table = len(added).to_bytes(4) + added if added else b""
        # The usual case, a header put on or taken off: what stands around the table is not looked at.
        if table and end and not fields and self._is_whole():
            return Properties(raw[:start] + table + raw[end:])
        return Properties(self._assembled(table, fields))

    def _assembled(self, table: bytes, fields: Mapping[str, Any]) -> bytes:
        """These properties with another header table (b"": none), and with *fields* set or taken off."""
        for name in fields:
            if name not in _NAMES or name == "headers":
                raise TypeError(
                    f"fields: no property to set is called {name!r}; headers are for drop and add"
                )
        raw = self._raw
        flags = 0
        parts = [b"", b""]
        for field in _FIELDS:
            name = field.name
            if name == "headers":
                data = table
            elif name in fields:
                value = fields[name]
                data = b"" if value is None else field.encode(value, name)
            else:
                start, end = self._span(name)
                data = raw[start:end]
            if data:
                flags |= field.flag
                parts.append(data)
        if self._is_whole():
            # What a later AMQP defines stays, flags and properties, though nobody here can read it.
            flags |= int.from_bytes(raw[:2]) & _UNDEFINED
            parts[1] = raw[2 : self._bounds[0]]
            parts.append(raw[self._bounds[-1] :])
        parts[0] = flags.to_bytes(2)
        return b"".join(parts)

    def _span(self, name: str) -> tuple[int, int]:
        """Start and end of a property, length in front included; 0 and 0 where it is absent or cut off."""
        numbers = self._numbers
        if numbers is None:
            numbers, self._bounds = _locate(self._raw)
            self._numbers = numbers
        number = numbers.get(name)
        bounds = self._bounds
        if number is None or number + 1 >= len(bounds):
            return 0, 0
        return bounds[number], bounds[number + 1]

    def _is_whole(self) -> bool:
        """Whether all is there that the flags announce. Asked after a `_span`."""
        return len(self._bounds) > len(self._numbers or ())

    def _text(self, name: str) -> str | None:
        start, end = self._span(name)
        return text(self._raw[start + 1 : end]) if end else None

    def _number(self, name: str) -> int | None:
        start, end = self._span(name)
        return int.from_bytes(self._raw[start:end]) if end else None

    def __eq__(self, other: object) -> bool:
        return self._raw == other._raw if isinstance(other, Properties) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in _NAMES if self._span(name)[1]]
        if unread := self._raw[self._bounds[-1] if self._bounds else 0 :]:
            shown.append(f"{unread=}")
        return f"Properties({', '.join(shown)})"


class _Field(NamedTuple):
    """A property of AMQP's basic class, as `build` and `edit` write it and `_locate` steps over it."""

    name: str
    flag: int
    #: Bytes that it takes, or how many bytes say it, where that is negative.
    width: int
    encode: Callable[[Any, str], bytes]


def _encode_headers(value: Mapping[str, Any], name: str) -> bytes:
    if not isinstance(value, Mapping):
        raise BadPayload(f"{name}: expected a mapping, got {type(value).__name__}")
    entries = encode_table(value)
    return len(entries).to_bytes(4) + entries


def _encode_delivery_mode(value: int, name: str) -> bytes:
    if isinstance(value, bool) or value not in (1, 2):
        raise BadPayload(f"{name}={_shown(value)}: expected 2 (persistent) or 1 (transient)")
    return b"\x02" if value == 2 else b"\x01"


def _encode_priority(value: int, name: str) -> bytes:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 255:
        raise BadPayload(f"{name}={_shown(value)}: expected a whole number from 0 to 255")
    return value.to_bytes(1)


def _encode_timestamp(value: int | datetime, name: str) -> bytes:
    if isinstance(value, datetime):
        value = timestamp_seconds(value, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**64:
        raise BadPayload(
            f"{name}={_shown(value)}: expected whole seconds from 0 to 2^64-1, or a datetime with a time zone"
        )
    return value.to_bytes(8)


def _shown(value: object) -> str:
    """*value* for an error. Python refuses to write out an int of thousands of digits, and nobody wants to read it."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


#: In the order on the wire, which is also that of the flags, from the highest bit down.
_FIELDS: Final = (
    _Field("content_type", 0x8000, -1, short_string),
    _Field("content_encoding", 0x4000, -1, short_string),
    _Field("headers", 0x2000, -4, _encode_headers),
    _Field("delivery_mode", 0x1000, 1, _encode_delivery_mode),
    _Field("priority", 0x0800, 1, _encode_priority),
    _Field("correlation_id", 0x0400, -1, short_string),
    _Field("reply_to", 0x0200, -1, short_string),
    _Field("expiration", 0x0100, -1, short_string),
    _Field("message_id", 0x0080, -1, short_string),
    _Field("timestamp", 0x0040, 8, _encode_timestamp),
    _Field("type", 0x0020, -1, short_string),
    _Field("user_id", 0x0010, -1, short_string),
    _Field("app_id", 0x0008, -1, short_string),
    _Field("cluster_id", 0x0004, -1, short_string),
)
#: The content type of nearly all messages, where it stands as the first property.
_JSON_FIRST: Final = short_string("application/json", "content_type")
_NAMES: Final = tuple(field.name for field in _FIELDS)
#: Flags that AMQP 0-9-1 gives no property to: one that is free, and the one that says another 16 flags follow.
_UNDEFINED: Final = 0x0003


# The messages of one publisher all have the same flags, so what they say is remembered.
@lru_cache(maxsize=256)
def _announced(flags: int) -> tuple[Mapping[str, int], tuple[int, ...]]:
    """The properties that *flags* announce: their numbers by name, and their widths."""
    there = [field for field in _FIELDS if flags & field.flag]
    numbers = {field.name: number for number, field in enumerate(there)}
    return numbers, tuple(field.width for field in there)


def _locate(raw: bytes) -> tuple[Mapping[str, int], list[int]]:
    """The number of each property that the flags announce, and where each begins and the last one ends.

    Where properties are cut off, the bounds are fewer: the last one is then the end of the last that is whole.
    """
    size = len(raw)
    numbers, widths = _announced(int.from_bytes(raw[:2]))
    at = 2
    # The lowest flag says that another 16 flags follow: those of a later AMQP, whose properties stand behind ours.
    while at <= size and raw[at - 1] & 1:
        at += 2
    bounds = [at]
    for width in widths:
        if width > 0:
            at += width
        elif width == -4:
            at += 4 + int.from_bytes(raw[at : at + 4])
        elif at < size:
            at += 1 + raw[at]
        else:
            break
        bounds.append(at)
    while bounds and bounds[-1] > size:
        bounds.pop()
    return numbers, bounds


# The same few names are asked for, put on and taken off with every message.
@lru_cache(maxsize=1024)
def _exact(name: str) -> bytes | None:
    r"""*name* as its bytes stand in a table; None where it may show bytes that are not UTF-8, as `\xff`."""
    return None if "\\" in name else name.encode("utf-8", "surrogatepass")


def _unwanted(
    drop: Collection[str] | Callable[[str], bool], add: Mapping[str, Any]
) -> Callable[[bytes], bool]:
    """Whether an entry of that name goes: *drop* says so, or another one takes its place."""
    if callable(drop):
        return lambda name: (shown := header_name(name)) in add or drop(shown)
    if isinstance(drop, str):
        raise TypeError(f"drop={drop!r}: expected a collection of names, not one name")
    exact = {*map(_exact, drop), *map(_exact, add)}
    if None not in exact:
        return exact.__contains__
    names = {*drop, *add}
    return lambda name: header_name(name) in names


#: No property at all.
EMPTY: Final = Properties(b"\x00\x00")
