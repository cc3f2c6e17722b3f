"""Acts from the shell: which messages are meant, is it agreed, who does it, and what came of it (O1)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leveret.cli import exits
from leveret.cli.words import counted, holder, listed
from leveret.core.errors import ConfigError, NotFound
from leveret.core.retry_entry import Filter

if TYPE_CHECKING:
    from leveret.cli.looking import Look
    from leveret.cli.options import Doing
    from leveret.core.dead_letter import LetterState
    from leveret.pipeline.parts import Parts
    from leveret.retry.asking import ActReport

#: Which lease's holder does it, and who that is in words.
Lease = Literal["retry", "keeper"]
_HOLDERS: Mapping[Lease, str] = {"retry": "retry worker", "keeper": "keeper"}

#: What has been done to so many of so many.
_DONE: Mapping[str, str] = {
    "retries.now": "due now:", "retries.cancel": "cancelled", "retries.reschedule": "rescheduled",
    "retries.hold": "held", "retries.release": "released", "retries.move": "moved", "dead.replay": "published",
}  # fmt: skip


class Row(NamedTuple):
    """What a choice has to know of a message."""

    namespace: str
    id: str
    worker: str
    #: Where it goes.
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Messages that an act is about."""

    namespace: str
    #: Full ids of their own; empty: what the words choose.
    ids: tuple[str, ...]
    words: Mapping[str, Any]
    count: int
    #: Where they go, as far as a look at the first ones tells.
    places: tuple[str, ...]

    @property
    def by_words(self) -> bool:
        """Whether a filter chose them: then it is asked before they are changed."""
        return bool(self.words)


class Waiting:
    """Choosing among what waits."""

    one, many = "retry", "retries"
    lies = "waits"

    def __init__(self, look: Look) -> None:
        self._look = look

    async def rows(self, wanted: Filter, limit: int) -> list[Row]:
        """The first few that are meant."""
        entries, _ = await self._look.store.entries(wanted, limit=limit)
        return [
            Row(
                each.namespace,
                each.retry_id,
                each.worker,
                each.queue or f"{each.exchange}/{each.routing_key}",
            )
            for each in entries
        ]

    async def count(self, wanted: Filter) -> int:
        """How many are meant."""
        return await self._look.store.count_entries(wanted)

    async def instead(self, id: str) -> str:
        """Why *id* is none of them, where that can be told."""
        found = await self._look.store.letter(self._look.namespace, id)
        return "" if found is None else f" It is among the dead letters:  leveret dead show {id}"


class Lying:
    """Choosing among dead letters in some states."""

    one, many = "dead letter", "dead letters"

    def __init__(self, look: Look, states: Sequence[LetterState]) -> None:
        self._look = look
        self._states = states
        self.lies = "is discarded" if states == ("discarded",) else "lies there"

    async def rows(self, wanted: Filter, limit: int) -> list[Row]:
        """The first few that are meant."""
        from leveret.dead_letters.replay import place

        letters, _ = await self._look.store.letters(wanted, limit=limit, states=self._states)
        return [Row(each.namespace, each.id, each.worker, place(each)) for each in letters]

    async def count(self, wanted: Filter) -> int:
        """How many are meant."""
        return await self._look.store.count_letters(wanted, states=self._states)

    async def instead(self, id: str) -> str:
        """Why *id* is none of them, where that can be told."""
        found = await self._look.store.letter(self._look.namespace, id)
        if found is None:
            entry = await self._look.store.entry(self._look.namespace, id)
            return "" if entry is None else f" It waits for its next try:  leveret retries show {id}"
        if found.state == "discarded":
            return f" It was discarded:  leveret dead restore {id}"
        return f" It is {found.state}:  leveret dead show {id}"


async def choose(look: Look, among: Waiting | Lying, ids: Sequence[str], words: Mapping[str, Any]) -> Chosen:
    """Which messages are meant. An id names one message, by itself or by its ending.

    Raises:
        ConfigError: nothing says which, or they lie in several namespaces.
        NotFound: there is none, or an id names several.
    """
    if not ids and not words:
        raise ConfigError(
            f"say which {among.many}: ids, or --worker, --reason, --type, --text, --since, --until, --attempts"
        )
    named = [await the_one(look, among, id) for id in ids]
    full = tuple(row.id for row in named)
    if named:
        spaces = list(dict.fromkeys(row.namespace for row in named))
    else:
        spaces = [
            each for each in await look.namespaces() if await among.count(Filter(namespace=each, **words))
        ]
    if len(spaces) > 1:
        raise ConfigError(
            f"such {among.many} lie in several namespaces: {', '.join(spaces)}. Name one: --namespace {spaces[0]}"
        )
    wanted = Filter(namespace=spaces[0], ids=full, **words) if spaces else None
    count = await among.count(wanted) if wanted is not None else 0
    if wanted is None or not count:
        raise NotFound(f"no {among.one} of that kind {among.lies} in {look.store.display}")
    first = await among.rows(wanted, 500)
    places = tuple(dict.fromkeys(row.place for row in first))
    return Chosen(namespace=spaces[0], ids=full, words=words, count=count, places=places)


