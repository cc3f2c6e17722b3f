"""Payloads become JSON before anything is sent, and bodies become the type a handler asks for, or a reason why not.

Both directions are strict, since a body lives long: it waits in a store, lies in the dead letters, and is read by
programs that are not Python. What JSON cannot carry is refused by its path; what is not plain JSON in UTF-8 is not
guessed at.
"""

from __future__ import annotations

import codecs
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import is_dataclass
from math import isfinite
from types import NoneType
from typing import Any, Final, TypeAlias, get_args, get_origin, is_typeddict

import msgspec

from leveret.core.errors import BadPayload, WorkerDefinition
from leveret.core.payload_fault import (
    DEEPEST,
    LARGEST,
    REASON,
    SHOWN,
    SMALLEST,
    cut,
    is_instance_of_dataclass,
    is_model,
    printable,
    quoted,
    refusal,
)

Decode: TypeAlias = Callable[[bytes], Any]


class Undecodable(ValueError):
    """A body that is not what its handler takes. No later try can change that: to the dead letters, with this reason.

    The reason is text that every store takes: without NUL, without half a surrogate pair, not longer than a page.

    Example:
        >>> raise Undecodable("the body is empty")
        Traceback (most recent call last):
        leveret.core.payload.Undecodable: the body is empty
    """

    def __init__(self, reason: str) -> None:
        self.reason: Final = cut(printable(reason), REASON)
        super().__init__(self.reason)


# Writing


def encode(payload: Any, *, type: str) -> bytes:
    """*payload* as compact JSON in UTF-8, or refused before anything is sent; bytes stay as they are.

    A dict, list, tuple, text, number, bool or None is written as it is. A dataclass or a pydantic model, alone or
    inside those, is written by its fields and knows dates, decimals, UUIDs, enums and sets; a model by its aliases.

    Args:
        payload: what to publish.
        type: the message type, for the error's text.

    Raises:
        BadPayload: naming *type*, the path of the first bad value, and what to write instead. Bad are NaN and infinity,
            whole numbers outside -2**63 … 2**63-1, keys that are not text, bytes and dates in a plain dict, half a
            surrogate pair, a value inside itself, more than 500 levels, any other object.

    Example:
        >>> encode({"id": 1, "cents": 500}, type="order.placed")
        b'{"id":1,"cents":500}'
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    written = payload
    try:
        if not _is_plain(written, DEEPEST):
            written = _written(payload)
            if not _is_plain(written, DEEPEST):
                raise BadPayload(refusal(type, payload, written, None))
        return msgspec.json.encode(written)
    except BadPayload:
        raise
    except Exception as error:
        # A cycle, half a surrogate pair, a type that nobody can write, or whatever a model's own serializer raises.
        raise BadPayload(refusal(type, payload, written, error)) from error


def _is_plain(value: Any, room: int) -> bool:
    """Whether *value* holds only what JSON knows, *room* levels deep. Text is left to the encoder."""
    kind = type(value)
    if kind is dict:
        if room == 0:
            return False
        for key, item in value.items():
            if type(key) is not str:
                return False
            # Written out, since every message passes here: a call for each scalar doubles the time.
            kind = type(item)
            if kind is str:
                continue
            if kind is int:
                if not SMALLEST <= item <= LARGEST:
                    return False
            elif kind is float:
                if not isfinite(item):
                    return False
            elif not _is_plain(item, room - 1):
                return False
        return True
    if kind is list or kind is tuple:
        if room == 0:
            return False
        # Not all(…): a generator's frame for each level would halve the depth that Python's stack allows.
        for item in value:  # noqa: SIM110
            if type(item) is not str and not _is_plain(item, room - 1):
                return False
        return True
    if kind is float:
        return isfinite(value)
    if kind is int:
        return bool(SMALLEST <= value <= LARGEST)
    return kind is str or kind is bool or value is None


def _written(value: Any) -> Any:
    """*value* with each dataclass, model and subclass of a plain type turned into plain values; the rest as it is."""
    if isinstance(value, dict):
        return {_exact(key): _written(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if is_model(value):
        return _dumped(value)
    if is_instance_of_dataclass(value):
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_inside_a_dataclass)
    return _exact(value)


def _exact(value: Any) -> Any:
    """The text or number that an instance of a subclass is (a StrEnum, a numpy.float64)."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    return float.__float__(value) if isinstance(value, float) else value


def _inside_a_dataclass(value: Any) -> Any:
    if is_model(value):
        return _dumped(value)
    if isinstance(value, (str, int, float)):
        return _exact(value)
    raise TypeError(f"{type(value).__name__} is not a type that can be written as JSON")


def _dumped(model: Any) -> Any:
    # By alias, because that is the name under which the same model will look for it.
    if hasattr(model, "model_dump"):
        return model.model_dump(mode="json", by_alias=True)
    return type(model).__pydantic_serializer__.to_python(model, mode="json", by_alias=True)


# Reading


