"""The AMQP field table, as RabbitMQ speaks it: encoded strictly, decoded tolerantly, edited without being decoded.

| Python           | letter written          | letters read                                                    |
|------------------|-------------------------|-----------------------------------------------------------------|
| `bool`           | `t`                     | `t`                                                             |
| `int`            | `I` (32 bit), else `l`  | `b` `s` `I` `l` `L` signed, `B` `u` `i` unsigned                |
| `float`          | `d`                     | `d` `f`                                                         |
| `Decimal`        | `D`                     | `D`                                                             |
| `str`            | `S`                     | `S`, where it is UTF-8                                          |
| `bytes` and alike| `x`                     | `x`, and `S` where it is not UTF-8                              |
| `datetime`       | `T`, whole seconds      | `T` up to the year 9999; a later one is an `int`                |
| `None`           | `V`                     | `V`                                                             |
| mapping          | `F`                     | `F`                                                             |
| list, tuple      | `A`                     | `A`                                                             |

A table on the wire is a length of 4 bytes and its entries; what is called a table here is the entries alone. Of entries
that share a name the first one counts, as RabbitMQ has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from leveret.core.errors import BadPayload

#: Tables and arrays within each other, below the headers. Enough for anybody, and far from Python's recursion limit.
DEEPEST: Final = 100

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The last second that a datetime can hold.
_LAST_SECOND: Final = 253_402_300_799

#: The letter of most values.
_TEXT: Final = ord("S")

_OCTETS = tuple(bytes((number,)) for number in range(256))
_LONG_HEAD = Struct(">cI").pack
_INT32 = Struct(">ci").pack
_INT64 = Struct(">cq").pack
_DOUBLE = Struct(">cd").pack
_DECIMAL = Struct(">cBi").pack
_TIMESTAMP = Struct(">cQ").pack
_LENGTH = Struct(">I").unpack_from


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value that cannot be decoded: its type letter, and its bytes as they came.

    Of an unknown letter nobody knows how long its value is, so `data` is then all that follows in that table or array.
    A table or array nested deeper than `DEEPEST` is given as its bytes. An entry that ends within its name has the
    kind "", and stands under the name "".
    """

    kind: str
    data: bytes


