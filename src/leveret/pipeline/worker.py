"""A worker as it is declared: options and signature, and every fault of both in one error."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType
from typing import Any, Literal

from leveret.core.errors import BadPayload, WorkerDefinition
from leveret.core.outcome import Unexpected
from leveret.core.payload import decoder
from leveret.core.policy import RetryPolicy
from leveret.core.properties import check_short
from leveret.core.queue_harm import harm
from leveret.core.seconds import seconds, whole
from leveret.core.table import encode_table
from leveret.core.topology import QueueType, check_worker_name
from leveret.pipeline.context import Context

Replay = Literal["queue", "exchange"]

#: AMQP's prefetch is 16 bits, and 0 would mean "no limit" (classic) or 2 000 (quorum).
MOST_PREFETCH = 65535

OPTIONS = (
    "name", "retry", "timeout", "prefetch", "concurrency", "unexpected", "max_deliveries", "replay", "queue_type",
    "queue_arguments",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker: its queue's options, its handler, and how the handler wants to be called."""

    name: str
    types: tuple[str, ...]
    handler: Callable[..., Any]
    #: `async def` runs on the loop, plain `def` in a thread.
    is_async: bool
    #: Which of "payload" and "context" the handler's parameters are, in their order.
    takes: tuple[Literal["payload", "context"], ...]
    #: The handler wants the body as it came, whatever its content type.
    raw: bool
    decode: Callable[[bytes], Any]
    #: file:line, for errors.
    location: str
    retry: RetryPolicy | None = None
    timeout: float | None = None
    prefetch: int = 10
    concurrency: int = 10
    unexpected: Unexpected = "retry"
    max_deliveries: int = 5
    replay: Replay = "queue"
    queue_type: QueueType | None = None
    queue_arguments: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    #: What the decorator named; the rest is for operators to choose.
    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def ordered(self) -> bool:
        """Taken one at a time: what follows waits for what precedes."""
        return self.prefetch == 1


def define(
    handler: Callable[..., Any],
    types: tuple[object, ...],
    options: Mapping[str, Any],
    frame: FrameType | None,
) -> WorkerSpec:
    """Read a decorated function.

    Args:
        handler: the function.
        types: message types (binding keys), as given.
        options: the decorator's keywords, known or not.
        frame: where the decorator stands, so that annotations may name local classes.

    Raises:
        WorkerDefinition: all that is wrong, each with what to write instead.
    """
    faults: list[str] = []
    given = dict(options)
    for name in [name for name in given if name not in OPTIONS]:
        near = difflib.get_close_matches(name, OPTIONS, 1)
        faults.append(
            f"{name}={given.pop(name)!r}: no such option" + (f", did you mean {near[0]}?" if near else "")
        )
    label = name_of(handler)
    known: dict[str, Any] = {}
    name = label if given.get("name") is None else given["name"]
    known["name"] = _checked(faults, check_worker_name, name)
    known["types"] = _types(faults, types)
    known |= _options(faults, given)
    known |= signature_of(faults, handler, label, frame)
    location = location_of(handler)
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise WorkerDefinition(f"@app.worker on {label} ({location}) has {count}. " + " · ".join(faults))
    return WorkerSpec(handler=handler, location=location, given=MappingProxyType(given), **known)


def _types(faults: list[str], types: tuple[object, ...]) -> tuple[str, ...]:
    good = []
    for given in types:
        if not isinstance(given, str) or not given:
            faults.append(f"{given!r}: a message type is text of at least one character")
            continue
        good.append(_checked(faults, lambda value: check_short(value, "message type"), given))
    return tuple(good)


