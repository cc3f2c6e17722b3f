"""RuntimeConfig: what is set, and where each value comes from. A flag beats code, environment, file and default."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from leveret.core.errors import ConfigError
from leveret.core.policy import RetryPolicy
from leveret.core.topology import QueueType, RMQExchangeConfig
from leveret.core.urls import BrokerUrl, CacheUrl, StoreUrl
from leveret.runtime.schema import (
    Dashboard,
    Health,
    Lease,
    Log,
    Notify,
    Path,
    Publish,
    RetryNumbers,
    RetryWorkerSettings,
    Settings,
    WorkerSettings,
    children,
)
from leveret.runtime.sources import (
    FILE,
    Findings,
    Layer,
    fold,
    read_code,
    read_environment,
    read_file,
    read_flags,
)


class _Layers(NamedTuple):
    """What each source gives; a later one wins, setting by setting."""

    file: Layer
    environment: Layer
    code: Layer
    flags: Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """What is set, each value with its origin. Made by `load_config`; its `repr` shows no secret.

    Attributes:
        app: MODULE:APP, so that `leveret run` needs no argument.
        namespace: first part of every name on the broker; `require_namespace` where there has to be one.
        broker: where it is and how to get in; `require_broker` where there has to be one.
        store: where waiting and dead messages are kept; `sqlite:///leveret.db` unless named.
        cache: of a MongoDB store.
        exchange: the data exchange, where not `<namespace>.events`.
        queue_type: of the queues that leveret declares.
        retry: numbers for `retry_policy`.
        shutdown_grace: seconds that running handlers get at the end.
        workers: settings by worker, as given; `worker` looks one up.
        warnings: sentences to be told once: variables that are ignored, or empty.

    Example:
        >>> config = load_config(code={"broker": "memory://"}, environ={"LEVERET_RETRY__FIRST_DELAY": "10"})
        >>> config.backend, config.retry_policy(RetryPolicy()).first_delay, config.origin("retry.first_delay")
        ('memory', 10.0, 'LEVERET_RETRY__FIRST_DELAY')
    """

    app: str | None
    namespace: str | None
    broker: BrokerUrl | None
    store: StoreUrl
    cache: CacheUrl | None
    exchange: RMQExchangeConfig | None
    queue_type: QueueType
    retry: RetryNumbers
    shutdown_grace: float
    publish: Publish
    lease: Lease
    retry_worker: RetryWorkerSettings
    health: Health
    notify: Notify
    dashboard: Dashboard
    log: Log
    workers: Mapping[str, WorkerSettings]
    warnings: tuple[str, ...]
    #: What the sources gave, secrets included, so that code can be added later.
    layers: _Layers = field(repr=False)

    def origin(self, key: str) -> str:
        """Where the value of *key* comes from.

        Args:
            key: dotted, as in `retry.first_delay` or `workers.charge.prefetch`.

        Returns:
            The name of the variable or flag (`LEVERET_BROKER`, `--broker`, `--set retry.factor`), the name of the file
            (`leveret.toml`), `code`, or `default`.

        Raises:
            KeyError: there is no such setting, or a whole table is named.
        """
        path = tuple(key.split("."))
        if children(path) is not None:
            raise KeyError(f"{key} is a table; its settings have an origin each")
        if path[0] == "workers":
            path = ("workers", self._spelt(path[1]), *path[2:])
        leaf = _merge(self.layers).get(path)
        return leaf.origin if leaf else "default"

    @property
    def backend(self) -> Literal["rabbitmq", "memory"]:
        """Which kind of broker it is.

        Raises:
            ConfigError: no broker is named.
        """
        return "memory" if self.require_broker().scheme == "memory" else "rabbitmq"

    def require_broker(self, app: str | None = None) -> BrokerUrl:
        """The broker; *app* is the name for the error, else the namespace.

        Raises:
            ConfigError: none is named anywhere, with the places where it can be.
        """
        if self.broker is not None:
            return self.broker
        name = app or self.namespace
        subject = f'"{name}"' if name else "this app"
        raise ConfigError(
            f"{subject} has no broker, and leveret does not guess one. Name it in one of: --broker URL · "
            f'Leveret("{name or "shop"}", broker=URL) · LEVERET_BROKER=URL · broker = "URL" in {FILE}.\n'
            "  URL is amqp://user:password@host for RabbitMQ, or memory:// to try things out (nothing in it outlives "
            "the process)."
        )

    def require_namespace(self) -> str:
        """The namespace.

        Raises:
            ConfigError: none is named anywhere, with the places where it can be.
        """
        if self.namespace is not None:
            return self.namespace
        raise ConfigError(
            "no namespace is named, and leveret does not guess one: it is the first part of every queue and exchange. "
            'Name it in one of: --namespace NAME · Leveret("shop") · LEVERET_NAMESPACE=NAME · '
            f'namespace = "NAME" in {FILE}.'
        )

    def worker(self, name: str) -> dict[str, Any]:
        """What is set for the worker *name*, by option; `retry` as a mapping of numbers. Empty where nothing is.

        A variable cannot spell every name: LEVERET_WORKERS__SEND_MAIL__PREFETCH is meant for `send-mail` and
        `Send_Mail` as well.
        """
        given = self.workers.get(self._spelt(name))
        return given.model_dump(exclude_unset=True) if given else {}

    def retry_policy(self, base: RetryPolicy, *, worker: str | None = None) -> RetryPolicy:
        """*base* with the numbers of `[retry]`, or of `[workers.NAME.retry]` where *worker* is given.

        Raises:
            ConfigError: the numbers do not fit together, with the origin of each.
        """
        if worker is None:
            table, numbers = "retry", self.retry.model_dump(exclude_unset=True)
        else:
            table, numbers = f"workers.{worker}.retry", self.worker(worker).get("retry", {})
        try:
            return replace(base, **numbers)
        except ValueError as error:
            told = ", ".join(f"{table}.{name} from {self.origin(f'{table}.{name}')}" for name in numbers)
            raise ConfigError(f"{error} ({told})") from None

    def with_code(self, code: Mapping[str, Any]) -> RuntimeConfig:
        """The same, with more that the code gives: it beats environment and file, not flags.

        Args:
            code: nested as in leveret.toml; None is a value left out; `retry` may be a whole RetryPolicy.

        Raises:
            ConfigError: all that is wrong in it.
        """
        findings = Findings(warnings=list(self.warnings))
        layers = self.layers
        return _resolve(layers._replace(code=layers.code | read_code(code, findings)), findings)

    def with_flags(self, flags: Mapping[str, Any]) -> RuntimeConfig:
        """The same, with what was typed on a command line: it beats everything else.

        Args:
            flags: by dotted key, as `load_config` takes them.

        Raises:
            ConfigError: all that is wrong in it.
        """
        findings = Findings(warnings=list(self.warnings))
        layers = self.layers
        return _resolve(layers._replace(flags=layers.flags | read_flags(flags, findings)), findings)

    def _spelt(self, worker: str) -> str:
        """The name under which *worker* is found: its own, or as only variables spell it."""
        folded = fold(worker)
        return folded if worker not in self.workers and folded not in _named(self.layers) else worker


def load_config(
    *,
    flags: Mapping[str, Any] | None = None,
    code: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: str | FilePath | None = None,
) -> RuntimeConfig:
    """Read all settings, with the origin of each.

    Args:
        flags: by dotted key, text as it was typed: `{"broker": "memory://", "workers.charge.prefetch": "50"}`.
        code: nested as in leveret.toml; None is a value left out; `retry` may be a whole RetryPolicy.
        environ: instead of the variables of the process.
        file: instead of the one that LEVERET_CONFIG names, or ./leveret.toml where there is one. `os.devnull` is no
            settings from a file.

    Raises:
        ConfigError: all that is wrong, in one error, each fault with its origin.
    """
    variables = os.environ if environ is None else environ
    findings = Findings()
    layers = _Layers(
        file=read_file(file, variables, findings),
        environment=read_environment(variables, findings),
        code=read_code(code or {}, findings),
        flags=read_flags(flags or {}, findings),
    )
    return _resolve(layers, findings)


def _resolve(layers: _Layers, findings: Findings) -> RuntimeConfig:
    merged = _merge(layers)
    table: dict[str, Any] = {}
    for path, leaf in merged.items():
        below = table
        for key in path[:-1]:
            below = below.setdefault(key, {})
        below[path[-1]] = leaf.value
    places = {path[0]: leaf.place for path, leaf in merged.items() if len(path) == 1}
    faults = list(findings.faults)
    try:
        settings = Settings.model_validate(table, context=places)
    except ValidationError as error:
        faults += [
            _sentence(detail["loc"], detail.get("ctx", {}).get("error", detail["msg"]), merged)
            for detail in error.errors(include_url=False, include_input=False)
        ]
    # Outside the except block, so that no traceback shows pydantic's error with the values in it.
    if faults:
        raise ConfigError(_together(faults))
    values = {name: getattr(settings, name) for name in Settings.model_fields}
    return RuntimeConfig(**values, warnings=tuple(findings.warnings), layers=layers)


def _merge(layers: _Layers) -> Layer:
    named = _named(layers)
    environment: Layer = {}
    for path, leaf in layers.environment.items():
        if path[0] != "workers":
            environment[path] = leaf
            continue
        _, folded, *setting = path
        for name in [name for name in named if fold(name) == folded] or [folded]:
            environment["workers", name, *setting] = leaf
    return layers.file | environment | layers.code | layers.flags


def _named(layers: _Layers) -> dict[str, None]:
    """The workers whose names are spelt out somewhere, in the order in which they are met."""
    spelt_out = (layers.file, layers.code, layers.flags)
    return dict.fromkeys(path[1] for layer in spelt_out for path in layer if path[0] == "workers")


def _sentence(loc: Sequence[int | str], error: object, merged: Layer) -> str:
    path: Path = tuple(str(part) for part in loc)
    while path and path not in merged:
        path = path[:-1]
    if not path or path[0] in {"broker", "store", "cache"}:
        # What reads the URLs names the place itself.
        return str(error)
    return f"{merged[path].place}: {'.'.join(path)}{str(error).removeprefix(path[-1])}"


def _together(faults: Sequence[str]) -> str:
    if len(faults) == 1:
        return faults[0]
    lines = ("\n    ".join(fault.split("\n")) for fault in faults)
    return f"{len(faults)} faults in the configuration; nothing was started.\n  " + "\n  ".join(lines)