def decoder(annotation: Any) -> Decode:
    """What turns a body into *annotation*, strictly and by plain JSON in UTF-8. Built once, when a worker is declared.

    `bytes` takes the body as it came. Nothing, `Any`, `dict` and `Mapping` take a JSON object. `dict[str, int]`, a
    TypedDict or a dataclass is fitted by msgspec, where `"1"` is no int; a pydantic model, or a dataclass that holds
    types of pydantic's, by pydantic in its JSON mode. What the type does not name is ignored unless a model forbids it.

    The function that comes back raises `Undecodable` and nothing else, whatever the body, whatever a validator raises.

    Raises:
        WorkerDefinition: for a type that no body can be fitted to.

    Example:
        >>> decoder(dict)(b'{"id": 1}')
        {'id': 1}
        >>> decoder(dict)(b'{"id": 1, "id": 2}')
        Traceback (most recent call last):
        leveret.core.payload.Undecodable: the body has the key "id" twice in one object
    """
    if annotation is bytes:
        return bytes
    if annotation is inspect.Parameter.empty or annotation is Any:
        return _object
    origin = get_origin(annotation) or annotation
    if hasattr(origin, "__pydantic_validator__"):
        return _fitted_by_pydantic(annotation)
    if any(origin is kind for kind in (dict, Mapping, MutableMapping)):
        free = get_args(annotation) in ((), (str, Any), (Any, Any), (str, object))
        return _object if free else _fitted_by_msgspec(annotation)
    if is_typeddict(origin) or (is_dataclass(origin) and isinstance(origin, type)):
        return _fitted_by_msgspec(annotation)
    raise WorkerDefinition(
        f"a payload cannot be {_name(annotation)}: take a dict, a TypedDict, a dataclass, a pydantic model, "
        "or bytes (the body as it came)"
    )


#: Some clients name the charset here, where a compression belongs; it says the same as nothing.
_PLAIN_ENCODINGS: Final = frozenset({"", "identity", "utf-8", "utf8"})
#: The last two are what clients send that do not know or do not say.
_JSON_TYPES: Final = frozenset(
    {"", "application/json", "text/json", "text/plain", "application/octet-stream"}
)
_CHARSETS: Final = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})


def check_content(content_type: str | None, content_encoding: str | None) -> None:
    """A message that says of itself that it is no plain JSON is not guessed at. Not asked for handlers that take bytes.

    No content type, JSON in its names (`application/json`, `text/json`, `…+json`) and the two that say nothing
    (`text/plain`, `application/octet-stream`) pass; a charset may be UTF-8 or its part US-ASCII.

    Raises:
        Undecodable: naming the property.

    Example:
        >>> check_content("application/json; charset=utf-8", None)
        >>> check_content("application/json", "gzip")
        Traceback (most recent call last):
        leveret.core.payload.Undecodable: content-encoding "gzip": leveret decodes plain JSON only; take bytes
    """
    take_bytes = "take bytes"
    if (content_encoding or "").strip().lower() not in _PLAIN_ENCODINGS:
        raise Undecodable(
            f"content-encoding {quoted(content_encoding)}: leveret decodes plain JSON only; {take_bytes}"
        )
    if not content_type:
        return
    media, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if media not in _JSON_TYPES and not media.endswith("+json"):
        raise Undecodable(f"content-type {quoted(content_type)}: leveret decodes JSON only; {take_bytes}")
    for parameter in parameters:
        name, _, charset = parameter.partition("=")
        if name.strip() == "charset" and charset.strip(' "') not in _CHARSETS:
            raise Undecodable(f"content-type {quoted(content_type)}: JSON travels as UTF-8; {take_bytes}")


def _object(body: bytes) -> dict[str, Any]:
    value = _parsed(body)
    if type(value) is dict:
        return value
    what = _JSON_NAMES.get(type(value), "a number")
    raise Undecodable(f"the body is {what}, and a JSON object is required")


_JSON_NAMES: Final = {NoneType: "null", bool: "true or false", str: "text", list: "an array"}


def _parsed(body: bytes) -> Any:
    """The value of a strict JSON text in UTF-8: every key once in its object, every number finite."""
    # What other programs write has a blank behind its colons and cannot pass the proof below.
    if b'": ' not in body:
        try:
            value = msgspec.json.decode(body)
            # A dict writes each key once: a body that comes out the same has no key twice, and nothing was rounded.
            if msgspec.json.encode(value) == body:
                return value
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, MemoryError):
            # Whether it is JSON all the same, and if not why, is for the exact parser to say.
            pass
    try:
        return _EXACT.decode(body.decode())
    except Undecodable:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise Undecodable(f"the body {_why(body, error)}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise Undecodable(f"the body has the key {quoted(twice)} twice in one object")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise Undecodable(f"the body holds {cut(text, 40)}, a number beyond what a float holds")
    return value


def _no_number(name: str) -> Any:
    raise Undecodable(f"the body holds {name}, which is no number in JSON")


#: The standard parser, which takes whole numbers of any size, and half a surrogate pair in an escape.
_EXACT: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_number)