async def the_one(look: Look, among: Waiting | Lying, id: str) -> Row:
    """The message that *id* names.

    Raises:
        NotFound: there is none, or several are.
    """
    rows = await among.rows(Filter(namespace=look.namespace, ids=(id,)), 6)
    if not rows:
        raise NotFound(
            f"no {among.one} {among.lies} under {id!r} in {look.store.display}.{await among.instead(id)}"
        )
    if len(rows) > 1:
        of = (f"{row.id} (of {row.worker or row.place})" for row in rows)
        raise NotFound(f"{id!r} names several {among.many}, say which: {listed(of)}")
    return rows[0]


async def perform(
    look: Look,
    chosen: Chosen,
    among: Waiting | Lying,
    doing: Doing,
    *,
    verb: str,
    lease: Lease,
    question: str,
    ask: Callable[[Callable[[], object]], Awaitable[ActReport]],
    here: Callable[[], contextlib.AbstractAsyncContextManager[Parts]],
) -> int:
    """Agree on an act, write it, wait for who does it, and tell what came of it. Returns the exit code.

    Args:
        look: the store.
        chosen: which messages.
        among: what they are called.
        doing: how.
        verb: `retries.now`, for the record.
        lease: whose holder does it.
        question: asked where a filter has chosen, without its question mark.
        ask: writes the act and waits; it is given what to call once the act is written.
        here: what `--here` needs; entered only then.
    """
    console = look.console
    how_many = counted(chosen.count, among.one, among.many)
    if doing.dry_run:
        if console.json:
            console.record({"act": verb, "namespace": chosen.namespace, "would_change": chosen.count})
        else:
            console.result(f"{question}: {how_many} of {chosen.namespace}; nothing was done (--dry-run)")
        return exits.DONE
    if chosen.by_words and (refused := console.agreed(question, yes=doing.yes)) is not None:
        return refused
    if doing.here:
        from leveret.runtime.here import acting_here

        async with (
            here() as parts,
            acting_here(parts, lease=lease, ttl=look.config.lease.ttl) as (nudge, other),
        ):
            if other is not None:
                console.note(f"{holder(other.holder)} holds the lease, and does it")
            report = await ask(nudge)
    else:
        state = (await look.store.leases(chosen.namespace)).get(f"{chosen.namespace}/{lease}")
        if state is not None and state.left > 0:
            console.note(f"asked {holder(state.holder)} (holds the lease)")
        else:
            console.note(
                f"written down; nobody holds the lease of the {_HOLDERS[lease]} now, waiting for one"
            )
        report = await ask(lambda: None)
    return _tell(look, chosen, report, verb=verb, lease=lease, alone=doing.here)


def _tell(look: Look, chosen: Chosen, report: ActReport, *, verb: str, lease: Lease, alone: bool) -> int:
    from leveret.cli import records

    console = look.console
    if console.json:
        console.record(records.report(report, verb, chosen.namespace))
    elif report.answered:
        again = ""
        if verb == "dead.replay":
            again = f", dead again {report.dead_again}"
            again += f", maybe twice {report.maybe_twice}" if report.maybe_twice else ""
        console.result(f"{_DONE[verb]} {report.done} of {report.asked}{again}, by {holder(report.by)}")
    for note in report.notes:
        console.warning(note)
    if not report.answered:
        console.warning(
            f"no {_HOLDERS[lease]} of {chosen.namespace} answered in 5 s. It stays written in {look.store.display}, "
            "and the next one does it when it starts:  leveret run"
            + ("" if alone else ".  Or do it in this process: the same with --here")
        )
        return exits.PART
    if not report.finished:
        console.warning(
            f"{holder(report.by)} began and has not finished; the next holder of the lease goes on with it"
        )
        return exits.PART
    return exits.DONE if report.done == report.asked > 0 else exits.PART


@contextlib.asynccontextmanager
async def store_alone(look: Look, namespace: str) -> AsyncIterator[Parts]:
    """What `--here` needs for acts on retries: the store, and no broker."""
    from leveret.runtime.here import no_transport, parts_here

    yield parts_here(look.store, look.world, namespace, transport=no_transport(look.world))


@contextlib.asynccontextmanager
async def with_broker(look: Look, namespace: str) -> AsyncIterator[Parts]:
    """What `--here` needs to publish: the store, and an open connection.

    Raises:
        NotSupported: the broker lives inside another process.
        BrokerError: it is not to be reached.
    """
    from leveret.cli.looking import refuse_memory_broker
    from leveret.cli.reaching import connected
    from leveret.runtime.here import parts_here

    refuse_memory_broker(look.config, "dead replay --here")
    async with connected(look.config, look.world, look.console) as transport:
        yield parts_here(
            look.store, look.world, namespace, transport=transport, exchange=look.config.exchange
        )
