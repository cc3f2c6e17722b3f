"""What is set, each value with its origin, as `run` and `doctor` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from leveret.runtime.config import RuntimeConfig

#: Values that are secrets, or hold one.
_SECRET: Final = frozenset({"dashboard.token", "notify.urls"})


class Setting(NamedTuple):
    """One value that somebody has set."""

    key: str
    value: str
    origin: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value} ({self.origin})"


def settings_of(config: RuntimeConfig) -> list[Setting]:
    """Every setting that is not at its default, without secrets, in the order of the schema.

    Example:
        >>> from leveret.runtime.config import load_config
        >>> [str(each) for each in settings_of(load_config(flags={"retry.factor": "3"}, environ={}))]
        ['retry.factor = 3.0 (--set retry.factor)']
    """
    from leveret.runtime.schema import WORKER_SHAPE, leaves

    keys = [".".join(path) for path in leaves()]
    keys += [
        f"workers.{worker}.{'.'.join(path)}" for worker in config.workers for path in leaves(WORKER_SHAPE)
    ]
    found = []
    for key in keys:
        origin = config.origin(key)
        if origin != "default" and (value := _value(config, key)) is not None:
            found.append(Setting(key, value, origin))
    return found


def _value(config: RuntimeConfig, key: str) -> str | None:
    if key in _SECRET:
        return "***"
    value: Any = config
    path = key.split(".")
    if path[0] == "workers":
        value, path = config.workers[path[1]], path[2:]
    for name in path:
        value = getattr(value, name)
    if value is None:
        return None
    return str(value.name if key == "exchange" else value)