def _why(body: bytes, error: Exception) -> str:
    if not body:
        return "is empty"
    if body.startswith(codecs.BOM_UTF8):
        return "begins with a byte order mark, and JSON travels without one"
    if body.startswith(b"\x1f\x8b"):
        return "is compressed with gzip, and leveret decodes plain JSON only; take bytes"
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in body[:4]:
        return "looks like UTF-16 or UTF-32, and JSON travels as UTF-8"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON: {error}"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, MemoryError):
        return f"is too large for the memory that is left ({len(body)} bytes)"
    # All that remains: int() refuses to spend quadratic time on a text of digits.
    return f"holds a whole number of more than {sys.get_int_max_str_digits()} digits"


def _fitted_by_msgspec(annotation: Any) -> Decode:
    # Only here: it is slow to import, and a program that just publishes has no use for it.
    from msgspec import inspect as types

    try:
        foreign = _foreign_type(types.type_info(annotation), types, set())
    except Exception as error:
        raise WorkerDefinition(_unusable(annotation, error)) from error
    if foreign is not None and "pydantic" in sys.modules:
        return _fitted_by_pydantic(annotation)
    if foreign is not None:
        raise WorkerDefinition(
            f"a payload cannot be {_name(annotation)}: nothing in JSON becomes a {_name(foreign)}"
        )
    name = _name(annotation)

    def fit(body: bytes) -> Any:
        value = _object(body)
        try:
            return msgspec.convert(value, annotation, strict=True, str_keys=True)
        except msgspec.ValidationError as error:
            raise Undecodable(f"the body does not fit {name}: {error}") from error
        except Exception as error:
            raise Undecodable(f"the body does not fit {name}: {type(error).__name__}: {error}") from error

    return fit


def _foreign_type(info: Any, types: Any, seen: set[Any]) -> Any:
    """A type within *info* that msgspec takes only ready-made: never out of JSON."""
    if isinstance(info, types.CustomType):
        return info.cls
    if isinstance(info, (types.DataclassType, types.TypedDictType)):
        if info.cls in seen:
            return None
        seen.add(info.cls)
    parts: list[Any] = []
    for name in getattr(info, "__struct_fields__", ()):
        part = getattr(info, name)
        parts.extend(part if isinstance(part, tuple) else [part])
    inner = (part for part in parts if isinstance(part, (types.Type, types.Field)))
    return next((found for part in inner if (found := _foreign_type(part, types, seen)) is not None), None)


def _fitted_by_pydantic(annotation: Any) -> Decode:
    # Whoever declares a model has imported pydantic; the core itself never does.
    pydantic: Any = sys.modules["pydantic"]
    try:
        adapter = pydantic.TypeAdapter(annotation)
        # Since 2.10 a name that is not defined yet is left for later; before, it raised at once.
        if hasattr(adapter, "rebuild"):
            adapter.rebuild(raise_errors=True)
    except Exception as error:
        raise WorkerDefinition(_unusable(annotation, error)) from error
    name = _name(annotation)
    # A root model may be a list or a number; it says so itself.
    read = _parsed if getattr(annotation, "__pydantic_root_model__", False) else _object

    def validated(body: bytes, value: Any) -> Any:
        try:
            return adapter.validate_json(body)
        except pydantic.ValidationError as error:
            fault = error.errors()[0]
            if fault["type"] != "json_invalid" or fault["loc"]:
                raise
            # Its parser stops at 200 levels and at half a surrogate pair; ours has read them.
            return adapter.validate_python(value)

    def fit(body: bytes) -> Any:
        # Read twice: pydantic takes keys that come twice, and its strict models take a date as text from JSON only.
        value = read(body)
        try:
            return validated(body, value)
        except pydantic.ValidationError as error:
            raise Undecodable(f"the body does not fit {name}: {_faults(error)}") from error
        except Exception as error:
            raise Undecodable(f"the body does not fit {name}: {type(error).__name__}: {error}") from error

    return fit


def _faults(error: Any) -> str:
    """Pydantic's list in one line: the first three, each with its path; a value only where it is short."""
    told = []
    for fault in error.errors(include_url=False, include_context=False)[:3]:
        path = ".".join(str(step) for step in fault["loc"])
        shown = repr(fault["input"])
        got = f" (got {shown})" if len(shown) <= SHOWN else ""
        told.append(f"{path + ': ' if path else ''}{cut(fault['msg'], SHOWN)}{got}")
    rest = error.error_count() - len(told)
    return "; ".join(told) + (f"; and {rest} more" if rest else "")


def _unusable(annotation: Any, error: Exception) -> str:
    # Pydantic adds paragraphs on how to extend pydantic.
    first, *_ = str(error).splitlines() or [type(error).__name__]
    text = f"a payload cannot be {_name(annotation)}: {first}"
    if isinstance(error, NameError):
        text += ". Define that type at the top level of its module, before the worker"
    return text


def _name(annotation: Any) -> str:
    return (
        annotation.__name__
        if isinstance(annotation, type) and not get_args(annotation)
        else cut(repr(annotation), SHOWN)
    )
