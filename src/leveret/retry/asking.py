"""Asking: a person's act is written into the store, and what its holder reports is waited for (O1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leveret.core.errors import ConfigError
from leveret.core.retry_entry import Filter
from leveret.ports import Acknowledged, Act, ActStore, World

#: Seconds until it is said that nobody answers.
PATIENCE = 5.0
#: Seconds between looks for an answer.
LOOK_EVERY = 0.05
QUICK_LOOKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ActReport:
    """What became of an act.

    Where nobody answered, it stays written, and the next holder of the lease does it.
    """

    act_id: str
    #: Whether a holder answered in time.
    answered: bool
    #: Whether it is finished.
    finished: bool = False
    #: Who did it: host/pid.
    by: str = ""
    #: How many were meant, and how many were changed.
    asked: int = 0
    done: int = 0
    dead_again: int = 0
    maybe_twice: int = 0
    #: A sentence for each kind of "not".
    notes: tuple[str, ...] = ()


def filter_to_arguments(wanted: Filter) -> dict[str, Any]:
    """A filter as an act carries it."""
    found = {name: getattr(wanted, name) for name in Filter.__slots__ if name not in {"namespace", "ids"}}
    return {"ids": list(wanted.ids)} | {name: value for name, value in found.items() if value is not None}


def filter_of(arguments: Mapping[str, Any], namespace: str) -> Filter:
    """The filter that an act carries."""
    known = {name: arguments[name] for name in Filter.__slots__ if name in arguments and name != "namespace"}
    known["ids"] = tuple(known.get("ids", ()))
    return Filter(namespace=namespace, **known)


async def ask(
    store: ActStore,
    world: World,
    *,
    namespace: str,
    verb: str,
    wanted: Filter,
    more: Mapping[str, Any],
    nudge: Callable[[], object],
    progress: Callable[[ActReport], object] = lambda _: None,
    patience: float = PATIENCE,
) -> ActReport:
    """Write an act and wait for its report; *nudge* tells a holder in this process.

    Raises:
        ConfigError: the filter names nothing; an act never takes everything by accident.
        StoreError: it could not be written; nothing was asked.
    """
    if not wanted.names_something:
        raise ConfigError(
            f"{verb} needs ids, or words that say which: worker, reason, type, text, since, until, attempts"
        )
    act = Act(
        id=world.new_id(),
        namespace=namespace,
        verb=verb,
        arguments=filter_to_arguments(wanted) | dict(more),
        asked_at=world.clock.now(),
    )
    await store.ask(act)
    nudge()
    started = world.clock.monotonic()
    last: Acknowledged | None = None
    looks = 0
    while True:
        found = await store.act(act.id)
        report = found.report if found is not None else None
        if report is not None and report != last:
            last = report
            started = world.clock.monotonic()
            progress(_told(act, report))
        if report is not None and report.finished:
            return _told(act, report)
        if world.clock.monotonic() - started >= patience:
            return ActReport(act_id=act.id, answered=False) if report is None else _told(act, report)
        looks += 1
        # A holder in this process answers within a few turns of the loop.
        await world.clock.sleep(0 if looks < QUICK_LOOKS else LOOK_EVERY)


def _told(act: Act, report: Acknowledged) -> ActReport:
    return ActReport(act_id=act.id, answered=True, **report._asdict())
