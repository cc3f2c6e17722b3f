"""`python -m leveret.runtime.reference`: the page about the settings, from the settings themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Final, Literal, NamedTuple, TypeGuard, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from leveret.core.policy import RetryPolicy
from leveret.pipeline.worker import WorkerSpec
from leveret.runtime.schema import MOST_PREFETCH, Path, RetryNumbers, Settings, WorkerSettings
from leveret.runtime.sources import CONFIG, FILE, SECRETS, variable

_OPENING: Final = f"""\
# Configuration

*Written by `make docs` from the settings themselves.*

Settings come from five places. The first that says anything about a setting wins, setting by setting:

1. a flag: `--broker`, `--store`, `--namespace`, or `--set workers.charge.prefetch=50`
2. the code: what `Leveret(…)` and `@app.worker(…)` are given
3. the environment: `LEVERET_…`, two underscores for each level down
4. the file `./{FILE}`, or the one that `--config` or `{CONFIG}` names
5. the default

Code beats the environment so that a test on `memory://` never reaches production through a stray variable. Leave a
value out of the code where operators are to choose. `leveret run` and `leveret doctor` show each value with its origin.

```toml
app = "shop:app"
namespace = "shop"
broker = ["amqp://shop@rabbit-1", "amqp://shop@rabbit-2"]
store = "sqlite:////srv/shop/leveret.db"
retry = {{ first_delay = 10, max_attempts = 8 }}

[workers.charge]
prefetch = 50
```

- Durations are seconds, with fractions where wanted. 0 is zero, not "none".
- In a variable, several URLs stand with commas between them; a variable that is empty counts as not given.
- A secret may lie in a file of its own: the variable with `_FILE` at its end names that file.
- An unknown key, and a `LEVERET_…` variable within two letters of a known one, is a fault: all faults are told at once,
  each with its place and the name that was probably meant, and nothing is started. Another unknown variable is warned
  about. `LEVERET_TEST_…` is never looked at.
