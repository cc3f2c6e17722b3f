"""`leveret tail`: failures of a namespace as they happen."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from leveret.cli.options import Common, command
from leveret.cli.words import SHORTEST, broker_words, safe, span

if TYPE_CHECKING:
    from leveret.cli.console import Console
    from leveret.core.topology import Names
    from leveret.ports import Delivery, World

Kind = Literal["soft", "dead", "other"]

#: Copies that wait for a slow terminal; then the oldest go. Nothing depends on them.
_MOST_WAITING = 10_000
#: Copies in hand at once.
_PREFETCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A failure, as its copy tells of it."""

    kind: Kind
    worker: str = ""
    message_id: str = ""
    type: str = ""
    #: The run that failed, from 1; None: unknown.
    attempt: int | None = None
    max_attempts: int | None = None
    #: Seconds until it is tried again.
    again_in: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        tried = "" if self.attempt is None else f"attempt {self.attempt}"
        if self.kind == "soft":
            of = "" if self.max_attempts is None else f" of {self.max_attempts}"
            again = "" if self.again_in is None else f", again in {span(self.again_in)}"
            told = f"{tried}{of}{again}: {self.reason}"
        else:
            told = f"{tried}  {self.reason}" if tried else self.reason
        id = self.message_id[-SHORTEST:] or "–"
        return "  ".join(safe(part) for part in (self.kind, self.worker or "–", id, told))


def add_to(cli: typer.Typer) -> None:
    """Declare `tail`."""
    command(cli, "tail")(tail)


async def tail(
    worker: Annotated[
        str | None, typer.Option("--worker", metavar="NAME", help="Failures of this worker only.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="KINDS", help="soft, dead, or both with a comma between them."),
    ] = None,
    *,
    common: Common,
) -> None:
    """Show failures of a namespace as they happen, until Ctrl+C.

    What is shown are copies, from a queue that is gone with this command; no message is taken from anybody.
    """
    from leveret.cli.console import Console
    from leveret.cli.looking import refuse_memory_broker
    from leveret.cli.reaching import connected
    from leveret.core.topology import Binding, Names, Queue, RMQExchangeConfig, Topology
    from leveret.runtime.runner import on_signals
    from leveret.runtime.world import system_world

    kinds = kinds_of(only)
    config = common.settings()
    refuse_memory_broker(config, "tail")
    names = Names(config.require_namespace())
    world = system_world()
    queue = f"{names.namespace}.tail.{world.new_id()}"
    # By way of the second exchange comes what the broker itself dead-letters; the queue of that name loses nothing.
    watched = (names.observer, names.dead_letters)
    topology = Topology(
        exchanges=tuple(RMQExchangeConfig(name, "fanout") for name in watched),
        queues=(Queue(queue, None, {"x-max-length": _MOST_WAITING}, temporary=True),),
        bindings=tuple(Binding(name, queue) for name in watched),
    )
    console = Console(common)
    came: asyncio.Queue[Delivery] = asyncio.Queue()
    stop = asyncio.Event()
    async with on_signals(stop.set, wanted=True), connected(config, world, console) as transport:
        await transport.declare(topology)
        await transport.consume(queue, came.put_nowait, prefetch=_PREFETCH)
        console.note(f" watching {names.namespace} on {broker_words(transport)}; Ctrl+C stops")
        stopping = asyncio.ensure_future(stop.wait())
        showing = asyncio.ensure_future(_show(console, came, names, world, worker, kinds))
        try:
            done, _ = await asyncio.wait({stopping, showing}, return_when=asyncio.FIRST_COMPLETED)
            if showing in done:
                showing.result()
        finally:
            stopping.cancel()
            showing.cancel()


async def _show(
    console: Console,
    came: asyncio.Queue[Delivery],
    names: Names,
    world: World,
    worker: str | None,
    kinds: frozenset[Kind],
) -> None:
    from leveret.cli.words import clock, iso

    while True:
        delivery = await came.get()
        delivery.ack()
        seen = read(delivery, names, world)
        if seen.kind not in kinds or worker not in {None, seen.worker}:
            continue
        now = world.clock.now()
        if console.json:
            console.record({"at": iso(now), **asdict(seen)}, now=True)
        else:
            console.result(
                f"{clock(now, now=now)}  {seen}", {"dead": "fault", "soft": "warn"}.get(seen.kind, "")
            )


def kinds_of(only: str | None) -> frozenset[Kind]:
    """Which failures are shown.

    Raises:
        ConfigError: a kind that there is not.
    """
    from leveret.core.errors import ConfigError

    if only is None:
        return frozenset(("soft", "dead", "other"))
    found: set[Kind] = set()
    for word in only.split(","):
        match word.strip():
            case "soft":
                found.add("soft")
            case "dead":
                found.add("dead")
            case _:
                raise ConfigError(f"--only {only}: expected soft, dead, or soft,dead")
    return frozenset(found)


def read(delivery: Delivery, names: Names, world: World) -> Seen:
    """What a copy tells of. Whatever it is, something can be said of it."""
    from leveret.core import headers as h
    from leveret.dead_letters.reading import read as read_letter

    if delivery.exchange != names.observer:
        letter = read_letter(
            delivery,
            namespace=names.namespace,
            events=names.events,
            now=world.clock.now(),
            new_id=world.new_id,
        )
        return Seen(
            kind="dead",
            worker=letter.worker,
            message_id=letter.message_id or "",
            type=letter.type,
            attempt=letter.attempts or None,
            reason=letter.reason,
        )
    try:
        outer = json.loads(delivery.body)
    except (ValueError, RecursionError):
        outer = None
    failed = _object(outer, "data")
    kinds: dict[Any, Kind] = {"soft-failure": "soft", "hard-failure": "dead"}
    kind = kinds.get(_text(outer, "data_type"), "other")
    if kind == "other":
        return Seen(kind=kind, reason=f"something that is no failure was published to {names.observer}")
    properties = delivery.properties
    retry = _object(failed, "retry")
    most, after = _number(retry, "max"), _number(retry, "after")
    # Leveret's own copies bear the attempt; the form that other programs write counts retries.
    attempt = (
        properties.header(h.ATTEMPT) if properties.header(h.ATTEMPT) is not None else _number(retry, "count")
    )
    return Seen(
        kind=kind,
        worker=_text(_object(outer, "origin"), "type"),
        message_id=properties.message_id or _text(failed, "job_id"),
        type=_text(failed, "data_type"),
        attempt=attempt if isinstance(attempt, int) else None,
        max_attempts=None if most is None else int(most) + 1,
        again_in=after if kind == "soft" else None,
        reason=_text(outer, "error") if kind == "dead" else _text(retry, "reason"),
    )


def _object(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: object, name: str) -> str:
    found = _object(value, name)
    return found if isinstance(found, str) else ""


def _number(value: object, name: str) -> float | None:
    found = _object(value, name)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None
