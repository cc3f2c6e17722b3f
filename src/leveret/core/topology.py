"""Exchanges, queues and bindings: the names on the broker, and what each side of leveret declares there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from leveret.core.errors import ConfigError, WorkerDefinition
from leveret.core.properties import check_short

ExchangeType = Literal["topic", "fanout", "direct", "headers"]
QueueType = Literal["classic", "quorum"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
#: A worker's queue is `<namespace>.<worker>`: these would collide with queues and exchanges of leveret's own.
_REFUSED = frozenset({
    "retry", "retry_worker", "observer", "alerts", "direct", "broadcast",
    "intent", "slots", "control", "strategy_state_set", "pause",
})  # fmt: skip

_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RMQExchangeConfig:
    """An exchange: its name, type, and whether it outlives a restart of the broker.

    Raises:
        ConfigError: an empty name, one over 255 bytes, one that begins with `amq.`, or an unknown type.

    Example:
        >>> RMQExchangeConfig("shop.events").type
        'topic'
    """

    name: str
    type: ExchangeType = "topic"
    durable: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"exchange name {self.name!r}: expected a name of at least one character")
        check_short(self.name, "exchange name")
        if self.name.startswith("amq."):
            raise ConfigError(f"exchange name {self.name!r}: names that begin with amq. belong to the broker")
        if self.type not in {"topic", "fanout", "direct", "headers"}:
            raise ConfigError(f"exchange {self.name}: type={self.type!r}, expected topic, fanout or direct")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue to be declared: durable, unless `temporary`; `queue_type` None leaves the type to the broker."""

    name: str
    queue_type: QueueType | None = "classic"
    arguments: Mapping[str, Any] = field(default_factory=lambda: _NO_ARGUMENTS)
    #: Consumed by one alone, which works on a classic queue: a quorum queue of that name is refused, not shared.
    pinned: bool = False
    #: Of one connection alone, and gone with it: to look on, never for a message that must not be lost.
    temporary: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue bound to an exchange."""

    exchange: str
    queue: str
    routing_key: str = ""


@dataclass(frozen=True, slots=True)
class Topology:
    """What one side needs on the broker. Declaring it twice changes nothing."""

    exchanges: tuple[RMQExchangeConfig, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def __add__(self, other: Topology) -> Topology:
        return Topology(
            _once(self.exchanges + other.exchanges, lambda e: e.name),
            _once(self.queues + other.queues, lambda q: q.name),
            _once(self.bindings + other.bindings, lambda b: b),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One way in which what lies on the broker is not what a topology says."""

    kind: Literal["exchange", "queue"]
    name: str
    #: `missing`: it is not there. `differs`: harmless, used as it is. `unsafe`: it loses messages, or hides them, and
    #: is not used. `refused`: the broker does not let us look or declare.
    state: Literal["missing", "differs", "unsafe", "refused"]
    #: What differs, such as `durable` or `x-queue-type`; empty where it is missing or refused.
    argument: str = ""
    #: Its value over there, and ours; None: none.
    there: Any = None
    here: Any = None
    #: All of it in a sentence, with the way out.
    words: str


def _once(values: Iterable[Any], key: Any) -> tuple[Any, ...]:
    return tuple({key(value): value for value in values}.values())


def check_namespace(value: object) -> str:
    """*value* where it can be a namespace.

    Raises:
        ConfigError: anything but 1 to 64 letters, digits, `_` and `-`; dots part the names on the broker.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ConfigError(
            f"namespace {value!r}: expected 1 to 64 of A-Z a-z 0-9 _ - (no dots: it is the first part of every name)"
        )
    return value


def check_worker_name(value: object) -> str:
    """*value* where it can be a worker's name.

    Raises:
        WorkerDefinition: the same letters as a namespace, and none of the names that leveret's own queues have.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise WorkerDefinition(f"worker name {value!r}: expected 1 to 64 of A-Z a-z 0-9 _ - (no dots)")
    if value in _REFUSED or value.startswith("events") or value.endswith("suspects"):
        raise WorkerDefinition(
            f"worker name {value!r}: <namespace>.{value} is, or could become, a queue or exchange of leveret's own. "
            "Choose another name: @app.worker(..., name=...)"
        )
    return value


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one namespace on the broker.

    Example:
        >>> Names("shop").queue("charge"), Names("shop").retry_queue
        ('shop.charge', 'shop.retry')
    """

    namespace: str

    @property
    def events(self) -> str:
        """The data exchange, where none is named."""
        return f"{self.namespace}.events"

    @property
    def retry_queue(self) -> str:
        """Where soft failures go; addressed by name, so that "not returned" speaks of this queue."""
        return f"{self.namespace}.retry"

    @property
    def dead_letters(self) -> str:
        """The dead-letter queue, and the fanout exchange of the same name for the broker's own dead-lettering."""
        return f"{self.namespace}.events.dlq"

    @property
    def observer(self) -> str:
        """The fanout exchange where envelopes can be watched."""
        return f"{self.namespace}.observer"

    @property
    def alerts(self) -> str:
        """The topic exchange of alarms."""
        return f"{self.namespace}.alerts"

    @property
    def direct(self) -> str:
        """The topic exchange that leads to the channels of instances, by `<instance key>.<channel>`."""
        return f"{self.namespace}.direct"

    @property
    def broadcast(self) -> str:
        """The fanout exchange that leads to every instance."""
        return f"{self.namespace}.broadcast"

    def queue(self, worker: str) -> str:
        """A worker's queue."""
        return f"{self.namespace}.{worker}"

    def suspects(self, worker: str) -> str:
        """Where a worker's suspects wait: messages that were started more than once without being settled."""
        return f"{self.namespace}.{worker}.suspects"


def base_topology(
    names: Names, exchange: RMQExchangeConfig, queue_type: QueueType, *, pinned: bool
) -> Topology:
    """What every side declares, failing side and retry worker alike, so that no order of start-up loses anything.

    Args:
        names: of the namespace.
        exchange: the data exchange.
        queue_type: of the retry and dead-letter queue.
        pinned: both are classic, whatever *queue_type* says (on SQLite they are consumed exclusively).
    """
    kind: QueueType = "classic" if pinned else queue_type
    return Topology(
        exchanges=(
            exchange,
            RMQExchangeConfig(names.dead_letters, "fanout"),
            RMQExchangeConfig(names.observer, "fanout"),
            RMQExchangeConfig(names.alerts),
        ),
        queues=(
            Queue(names.retry_queue, kind, pinned=pinned),
            Queue(names.dead_letters, kind, pinned=pinned),
        ),
        bindings=(Binding(names.dead_letters, names.dead_letters),),
    )


def worker_topology(
    names: Names,
    exchange: RMQExchangeConfig,
    worker: str,
    types: Iterable[str],
    queue_type: QueueType,
    arguments: Mapping[str, Any] = _NO_ARGUMENTS,
) -> Topology:
    """A worker's queue with its bindings, and its suspects queue."""
    queue = names.queue(worker)
    keys = ("",) if exchange.type == "fanout" else tuple(types) or (worker,)
    return Topology(
        exchanges=(exchange,),
        queues=(Queue(queue, queue_type, arguments), Queue(names.suspects(worker), queue_type)),
        bindings=tuple(Binding(exchange.name, queue, key) for key in keys),
    )