class _Unfit(Exception):
    """What AMQP cannot carry, with the way to it from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def short_string(value: str, name: str) -> bytes:
    r"""*value* as AMQP's short string: one length byte, then UTF-8.

    Raises:
        BadPayload: over 255 bytes in UTF-8, a lone surrogate, or no text at all; says *name* and the length in bytes.

    Example:
        >>> short_string("é", "routing key")
        b'\x02\xc3\xa9'
    """
    try:
        data = value.encode()
        return _OCTETS[len(data)] + data
    except (IndexError, UnicodeEncodeError, AttributeError):
        # Not by way of `_short`: every message has some of them.
        try:
            return _short(value)
        except _Unfit as fault:
            raise BadPayload(f"{name}: {fault.reason}") from None


def _short(value: str) -> bytes:
    try:
        data = value.encode()
        return _OCTETS[len(data)] + data
    except IndexError:
        raise _Unfit(
            f"{len(data)} bytes in UTF-8, and AMQP carries at most 255 here; shorten {quoted(value)}"
        ) from None
    except UnicodeEncodeError as fault:
        raise _Unfit(_lone_surrogate(fault)) from None
    except AttributeError:
        raise _Unfit(f"expected text, got {type(value).__name__}") from None


def _lone_surrogate(fault: UnicodeEncodeError) -> str:
    return f"a lone surrogate at position {fault.start}, which UTF-8 cannot write; replace it"


def quoted(text: str) -> str:
    """*text* in quotes as an error shows it: cut where it is long, and printable whatever it holds."""
    shown = text if len(text) <= 40 else text[:40] + "…"
    return '"' + shown.encode("utf-8", "backslashreplace").decode() + '"'


def encode_table(entries: Mapping[str, Any]) -> bytes:
    r"""The entries of a table, in the order of *entries*, without the length in front.

    Raises:
        BadPayload: what AMQP or RabbitMQ cannot carry, with its path, as in `headers["a"][2]`.

    Example:
        >>> encode_table({"a": 1})
        b'\x01aI\x00\x00\x00\x01'
    """
    try:
        return _table(entries, 0)
    except _Unfit as fault:
        steps = fault.path[::-1]
        path = "".join(steps) if len(steps) <= 8 else "".join(steps[:8]) + "…"
        raise BadPayload(f"headers{path}: {fault.reason}") from None


# The same few header names stand on every message, so their encoding is remembered.
@lru_cache(maxsize=1024)
def _name(name: str) -> bytes:
    try:
        return _short(name)
    except _Unfit as fault:
        raise _Unfit(f"the name of a header: {fault.reason}") from None


def _table(entries: Mapping[str, Any], depth: int) -> bytes:
    parts = []
    for name, value in entries.items():
        try:
            parts.append(_name(name))
            parts.append(_value(value, depth))
        except _Unfit as fault:
            fault.path.append(f"[{quoted(name) if isinstance(name, str) else type(name).__name__}]")
            raise
    return b"".join(parts)


def _array(items: list[Any] | tuple[Any, ...], depth: int) -> bytes:
    parts = []
    for position, item in enumerate(items):
        try:
            parts.append(_value(item, depth))
        except _Unfit as fault:
            fault.path.append(f"[{position}]")
            raise
    return b"".join(parts)


def _value(value: object, depth: int) -> bytes:
    if isinstance(value, str):
        try:
            data = value.encode()
        except UnicodeEncodeError as fault:
            raise _Unfit(_lone_surrogate(fault)) from None
        return _LONG_HEAD(b"S", len(data)) + data
    # A bool is an int to Python and something else on the wire, so it comes first.
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        if -0x8000_0000 <= value <= 0x7FFF_FFFF:
            return _INT32(b"I", value)
        if -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            return _INT64(b"l", value)
        raise _Unfit(
            f"an integer of {value.bit_length()} bits, and AMQP carries 64 with the sign; send it as text"
        )
    if isinstance(value, bytes):
        return _LONG_HEAD(b"x", len(value)) + value
    if value is None:
        return b"V"
    if isinstance(value, float):
        # RabbitMQ reads floats by a pattern that these do not match, and closes the connection.
        if not math.isfinite(value):
            raise _Unfit(f"{value} is no number that RabbitMQ can read; send it as text or None")
        return _DOUBLE(b"d", value)
    return _rarer_value(value, depth)


def _rarer_value(value: object, depth: int) -> bytes:
    if isinstance(value, (dict, list, tuple, Mapping)):
        if depth >= DEEPEST:
            raise _Unfit(
                f"nested deeper than {DEEPEST} levels, or within itself; flatten it, or send it in the body"
            )
        if isinstance(value, (list, tuple)):
            letter, data = b"A", _array(value, depth + 1)
        else:
            letter, data = b"F", _table(value, depth + 1)
        return _LONG_HEAD(letter, len(data)) + data
    if isinstance(value, datetime):
        return _TIMESTAMP(b"T", _seconds(value))
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, (bytearray, memoryview)):
        data = bytes(value)
        return _LONG_HEAD(b"x", len(data)) + data
    if isinstance(value, RawValue):
        # Its letter may be one that nobody can walk past: what stood behind it would be lost to every reader.
        return _LONG_HEAD(b"x", len(value.data)) + value.data
    raise _Unfit(
        f"{type(value).__name__} is no type that AMQP headers carry; they carry str, bytes, bool, int, float, Decimal, "
        f"datetime, None, mappings, lists and tuples"
    )


def timestamp_seconds(value: datetime, name: str) -> int:
    """*value* as AMQP writes a timestamp: whole seconds since 1970, fractions cut off.

    Raises:
        BadPayload: *value* has no time zone or lies before 1970; says *name*.
    """
    try:
        return _seconds(value)
    except _Unfit as fault:
        raise BadPayload(f"{name}: {fault.reason}") from None


def _seconds(value: datetime) -> int:
    if value.utcoffset() is None:
        raise _Unfit(f"{value!r} has no time zone; give one, as in datetime.now(UTC)")
    if value < _EPOCH:
        raise _Unfit(f"{value!r} lies before 1970, and AMQP timestamps begin there; send it as text")
    return (value - _EPOCH) // timedelta(seconds=1)


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    # More than ten digits or powers of ten never fit, and would be a long time in the making.
    if isinstance(exponent, int) and -255 <= exponent <= 10 and len(digits) <= 10:
        unscaled = int("".join(map(str, digits))) * (-1 if sign else 1) * 10 ** max(exponent, 0)
        if -0x8000_0000 <= unscaled <= 0x7FFF_FFFF:
            return _DECIMAL(b"D", max(-exponent, 0), unscaled)
    raise _Unfit(
        f"{quoted(str(value))} does not fit an AMQP decimal (32 bits of digits, at most 255 of them behind the point); "
        f"send it as text"
    )


#: How many bytes follow each letter; `_LONG` where 4 bytes say it.
_LONG: Final = -1
_WIDTHS: Final = {
    ord(letter): width
    for width, letters in {0: "V", 1: "tbB", 2: "su", 4: "Iif", 5: "D", 8: "lLdT", _LONG: "SxAF"}.items()
    for letter in letters
}

_FIXED: Final = {
    ord(letter): Struct(">" + pattern).unpack_from
    for letter, pattern in (
        ("t", "?"), ("b", "b"), ("B", "B"), ("s", "h"), ("u", "H"), ("I", "i"), ("i", "I"),
        ("l", "q"), ("L", "q"), ("f", "f"), ("d", "d"),
    )
}  # fmt: skip


def _walk(raw: bytes, at: int, end: int, *, named: bool = True) -> Iterator[tuple[int, int, int]]:
    """Start, place of the type letter and end of each entry of a table, or of each item of an array (not *named*).

    Where nobody can tell the end, or it lies beyond *end*, it is given as 0, and that was the last one. If the entry
    ends within its name, the place of the letter lies at *end* or beyond.
    """
    while at < end:
        letter = at + 1 + raw[at] if named else at
        width = _WIDTHS.get(raw[letter]) if letter < end else None
        if width == _LONG:
            width = 4 + _LENGTH(raw, letter + 1)[0] if letter + 5 <= end else None
        if width is None or letter + 1 + width > end:
            yield at, letter, 0
            return
        after = letter + 1 + width
        yield at, letter, after
        at = after


def text(data: bytes) -> str:
    r"""*data* as text that can be printed and stored, whatever it is: what is not UTF-8 shows as `\xff`."""
    return str(data, "utf-8", "backslashreplace")


#: The same few header names stand on every message.
header_name: Final = lru_cache(maxsize=1024)(text)


def decode_table(raw: bytes, at: int, end: int, depth: int = 0) -> dict[str, Any]:
    """The entries of the table from *at* to *end*, in their order. Never raises.

    Where it cannot be read any further, what follows is one `RawValue` under the name of the entry that stopped it.
    """
    found: dict[str, Any] = {}
    for start, letter, after in _walk(raw, at, end):
        name = header_name(raw[start + 1 : letter]) if letter < end else ""
        if name not in found:
            found[name] = _decode(raw, letter, after, depth) if after else _rest(raw, start, letter, end)
    return found


def _decode_array(raw: bytes, at: int, end: int, depth: int) -> list[Any]:
    return [
        _decode(raw, letter, after, depth) if after else _rest(raw, start, letter, end)
        for start, letter, after in _walk(raw, at, end, named=False)
    ]


def _rest(raw: bytes, start: int, letter: int, end: int) -> RawValue:
    return RawValue(chr(raw[letter]), raw[letter + 1 : end]) if letter < end else RawValue("", raw[start:end])


def _decode(raw: bytes, letter: int, after: int, depth: int) -> Any:
    kind = raw[letter]
    if kind == _TEXT:
        data = raw[letter + 5 : after]
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data
    read = _FIXED.get(kind)
    if read is not None:
        return read(raw, letter + 1)[0]
    match chr(kind):
        case "V":
            return None
        case "x":
            return raw[letter + 5 : after]
        case "T":
            seconds = int.from_bytes(raw[letter + 1 : after])
            return seconds if seconds > _LAST_SECOND else _EPOCH + timedelta(seconds=seconds)
        case "D":
            unscaled = int.from_bytes(raw[letter + 2 : after], signed=True)
            # From its parts: arithmetic would round to the precision of the caller's decimal context.
            return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -raw[letter + 1]))
        case nested if depth >= DEEPEST:
            return RawValue(nested, raw[letter + 5 : after])
        case "F":
            return decode_table(raw, letter + 5, after, depth + 1)
        case _:
            return _decode_array(raw, letter + 5, after, depth + 1)


def decode_entry(raw: bytes, at: int, end: int, name: bytes, default: Any) -> Any:
    """The value of the first entry called *name* in the table from *at* to *end*; the others are stepped over."""
    for start, letter, after in _walk(raw, at, end):
        if (raw[start + 1 : letter] if letter < end else b"") == name:
            return _decode(raw, letter, after, 0) if after else _rest(raw, start, letter, end)
    return default


def edit_table(raw: bytes, at: int, end: int, unwanted: Callable[[bytes], bool], added: bytes) -> bytes:
    """The table from *at* to *end* without the entries whose name is *unwanted*, and with *added* entries behind them.

    All other bytes stay as they are. What cannot be walked (an unknown letter and all behind it) stays too, behind
    *added*: in front of it every reader finds them.
    """
    kept = []
    since = last = at
    for start, letter, after in _walk(raw, at, end):
        if not after:
            break
        if unwanted(raw[start + 1 : letter]):
            kept.append(raw[since:start])
            since = after
        last = after
    kept += (raw[since:last], added, raw[last:end])
    return b"".join(kept)


def sort_table(raw: bytes, at: int, end: int) -> bytes:
    """The table from *at* to *end* with its entries in the order of their names, each as it is.

    What cannot be walked (an unknown letter and all behind it) stays behind them.
    """
    entries = []
    last = at
    for start, letter, after in _walk(raw, at, end):
        if not after:
            break
        entries.append((raw[start + 1 : letter], raw[start:after]))
        last = after
    # Doubled names keep their order.
    entries.sort(key=itemgetter(0))
    return b"".join([entry for _, entry in entries]) + raw[last:end]
