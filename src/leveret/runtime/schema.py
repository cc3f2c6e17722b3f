"""The settings there are: their names, their types and their defaults."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationInfo

from leveret.alarms.template import BODY, TITLE, check_template
from leveret.core.seconds import fraction, seconds, shown, whole
from leveret.core.topology import RMQExchangeConfig, check_namespace
from leveret.core.urls import BrokerUrl, CacheUrl, StoreUrl, parse_broker, parse_cache, parse_store

#: Where a setting stands: ("workers", "charge", "prefetch").
Path: TypeAlias = tuple[str, ...]

#: AMQP has 16 bits for the prefetch, and 0 would mean no limit.
MOST_PREFETCH = 65535

_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):([0-9]{1,5})")
#: A comma parts two URLs only where another one begins; a file may have one a line.
_NEXT_URL = re.compile(r"[,\r\n]\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")


class Given(str):
    """A value written as text, in a variable or behind `--set`: numbers and lists are read from it."""

    __slots__ = ()


# Every check begins its words with the name of the setting; config.py puts the whole path in its place.


def _number(value: object) -> object:
    if not isinstance(value, Given):
        return value
    text = value.strip()
    # Python refuses to read an int of thousands of digits, in words that name neither the setting nor the way out.
    if re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return str(value)


def _seconds(value: object, info: ValidationInfo) -> float:
    return seconds(_number(value), str(info.field_name))


def _some_seconds(value: object, info: ValidationInfo) -> float:
    number = _seconds(value, info)
    if number == 0:
        raise ValueError(f"{info.field_name}={shown(value)}: expected more than 0 seconds")
    return number


def _count(value: object, info: ValidationInfo) -> int:
    return whole(_number(value), str(info.field_name), least=1)


def _prefetch(value: object, info: ValidationInfo) -> int:
    number = _count(value, info)
    if number > MOST_PREFETCH:
        raise ValueError(
            f"{info.field_name}={shown(value)}: expected at most {MOST_PREFETCH} (AMQP has 16 bits for it)"
        )
    return number


def _factor(value: object, info: ValidationInfo) -> float:
    return fraction(_number(value), str(info.field_name), most=None)


def _share(value: object, info: ValidationInfo) -> float:
    return fraction(_number(value), str(info.field_name), most=1.0)


def _rate(value: object, info: ValidationInfo) -> float | None:
    if value == "none":
        return None
    if (number := _factor(value, info)) == 0:
        raise ValueError(
            f'{info.field_name}={shown(value)}: nothing overdue would ever be sent. Write messages a second, or "none" '
            "for no limit"
        )
    return number


def _switch(value: object, info: ValidationInfo) -> bool:
    if isinstance(value, Given) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(f"{info.field_name}={shown(value)}: expected true or false")
    return value


def _text(value: object, info: ValidationInfo) -> str:
    # The value is not shown: this may be a token.
    if not isinstance(value, str) or not value:
        what = "nothing" if value == "" else type(value).__name__
        raise ValueError(f"{info.field_name}: expected text, got {what}")
    return str(value)


def _listen(value: object, info: ValidationInfo) -> str:
    match = _LISTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"{info.field_name}={shown(value)}: expected host:port, such as 127.0.0.1:8765")
    return match[0]


def _notify_urls(value: Any, info: ValidationInfo) -> tuple[str, ...]:
    given = _NEXT_URL.split(value) if isinstance(value, Given) else value
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    # Such URLs are secrets from end to end, so that none is shown.
    if not listed or not all(isinstance(each, str) and "://" in each for each in given):
        raise ValueError(f"{info.field_name}: expected a list of URLs, such as tgram://… or mailto://…")
    return tuple(each.strip() for each in given)


def _template(value: object, info: ValidationInfo) -> str:
    try:
        return check_template(value)
    except ValueError as error:
        raise ValueError(f"{info.field_name}: {error}") from None


def _one_of(*choices: str) -> Callable[[object, ValidationInfo], str]:
    def check(value: object, info: ValidationInfo) -> str:
        if isinstance(value, str) and value in choices:
            return str(value)
        near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
        *first, last = choices
        raise ValueError(
            f"{info.field_name}={shown(value)}: expected {', '.join(first)} or {last}"
            + (f". Did you mean {near[0]}?" if near else "")
        )

    return check


def _exchange(value: object, info: ValidationInfo) -> RMQExchangeConfig:
    return value if isinstance(value, RMQExchangeConfig) else RMQExchangeConfig(_text(value, info))


def _namespace(value: object) -> str:
    return str(check_namespace(value))


def _url(parse: Callable[[Any, str], object], kind: type) -> Callable[[object, ValidationInfo], object]:
    def check(value: object, info: ValidationInfo) -> object:
        places: Mapping[str, str] = info.context or {}
        name = str(info.field_name)
        return value if isinstance(value, kind) else parse(value, places.get(name, name))

    return check


_Seconds = Annotated[float, BeforeValidator(_seconds)]
_SomeSeconds = Annotated[float, BeforeValidator(_some_seconds)]
_Count = Annotated[int, BeforeValidator(_count)]
_Text = Annotated[str, BeforeValidator(_text)]
_Template = Annotated[str, BeforeValidator(_template)]
_Listen = Annotated[str, BeforeValidator(_listen)]
_QueueType = Annotated[Literal["classic", "quorum"], BeforeValidator(_one_of("classic", "quorum"))]


class Table(BaseModel):
    """A table of leveret.toml; what is not named in it is its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RetryNumbers(Table):
    """`[retry]` and `[workers.NAME.retry]`: the numbers of a RetryPolicy; what is not set stays as the code has it."""

    first_delay: _Seconds | None = None
    factor: Annotated[float, BeforeValidator(_factor)] | None = None
    jitter: Annotated[float, BeforeValidator(_share)] | None = None
    max_delay: _Seconds | None = None
    max_attempts: _Count | None = None
    attempts_cap: _Count | None = None
    max_retry_after: _Seconds | None = None
    max_age: _Seconds | None = None