- Passwords and tokens are shown nowhere.
"""


class Words(NamedTuple):
    """What a setting does, and how it is written, as TOML behind its key."""

    does: str
    example: str


_LATER: Final = "Read and checked; this release does not use it yet."

_RETRY: Final[Mapping[str, Words]] = {
    "first_delay": Words("Delay before the second run.", "10"),
    "factor": Words("Each delay is so many times the one before it.", "1.5"),
    "jitter": Words("Each delay is made longer or shorter by up to this part of it, at random.", "0.2"),
    "max_delay": Words("The longest delay.", "3600"),
    "max_attempts": Words("All runs, the first one included.", "8"),
    "attempts_cap": Words("What a failure's own `retry_max` may raise the runs to. Left out: 11, or `max_attempts` "
                          "where that is more.", "20"),
    "max_retry_after": Words("Bounds a failure's own `retry_after`. Left out: no bound.", "900"),
    "max_age": Words("Dead so long after the first failure, whatever runs are left. Left out: no bound.", "86400"),
}  # fmt: skip

WORKER_WORDS: Final[Mapping[str, Words]] = {
    "prefetch": Words("Messages that the broker hands over at a time.", "50"),
    "concurrency": Words("Handlers that run at a time. Left out: as `prefetch`.", "4"),
    "timeout": Words("A run that takes longer fails softly. Left out: no limit.", "30"),
    "unexpected": Words("What any other exception is: worth a retry, or dead at once.", '"dead"'),
    "max_deliveries": Words("Starts of one message after which it is dead, where the process died each time.", "3"),
    "replay": Words("Whether a retry goes straight back to the worker's queue, or through the exchange to all.",
                    '"exchange"'),
    "queue_type": Words("Of the worker's queue. Left out: as at the top.", '"quorum"'),
} | {f"retry.{name}": words for name, words in _RETRY.items()}  # fmt: skip

WORDS: Final[Mapping[str, Words]] = {
    "app": Words("Where the app is, so that `leveret run` needs no argument.", '"shop:app"'),
    "namespace": Words("First part of every exchange, queue and row.", '"shop"'),
    "broker": Words("RabbitMQ, one URL or one for each node; or `memory://`. There is no default: a broker is named, "
                    "never guessed.", '["amqp://shop@rabbit-1", "amqp://shop@rabbit-2"]'),
    "store": Words("Where waiting and dead messages are kept: [Choosing a store](choosing-a-store.md).",
                   '"postgresql://shop@db-1/shop?schema=leveret"'),
    "cache": Words("Redis before a MongoDB store; for `RetryWorkerRunner` only.", '"redis://cache-1:6379/0"'),
    "exchange": Words("The data exchange, a topic; another type is named in code. Left out: `<namespace>.events`.",
                      '"shop.orders"'),
    "queue_type": Words("Of the queues that leveret declares for workers.", '"quorum"'),
    "shutdown_grace": Words("What handlers that run get to end by themselves when the process is stopped.", "60"),
    "publish.timeout": Words("How long a publish may wait for its confirm; then it is unknown.", "5"),
    "lease.ttl": Words("How long a lease lasts that nobody renews: so long after a kill a standby takes over. See "
                       "[Running two retry workers](two-retry-workers.md).", "15"),
    "retry_worker.overdue_rate": Words("How many overdue messages a second go out after a pause, beside those that "
                                       'fall due now; `"none"`: no limit.', "200"),
    "retry_worker.scoping": Words("For `RetryWorkerRunner`: whether the scope that a message names stands in the key "
                                  "under which it waits.", "true"),
    "health.listen": Words(f"Where `/live` and `/ready` answer. Left out: nowhere. {_LATER}", '"127.0.0.1:8766"'),
    "notify.urls": Words("Where alarms go, as Apprise URLs: [Alarms](alarms.md).", '["mailto://ops:secret@example.org"]'),
    "notify.title": Words("How the first line of an alarm reads there.", '"{severity} {code}"'),
    "notify.body": Words("How the rest of it reads.", '"{title}"'),
    "notify.severity": Words("The least that people are told of: `WARNING` or `CRITICAL`.", '"CRITICAL"'),
    "dashboard.listen": Words(f"Where the dashboard answers. {_LATER}", '"127.0.0.1:9000"'),
    "dashboard.token": Words(f"What the dashboard asks for, where it answers to others than this host. {_LATER}",
                             '"a-long-secret"'),
    "log.level": Words("What `leveret run`, `keeper` and `retry-worker` log, and all that is graver.", '"warning"'),
    "log.format": Words("Lines for people, or one JSON object each.", '"json"'),
} | {f"retry.{name}": words for name, words in _RETRY.items()}  # fmt: skip

#: What a decorator that leaves everything out stands for. How many run at a time goes by another setting.
_WORKER_DEFAULTS: Final = {
    each.name: each.default
    for each in fields(WorkerSpec)
    if each.default is not MISSING and each.name != "concurrency"
}

#: What a setting takes, by the name of what checks it.
_TAKES: Final[Mapping[str, str]] = {
    "_seconds": "seconds",
    "_some_seconds": "seconds, more than 0",
    "_count": "whole number from 1",
    "_prefetch": f"whole number, 1 to {MOST_PREFETCH}",
    "_factor": "number from 0",
    "_share": "number from 0 to 1",
    "_rate": 'number above 0, or `"none"`',
    "_switch": "`true` or `false`",
    "_text": "text",
    "_listen": "`host:port`",
    "_template": "text; `{code}`, `{title}`, `{fields}` and the like stand for what the alarm says",
    "_notify_urls": "list of URLs",
    "_exchange": "text",
    "_namespace": "1 to 64 letters, digits, `_`, `-`",
}


def page() -> str:
    """The whole page, in Markdown."""
    parts = [_OPENING, "## Top of the file\n", _table((), Settings, WORDS)]
    for name, info in Settings.model_fields.items():
        kind = info.annotation
        if name == "retry":
            parts.append(
                "## [retry]\n\nNumbers of the `RetryPolicy` of workers that name none in code. The defaults are the "
                "policy's own.\n"
            )
        elif _is_table(kind):
            parts.append(f"## [{name}]\n")
        if not _is_table(kind):
            continue
        parts.append(_table((name,), kind, WORDS))
    parts.append(
        "## [workers.NAME]\n\nOf one worker. What its decorator is given in code beats these. In a variable the name "
        "stands in capitals, with `_` for `-`.\n"
    )
    parts.append(_table(("workers", "NAME"), WorkerSettings, WORKER_WORDS))
    parts.append(
        "## [workers.NAME.retry]\n\nLeft out: as the worker's policy in code has it, else as `[retry]`.\n"
    )
    parts.append(_table(("workers", "NAME", "retry"), RetryNumbers, WORKER_WORDS))
    return "\n".join(parts)


def _table(path: Path, model: type[BaseModel], words: Mapping[str, Words]) -> str:
    lines = ["| key | variable | takes | default | what it does | example |", "|---|---|---|---|---|---|"]
    inside = path[2:] if path[:1] == ("workers",) else path
    for name, info in model.model_fields.items():
        if name == "workers" or _is_table(info.annotation):
            continue
        said = words[".".join((*inside, name))]
        named = variable((*path, name))
        cells = [
            f"`{name}`",
            f"`{named}`" + (f", `{named}_FILE`" if (*path, name) in SECRETS else ""),
            _takes(info),
            _default(path, name, info.default),
            said.does,
            f"`{name} = {said.example}`",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _is_table(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _takes(info: FieldInfo) -> str:
    for part in (info.annotation, *info.metadata, *_parts(info.annotation)):
        if get_origin(part) is Literal:
            return " or ".join(f'`"{each}"`' for each in get_args(part))
    for part in (*info.metadata, *_parts(info.annotation)):
        if isinstance(part, BeforeValidator):
            return _TAKES.get(part.func.__name__, "URL")
    raise TypeError(f"{info!r}: nothing says what it takes")


def _parts(kind: object) -> Iterator[object]:
    for part in get_args(kind):
        yield part
        yield from _parts(part)


def _default(path: Path, name: str, default: object) -> str:
    if path[-1:] == ("retry",):
        default = getattr(RetryPolicy(), name) if path == ("retry",) else None
    elif path[:1] == ("workers",):
        default = _WORKER_DEFAULTS.get(name)
    if default is None or default == ():
        return "–"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, (int, float)):
        return f"`{default:g}`"
    return f'`"{default}"`'.replace("\n", "\\n")


if __name__ == "__main__":
    sys.stdout.write(page())
