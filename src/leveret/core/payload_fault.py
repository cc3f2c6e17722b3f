"""What in a payload cannot be written as JSON: the path of the first bad value, what it is, and what to write instead.

Asked only once a payload is known to be bad, so it may take its time; `leveret.core.payload` asks.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import msgspec

#: Signed 64 bits: what every language reads without rounding or overflow, also where it has no unsigned numbers.
SMALLEST: Final = -(2**63)
LARGEST: Final = 2**63 - 1

#: Containers in containers. Half of Python's own limit: what was accepted is read back, also under a worker's stack.
DEEPEST: Final = 500

#: A reason is read in a listing; a key, a value or a message of somebody else's is shown so far.
SHOWN: Final = 200
#: A whole reason: three faults of a model, each with its path.
REASON: Final = 1000


def is_model(value: Any) -> bool:
    """Whether pydantic knows how to write *value*: a model, or one of pydantic's own dataclasses."""
    return hasattr(type(value), "model_dump") or hasattr(type(value), "__pydantic_serializer__")


def is_instance_of_dataclass(value: Any) -> bool:
    """Whether *value* is an instance of a dataclass, and not the class."""
    return is_dataclass(value) and not isinstance(value, type)


class _Fault(NamedTuple):
    what: str
    advice: str


class _Spot(NamedTuple):
    """A value on its way from the payload's root; the way is walked up to find a value that contains itself."""

    value: Any
    path: str
    depth: int
    parent: _Spot | None
    #: Who writes this value. A dataclass and a model know dates; a plain dict does not.
    writer: Literal["plain", "dataclass", "model"]


def refusal(message_type: str, payload: Any, written: Any, error: Exception | None) -> str:
    """Why *payload* is not sent, and what to do about it.

    Args:
        message_type: the type it was to be published as.
        payload: what the user gave: its paths are the ones to show.
        written: what became of it before it was refused; the same object where nothing did.
        error: what the encoder or a model's serializer raised, if that was it.
    """
    fault = _first_fault(payload) or (_first_fault(written) if written is not payload else None)
    if fault is None and isinstance(error, RecursionError):
        what = "it is nested too deeply for the stack that it was published from"
        fault = _Fault(what, "Publish it from a shallower place, or send it flatter.")
    elif fault is None:
        what = f"{type(payload).__name__} raised {type(error).__name__}: {error}"
        fault = _Fault(what, "Correct its serializer, or give the field a type that JSON knows.")
    head = f"{quoted(message_type)} cannot be written as JSON: {cut(fault.what, REASON)}. Nothing was sent."
    return printable(f"{head}\n{fault.advice}")


def _first_fault(payload: Any) -> _Fault | None:
    """The first value, in reading order, that JSON cannot carry."""
    # A list for a stack, since the payload may be deeper than Python's own.
    spots = [_Spot(payload, "payload", 0, None, "plain")]
    while spots:
        spot = spots.pop()
        found = _fault_at(spot)
        if found is not None:
            return found
        spots.extend(reversed(_children(spot)))
    return None


def _children(spot: _Spot) -> list[_Spot]:
    value, path, depth, _, writer = spot
    depth += 1
    if isinstance(value, dict):
        return [_Spot(item, f"{path}[{_key(key)}]", depth, spot, writer) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_Spot(item, f"{path}[{place}]", depth, spot, writer) for place, item in enumerate(value)]
    if is_model(value):
        named = getattr(value, "__dict__", {})
        return [_Spot(item, f"{path}.{name}", depth, spot, "model") for name, item in named.items()]
    if is_instance_of_dataclass(value):
        names = [field.name for field in fields(value) if hasattr(value, field.name)]
        return [_Spot(getattr(value, name), f"{path}.{name}", depth, spot, "dataclass") for name in names]
    return []


def _fault_at(spot: _Spot) -> _Fault | None:
    value, path = spot.value, _shortened(spot.path)
    if isinstance(value, (NoneType, bool)):
        return None
    if isinstance(value, str):
        return _fault_in_text(value, path)
    if isinstance(value, int):
        if SMALLEST <= value <= LARGEST:
            return None
        what = f"{path} is an int of {value.bit_length()} bits, and beyond -2**63 … 2**63-1 readers of JSON differ"
        return _Fault(what, f"Make it text, str({path}).")
    if isinstance(value, float):
        if math.isfinite(value):
            return None
        return _Fault(
            f"{path} is {value}, and JSON has no such number", "Send None instead, or leave it out."
        )
    if isinstance(value, (dict, list, tuple)) or is_model(value) or is_instance_of_dataclass(value):
        return _fault_of_nesting(spot) or (_fault_in_keys(spot) if isinstance(value, dict) else None)
    return _fault_of_type(spot)


