"""`leveret status`: what waits, what died and who holds the leases, of each namespace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import typer

from leveret.cli import exits
from leveret.cli.options import Common, command
from leveret.cli.words import counted, holder, span

if TYPE_CHECKING:
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
    """Show what waits, what died, and who holds the leases.

    Ends with exit code 1 when something is wrong: retries more than a minute overdue.
    """
    from leveret.cli.looking import looking

    async with looking(common) as look:
        standings = [await standing(look, namespace) for namespace in await look.namespaces()]
        console = look.console
        if console.json:
            for each in standings:
                console.record({**asdict(each), "retry_worker": _lease(each.retry_worker),
                                "keeper": _lease(each.keeper), "faults": each.faults})  # fmt: skip
        else:
            await look.show_head()
            if standings:
                console.table(
                    ["namespace", "waiting", "overdue", "next due", "dead", "retry worker", "keeper"],
                    [_row(each) for each in standings],
                    right=("waiting", "overdue", "dead"),
                )
            for fault in (fault for each in standings for fault in each.faults):
                console.result(f" {fault}", "fault")
        return exits.WRONG if any(each.faults for each in standings) else exits.DONE


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


def _row(each: Standing) -> list[str]:
    due = "–"
    if each.next_due_in is not None:
        late = each.next_due_in < 0
        due = f"{span(-each.next_due_in)} late" if late else f"in {span(each.next_due_in)}"
    return [
        each.namespace, str(each.waiting), str(each.overdue), due, str(each.dead), lease_words(each.retry_worker),
        lease_words(each.keeper),
    ]  # fmt: skip


def lease_words(state: LeaseState | None) -> str:
    """Who holds a lease, in words."""
    if state is None:
        return "nobody"
    return f"{holder(state.holder)} (term {state.term}, {state.left:.0f} s left)"


def _lease(state: LeaseState | None) -> dict[str, object] | None:
    return None if state is None else state._asdict()