def _options(faults: list[str], given: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    retry = given.get("retry")
    if retry is not None and not isinstance(retry, RetryPolicy):
        hint = ""
        if isinstance(retry, int) and not isinstance(retry, bool):
            hint = (
                f": {retry} tries or {retry} retries? Write RetryPolicy(max_attempts={retry}): {retry} tries, the "
                "first included"
            )
        faults.append(f"retry={retry!r}{hint or ': expected a RetryPolicy'}")
    known["retry"] = retry
    timeout = given.get("timeout")
    known["timeout"] = None if timeout is None else _checked(faults, lambda v: seconds(v, "timeout"), timeout)
    if known["timeout"] == 0:
        faults.append("timeout=0: no handler ends in no time; None is no limit")
    prefetch = _checked(faults, lambda v: whole(v, "prefetch", least=1), given.get("prefetch", 10))
    if isinstance(prefetch, int) and prefetch > MOST_PREFETCH:
        faults.append(f"prefetch={prefetch}: expected at most {MOST_PREFETCH} (AMQP has 16 bits for it)")
    known["prefetch"] = prefetch
    concurrency = given.get("concurrency")
    known["concurrency"] = (
        prefetch
        if concurrency is None
        else _checked(faults, lambda v: whole(v, "concurrency", least=1), concurrency)
    )
    known["max_deliveries"] = _checked(
        faults, lambda v: whole(v, "max_deliveries", least=1), given.get("max_deliveries", 5)
    )
    for name, choices in (("unexpected", ("retry", "dead")), ("replay", ("queue", "exchange"))):
        value = given.get(name, choices[0])
        if value not in choices:
            faults.append(f"{name}={value!r}: expected {' or '.join(map(repr, choices))}")
        known[name] = value
    queue_type = given.get("queue_type")
    if queue_type not in (None, "classic", "quorum"):
        faults.append(f"queue_type={queue_type!r}: expected 'classic' or 'quorum'")
    known["queue_type"] = queue_type
    known["queue_arguments"] = _checked(faults, _queue_arguments, given.get("queue_arguments"))
    return known


def _queue_arguments(given: object) -> Mapping[str, Any]:
    if given is None:
        return MappingProxyType({})
    if not isinstance(given, Mapping):
        raise ValueError(f'queue_arguments={given!r}: expected a mapping such as {{"x-max-priority": 5}}')
    try:
        encode_table(given)
    except BadPayload as error:
        raise ValueError(f"queue_arguments{str(error).removeprefix('headers')}") from None
    for argument, value in given.items():
        if (why := harm(argument, value, given)) is not None:
            raise ValueError(
                f"queue_arguments: {argument}={value!r}: {why}; a worker's queue must lose nothing"
            )
    return MappingProxyType(dict(given))


def signature_of(
    faults: list[str], handler: Callable[..., Any], label: str, frame: FrameType | None
) -> dict[str, Any]:
    """Which parameters the handler has, and what its payload must be: `takes`, `raw`, `decode`, `is_async`.

    What is wrong with them is added to *faults*.
    """
    nothing = {
        "takes": (),
        "raw": False,
        "decode": decoder(inspect.Parameter.empty),
        "is_async": _is_async(handler),
    }
    if not callable(handler):
        faults.append(f"{handler!r}: a worker is a function")
        return nothing
    if inspect.isclass(handler):
        faults.append(f"{label} is a class: a worker is a function")
        return nothing
    parameters = list(inspect.signature(handler).parameters.values())
    hints = _hints(handler, frame)
    takes: list[Literal["payload", "context"]] = []
    payload: inspect.Parameter | None = None
    for parameter in parameters:
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            faults.append(f"{label}({parameter}): a handler takes a payload, a ctx: Context, or both")
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
            continue
        elif parameter.kind is parameter.KEYWORD_ONLY:
            faults.append(f"{label}(*, {parameter.name}): a handler's parameters are positional")
        elif hints.get(parameter.name) is Context:
            takes.append("context")
        elif payload is None:
            payload = parameter
            takes.append("payload")
        elif parameter.default is parameter.empty:
            names = ", ".join(p.name for p in parameters)
            fields = " and ".join(p.name for p in parameters if hints.get(p.name) is not Context)
            wish = f"{label}({names}): a handler takes the whole payload in one parameter. "
            if parameter.name in {"ctx", "context"}:
                wish += f"If {parameter.name} is to be the context, write {parameter.name}: Context."
            else:
                wish += f"Declare a dataclass with {fields}, or take a dict."
            faults.append(wish)
            break
    annotation = (
        hints.get(payload.name, inspect.Parameter.empty) if payload is not None else inspect.Parameter.empty
    )
    if isinstance(annotation, str):
        faults.append(f"{label}: the annotation {annotation!r} names nothing that can be found from here")
        return nothing
    return {
        "takes": tuple(takes),
        "raw": annotation is bytes or payload is None,
        "decode": _checked(faults, decoder, bytes if payload is None else annotation),
        "is_async": _is_async(handler),
    }


def _chain(handler: Any) -> list[Any]:
    """The handler and what it wraps, the function itself last: partials, decorators, objects that can be called."""
    chain = [handler]
    while True:
        last = chain[-1]
        if isinstance(last, functools.partial):
            inner = last.func
        elif hasattr(last, "__wrapped__"):
            inner = last.__wrapped__
        elif inspect.isroutine(last) or inspect.isclass(last) or not callable(last):
            return chain
        else:
            inner = type(last).__call__
        chain.append(inner)


def name_of(handler: Any) -> str:
    """What a handler is called."""
    names = (getattr(each, "__name__", None) for each in _chain(handler))
    return next((name for name in names if name and name != "__call__"), type(handler).__name__)


def _is_async(handler: Any) -> bool:
    # A plain wrapper of an async function hands its coroutine on, an async wrapper makes one itself.
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in _chain(handler)
    )


def _hints(handler: Callable[..., Any], frame: FrameType | None) -> dict[str, Any]:
    """Annotations as objects; one that cannot be resolved stays text."""
    target = _chain(handler)[-1]
    scope = dict(frame.f_locals) if frame is not None else {}
    try:
        return typing.get_type_hints(target, localns=scope)
    except Exception:  # noqa: BLE001 — an annotation is any expression, and may raise anything
        found = dict(getattr(target, "__annotations__", {}))
        module = sys.modules.get(getattr(target, "__module__", ""), None)
        for name, text in found.items():
            if isinstance(text, str):
                value = scope.get(text, getattr(module, text, text))
                found[name] = value
        return found


def codes_of(handler: Callable[..., Any]) -> list[CodeType]:
    """What runs when the handler is called: its decorators' code, where there are any, and its own as the last."""
    codes = (getattr(each, "__code__", None) for each in _chain(handler))
    return [code for code in codes if isinstance(code, CodeType)]


def location_of(handler: Callable[..., Any]) -> str:
    """Where a handler stands: file:line, for errors."""
    function = _chain(handler)[-1]
    code = getattr(function, "__code__", None)
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code is not None else repr(function)


def _checked(faults: list[str], check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except (ValueError, TypeError) as error:
        faults.append(str(error))
        return value