def _fault_in_text(value: str, path: str) -> _Fault | None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        return _Fault(
            f"{path} holds half a surrogate pair ({half} at character {error.start}), which UTF-8 cannot carry",
            f'Replace it, {path}.encode("utf-8", "replace").decode(), or find where the text was decoded wrongly.',
        )
    return None


def _fault_of_nesting(spot: _Spot) -> _Fault | None:
    above = spot.parent
    while above is not None:
        if above.value is spot.value:
            return _Fault(
                f"{_shortened(spot.path)} is {_shortened(above.path)} again, and a value cannot contain itself",
                "Send an id of the thing instead of the thing.",
            )
        above = above.parent
    if spot.depth >= DEEPEST:
        return _Fault(
            f"{_shortened(spot.path)} lies more than {DEEPEST} levels deep",
            "Send it flatter, or as text of its own.",
        )
    return None


def _fault_in_keys(spot: _Spot) -> _Fault | None:
    path = _shortened(spot.path)
    for key in spot.value:
        if isinstance(key, str):
            try:
                key.encode()
            except UnicodeEncodeError:
                what = f"{path} has the key {_key(key)}, which holds half a surrogate pair"
                return _Fault(what, "Find where the text was decoded wrongly.")
        elif spot.writer == "plain":
            return _Fault(
                f"{path} has the key {_key(key)}, {_a(key)}, and a key in JSON is text",
                f"Make its keys text, {{str(key): value for key, value in {path}.items()}}.",
            )
    return None


def _fault_of_type(spot: _Spot) -> _Fault | None:
    value, path = spot.value, _shortened(spot.path)
    if spot.writer == "model":
        # Pydantic knows more types than can be listed here, and raises of its own where it does not.
        return None
    if spot.writer == "dataclass":
        try:
            msgspec.to_builtins(value, str_keys=True)
        except (TypeError, ValueError, OverflowError) as error:
            return _Fault(
                f"{path} is {_a(value)}: {error}",
                "Give the field a type of JSON's, a date, a Decimal or a UUID.",
            )
        return None
    known = "or publish a dataclass or pydantic model: those know dates, decimals and UUIDs."
    match value:
        case datetime() | date() | time():
            return _Fault(f"{path} is {_a(value)} ({value})", f"Make it text, {path}.isoformat(), {known}")
        case timedelta():
            return _Fault(
                f"{path} is {_a(value)} ({value})", f"Make it seconds, {path}.total_seconds(), {known}"
            )
        case Decimal() | UUID():
            return _Fault(f"{path} is {_a(value)} ({value})", f"Make it text, str({path}), {known}")
        case Enum():
            return _Fault(f"{path} is {_a(value)} ({value.name})", f"Send its value, {path}.value, {known}")
        case set() | frozenset():
            return _Fault(f"{path} is {_a(value)} of {len(value)}", f"Make it a list, sorted({path}).")
        case bytes() | bytearray() | memoryview():
            text = f"base64.b64encode({path}).decode()"
            return _Fault(
                f"{path} is {type(value).__name__} ({len(value)} of them)",
                f"Make it text, {text}, or publish the bytes alone as the payload.",
            )
    return _Fault(
        f"{path} is {f'the class {value.__name__}' if isinstance(value, type) else _a(value)}",
        "A payload is a dict, a list, text, a number, a bool, None, a dataclass, a pydantic model, or bytes.",
    )


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeio" else f"a {name}"


def _key(key: Any) -> str:
    return quoted(key) if isinstance(key, str) else cut(repr(key), SHOWN)


def _shortened(path: str) -> str:
    return path if len(path) <= SHOWN else f"{path[: SHOWN // 2]}…{path[-SHOWN // 2 :]}"


# Text that can be shown and stored anywhere, whatever the sender wrote


def quoted(text: Any) -> str:
    """*text* between quotation marks, as JSON writes it."""
    return json.dumps(cut(str(text), SHOWN), ensure_ascii=False)


def printable(text: str) -> str:
    """*text* as UTF-8 can carry it and PostgreSQL can store it: NUL and half a surrogate pair written out."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def cut(text: str, length: int) -> str:
    """The first *length* characters of *text*, the last of them a sign that there is more."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
