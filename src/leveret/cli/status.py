"""`leveret status`: what waits, what died and who holds the leases, of each namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import typer

from leveret.cli import exits
from leveret.cli.options import Common, command
from leveret.cli.words import counted, holder, span

if TYPE_CHECKING:
    from leveret.cli.broker import Lying
    from leveret.cli.looking import Look
    from leveret.ports import LeaseState

#: Seconds that the oldest due message may be late before something is wrong: that of the alarm `retries_late`.
LATE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a namespace stands."""

    namespace: str
    waiting: int
    overdue: int
    #: Seconds until the next one is due, negative: so late is the oldest; None: nothing waits for a time.
    next_due_in: float | None
    dead: int
    retry_worker: LeaseState | None
    keeper: LeaseState | None

    @property
    def faults(self) -> list[str]:
        """What is wrong, with the way out."""
        if self.next_due_in is None or self.next_due_in > -LATE:
            return []
        late = f"the oldest for {span(-self.next_due_in)}"
        what = f"{counted(self.overdue, 'retry', 'retries')} of {self.namespace} overdue, {late}"
        if self.retry_worker is None:
            return [f"no retry worker, and {what}. Start one: leveret run, or leveret retry-worker"]
        return [
            f"{what}, though {holder(self.retry_worker.holder)} holds the lease: see its log and its broker"
        ]


def add_to(cli: typer.Typer) -> None:
    """Declare `status`."""
    command(cli, "status")(status)


async def status(*, common: Common) -> int:
    """Show what waits, what died, who holds the leases, and how the broker stands.

    Unkept are dead letters that no keeper has stored yet. Ends with exit code 1 when something is wrong: retries more
    than a minute overdue; a broker that is not to be reached, or takes no messages; messages in the retry queue or the
    dead-letter queue that nobody consumes.
    """
    from leveret.cli.looking import looking

    async with looking(common) as look:
        namespaces = await look.namespaces()
        standings = [await standing(look, namespace) for namespace in namespaces]
        over_there = await _over_there(look, namespaces)
        console = look.console
        faults = [fault for each in standings for fault in each.faults] + over_there.faults
        if console.json:
            for each in standings:
                console.record(_record(each, over_there))
        else:
            await look.show_head()
            if standings:
                console.table(
                    [
                        "namespace",
                        "waiting",
                        "overdue",
                        "next due",
                        "dead",
                        "unkept",
                        "retry worker",
                        "keeper",
                    ],
                    [_row(each, over_there) for each in standings],
                    right=("waiting", "overdue", "dead", "unkept"),
                )
            if over_there.queues:
                console.table(
                    ["queue", "ready", "consumers"],
                    [_queue_row(queue) for pair in over_there.queues.values() for queue in pair],
                    right=("ready", "consumers"),
                )
            if over_there.takes:
                console.result(f" {over_there.takes}", "ok")
            for fault in faults:
                console.result(f" {fault}", "fault")
        return exits.WRONG if faults else exits.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class OverThere:
    """How the broker stands; empty where none is named, or it lives inside one process."""

    #: That it takes messages; empty where it does not.
    takes: str = ""
    #: Why it is of no use now.
    fault: str = ""
    #: The retry queue and the dead-letter queue of each namespace.
    queues: Mapping[str, tuple[Lying, Lying]] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """What is wrong, with the way out."""
        found = [self.fault] if self.fault else []
        for retry, dead in self.queues.values():
            for queue, service in ((retry, "retry-worker"), (dead, "keeper")):
                if queue.ready and not queue.consumers:
                    found.append(
                        f"{counted(queue.ready, 'message')} in {queue.queue}, and nobody consumes it. Start one: "
                        f"leveret run, or leveret {service}"
                    )
        return found


async def _over_there(look: Look, namespaces: Iterable[str]) -> OverThere:
    from leveret.cli.broker import blocked, lying
    from leveret.cli.reaching import connected
    from leveret.cli.words import broker_words
    from leveret.core.errors import BrokerError, MissingExtra

    if look.config.broker is None or look.config.broker.scheme == "memory":
        return OverThere()
    try:
        async with connected(look.config, look.world, look.console) as transport:
            why = await blocked(transport)
            about = broker_words(transport)
            return OverThere(
                takes="" if why else f"{about} takes messages, and is not blocked",
                fault=f"{about}: {why}" if why else "",
                queues={namespace: await lying(transport, namespace) for namespace in namespaces},
            )
    except (BrokerError, MissingExtra) as error:
        return OverThere(fault=str(error))


def _record(each: Standing, over_there: OverThere) -> dict[str, object]:
    told = {**asdict(each), "retry_worker": _lease(each.retry_worker), "keeper": _lease(each.keeper)}
    told["faults"] = each.faults + over_there.faults
    told["broker_takes_messages"] = bool(over_there.takes)
    pair = over_there.queues.get(each.namespace)
    told["unkept"] = None if pair is None else pair[1].ready
    told["queues"] = [] if pair is None else [queue._asdict() for queue in pair]
    return told


def _queue_row(queue: Lying) -> list[str]:
    if queue.ready is None:
        return [queue.queue, "not there", "–"]
    return [queue.queue, str(queue.ready), str(queue.consumers)]


async def standing(look: Look, namespace: str) -> Standing:
    """How *namespace* stands, by the store's word."""
    from leveret.core.retry_entry import Filter

    here = Filter(namespace=namespace)
    store = look.store
    leases = await store.leases(namespace)

    def held(name: str) -> LeaseState | None:
        state = leases.get(f"{namespace}/{name}")
        return state if state is not None and state.left > 0 else None

    return Standing(
        namespace=namespace,
        waiting=await store.count_entries(here),
        overdue=await store.count_entries(here, overdue=True),
        next_due_in=await store.next_due(namespace),
        dead=await store.count_letters(here),
        retry_worker=held("retry"),
        keeper=held("keeper"),
    )


def _row(each: Standing, over_there: OverThere) -> list[str]:
    pair = over_there.queues.get(each.namespace)
    unkept = "–" if pair is None or pair[1].ready is None else str(pair[1].ready)
    due = "–"
    if each.next_due_in is not None:
        late = each.next_due_in < 0
        due = f"{span(-each.next_due_in)} late" if late else f"in {span(each.next_due_in)}"
    return [
        each.namespace, str(each.waiting), str(each.overdue), due, str(each.dead), unkept,
        lease_words(each.retry_worker), lease_words(each.keeper),
    ]  # fmt: skip


def lease_words(state: LeaseState | None) -> str:
    """Who holds a lease, in words."""
    if state is None:
        return "nobody"
    return f"{holder(state.holder)} (term {state.term}, {state.left:.0f} s left)"


def _lease(state: LeaseState | None) -> dict[str, object] | None:
    return None if state is None else state._asdict()