class WorkerSettings(Table):
    """`[workers.NAME]`: what is set here takes the place of what the decorator leaves out."""

    prefetch: Annotated[int, BeforeValidator(_prefetch)] | None = None
    concurrency: _Count | None = None
    timeout: _SomeSeconds | None = None
    retry: RetryNumbers = RetryNumbers()
    unexpected: Annotated[Literal["retry", "dead"], BeforeValidator(_one_of("retry", "dead"))] | None = None
    max_deliveries: _Count | None = None
    replay: Annotated[Literal["queue", "exchange"], BeforeValidator(_one_of("queue", "exchange"))] | None = (
        None
    )
    queue_type: _QueueType | None = None


class Publish(Table):
    """`[publish]`: how long a publish may wait for its confirm, in seconds."""

    timeout: _Seconds = 10.0


class Lease(Table):
    """`[lease]`: how long a lease lasts that nobody renews, in seconds."""

    ttl: _SomeSeconds = 30.0


class RetryWorkerSettings(Table):
    """`[retry_worker]`: overdue messages a second after a pause; None is no limit, written `"none"`.

    `scoping` is for `RetryWorkerRunner`: whether scopes of messages stand in the keys of what waits.
    """

    overdue_rate: Annotated[float | None, BeforeValidator(_rate)] = 1000.0
    scoping: Annotated[bool, BeforeValidator(_switch)] = False


class Health(Table):
    """`[health]`: where /live and /ready answer; None is off."""

    listen: _Listen | None = None


class Notify(Table):
    """`[notify]`: where alarms go, as Apprise URLs, and how they read there. The URLs are secrets from end to end."""

    urls: Annotated[tuple[str, ...], BeforeValidator(_notify_urls)] = Field(default=(), repr=False)
    title: _Template = TITLE
    body: _Template = BODY
    #: The least that people are told of.
    severity: Annotated[Literal["WARNING", "CRITICAL"], BeforeValidator(_one_of("WARNING", "CRITICAL"))] = (
        "WARNING"
    )


class Dashboard(Table):
    """`[dashboard]`: where it answers, and the token it asks for."""

    listen: _Listen = "127.0.0.1:8765"
    token: _Text | None = Field(default=None, repr=False)


class Log(Table):
    """`[log]`: from which level on, and as lines for people or as JSON."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        BeforeValidator(_one_of("debug", "info", "warning", "error")),
    ] = "info"
    format: Annotated[Literal["text", "json"], BeforeValidator(_one_of("text", "json"))] = "text"


class Settings(Table):
    """Everything that can be set, as leveret.toml has it."""

    app: _Text | None = None
    namespace: Annotated[str, BeforeValidator(_namespace)] | None = None
    broker: Annotated[InstanceOf[BrokerUrl], BeforeValidator(_url(parse_broker, BrokerUrl))] | None = None
    store: Annotated[InstanceOf[StoreUrl], BeforeValidator(_url(parse_store, StoreUrl))] = StoreUrl(
        kind="sqlite", path="leveret.db"
    )
    cache: Annotated[InstanceOf[CacheUrl], BeforeValidator(_url(parse_cache, CacheUrl))] | None = None
    exchange: Annotated[InstanceOf[RMQExchangeConfig], BeforeValidator(_exchange)] | None = None
    queue_type: _QueueType = "classic"
    retry: RetryNumbers = RetryNumbers()
    shutdown_grace: _Seconds = 30.0
    publish: Publish = Publish()
    lease: Lease = Lease()
    retry_worker: RetryWorkerSettings = RetryWorkerSettings()
    health: Health = Health()
    notify: Notify = Notify()
    dashboard: Dashboard = Dashboard()
    log: Log = Log()
    workers: Mapping[str, WorkerSettings] = Field(default_factory=dict)


#: A table as a mapping of its keys, a setting as None.
Shape: TypeAlias = Mapping[str, "Shape | None"]


def _shape(model: type[BaseModel]) -> Shape:
    shape: dict[str, Shape | None] = {}
    for name, info in model.model_fields.items():
        kind = info.annotation
        shape[name] = _shape(kind) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return shape


WORKER_SHAPE: Shape = _shape(WorkerSettings)
SHAPE: Shape = {**_shape(Settings), "workers": {"*": WORKER_SHAPE}}


def children(path: Path) -> Shape | None:
    """The keys of the table at *path*, with `*` for any; None where a setting stands there.

    Raises:
        KeyError: nothing of that name can be set.
    """
    shape: Shape | None = SHAPE
    for key in path:
        if shape is None:
            raise KeyError(key)
        shape = shape["*"] if "*" in shape else shape[key]
    return shape


def leaves(shape: Shape = SHAPE, prefix: Path = ()) -> list[Path]:
    """Every setting whose name does not hold a worker's name."""
    found: list[Path] = []
    for name, below in shape.items():
        if below is None:
            found.append((*prefix, name))
        elif "*" not in below:
            found += leaves(below, (*prefix, name))
    return found
