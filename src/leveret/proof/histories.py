"""Histories: a record's events, put together by message and worker, by process and by blow, for the rules to read.

A record of ten minutes holds millions of events, so they are read once, and kept as little as a rule needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from leveret.proof.record import (
    Answered,
    AnyEvent,
    Asked,
    Backlog,
    Began,
    Called,
    CallEnded,
    Confirmed,
    Ended,
    Found,
    Healed,
    LeaseTaken,
    Replayed,
    Sampled,
    Sent,
    Served,
    Settled,
    Struck,
    Taken,
)

#: Seconds before the blow to a process in which what it settled may not have reached its socket or disk: it writes in
#: its next turn.
PROCESS_MARGIN: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the judge was told.

    Attributes:
        takers: the workers that take a type.
        max_attempts: runs that a message may have, the first included.
        max_deliveries: starts after which what ends its process may be dead.
        unread: whether a message may die without a run, since no handler can read it.
        publish_timeout: seconds after which a publish without an answer is unknown.
        margin: seconds around a blow in which what was settled or confirmed may not have reached a disk or a socket.
        late_after: seconds after which what was due is called late.
        recovery: seconds after a fault has healed that still count as within it.
    """

    takers: Mapping[str, tuple[str, ...]]
    max_attempts: int
    max_deliveries: int
    unread: bool
    publish_timeout: float
    margin: float
    late_after: float
    recovery: float


class Run:
    """One run of a handler."""

    __slots__ = ("began", "ended")

    def __init__(self, began: Began) -> None:
        self.began: Final = began
        self.ended: Ended | None = None

    @property
    def failed(self) -> Ended | None:
        """How it ended, where that was a failure."""
        return None if self.ended is None or self.ended.outcome == "done" else self.ended

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """Its beginning, and its end where it has one."""
        return (self.began,) if self.ended is None else (self.began, self.ended)


class Hold:
    """A copy of a message in a process's hands: taken and not settled yet, or sent and not answered yet."""

    __slots__ = ("acked", "begin", "case", "end", "flagged", "place", "process", "stored", "taken")

    def __init__(
        self,
        begin: float,
        process: Process,
        place: str,
        case: Case | None,
        *,
        taken: bool,
        flagged: bool = False,
        stored: bool = False,
    ) -> None:
        self.begin: Final = begin
        #: Infinite where it was never settled or answered.
        self.end = inf
        self.acked = False
        self.process: Final = process
        #: The queue; of what was sent through an exchange: "exchange/routing key".
        self.place: Final = place
        self.case: Final = case
        self.taken: Final = taken
        self.flagged: Final = flagged
        #: Sent from the store, which has it until after it is confirmed.
        self.stored: Final = stored


class Case:
    """All that is known of one subject."""

    __slots__ = ("answers", "asked", "found", "holds", "replayed", "returned", "runs", "subject")

    def __init__(self, subject: str) -> None:
        self.subject: Final = subject
        self.asked: Final[list[Asked]] = []
        self.answers: Final[list[Answered]] = []
        #: By worker, each list in the order in which they began.
        self.runs: Final[dict[str, list[Run]]] = {}
        self.holds: Final[list[Hold]] = []
        #: Runs that returned it, when, and as which type.
        self.returned: list[tuple[str, float, Run]] = _NOTHING
        self.found: list[Found] = _NOTHING
        self.replayed: list[Replayed] = _NOTHING


#: Stands for the lists that few messages need; never appended to.
_NOTHING: Final[list[Any]] = []


class Process:
    """One life of a process."""

    __slots__ = ("deliveries", "last", "leases", "name", "publishes", "struck")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        #: By name of the delivery, and of the publish.
        self.deliveries: Final[dict[str, Hold]] = {}
        self.publishes: Final[dict[str, Hold]] = {}
        #: The leases that it took, by term.
        self.leases: Final[dict[int, set[str]]] = {}
        #: When it wrote last, and when it was struck last.
        self.last = -inf
        self.struck = -inf

    @property
    def gone(self) -> float:
        """Since when it has nothing in hand, for all that the record says."""
        return max(self.last, self.struck)


class Call:
    """A request, its ends and its starts."""

    __slots__ = ("called", "ends", "served")

    def __init__(self) -> None:
        self.called: Called | None = None
        self.ends: Final[list[CallEnded]] = []
        self.served: Final[list[Served]] = []


class Blow:
    """A fault that somebody caused, and the time in which it may show."""

    __slots__ = ("first", "healed", "last", "struck", "whom")

    def __init__(self, struck: Struck, healed: float, whom: Process | None, margin: float) -> None:
        self.struck: Final = struck
        #: Infinite where it never healed.
        self.healed: Final = healed
        #: The one process that it hit; None: anybody.
        self.whom: Final = whom
        if whom is not None:
            margin = min(margin, PROCESS_MARGIN)
        #: What was in hand at any moment between these may be there once more.
        self.first: Final = struck.at - margin
        self.last: Final = healed + margin

    def hits(self, process: Process, begin: float, end: float) -> bool:
        """Whether it struck what that process had in hand between two moments."""
        return begin <= self.last and end >= self.first and (self.whom is None or self.whom is process)


class Histories:
    """A whole record, put together.

    Args:
        events: of it; those of one process in their order.
        terms: what the judge was told.
    """

    def __init__(self, events: Iterable[AnyEvent], terms: Terms) -> None:
        self.terms: Final = terms
        self.cases: Final[dict[str, Case]] = {}
        self.processes: Final[dict[str, Process]] = {}
        self.calls: Final[dict[str, Call]] = {}
        self.leases: Final[dict[str, list[LeaseTaken]]] = {}
        #: Publishes under a lease, with its term.
        self.termed: Final[list[tuple[int, Sent]]] = []
        self.backlogs: Final[list[Backlog]] = []
        #: Runs that ended and had not begun, or had ended before.
        self.stray_ends: Final[list[Ended]] = []
        #: Deliveries that were settled and not in hand: never taken, or settled before.
        self.stray_settlings: Final[list[tuple[Settled, Hold | None]]] = []
        #: Faults that somebody caused, in their order.
        self.blows: list[Blow] = []
        #: Whether the record says what was in whose hands.
        self.shows_hands = False
        self.first = inf
        self.last = -inf
        self._runs: dict[str, Run] = {}
        self._struck: list[Struck] = []
        self._healed: dict[str, float] = {}
        self._read(events)
        self.shows_hands = any(process.deliveries for process in self.processes.values()) and any(
            process.publishes for process in self.processes.values()
        )
        # A look-up of a million runs, no longer needed.
        self._runs.clear()
        for case in self.cases.values():
            for runs in case.runs.values():
                runs.sort(key=_began_at)
        self._see_blows()

    def _read(self, events: Iterable[AnyEvent]) -> None:
        # In the order of their frequency: this loop is most of a judgement's time.
        process = Process("")
        for event in events:
            if event.by != process.name:
                if isinstance(event, Sampled):
                    # What a server uses is noted under its name, and it has no message in hand.
                    continue
                process = self._process(event.by)
            at = event.at
            process.last = max(at, process.last)
            self.first = min(at, self.first)
            if isinstance(event, Taken):
                case = None if event.subject is None else self.case(event.subject)
                hold = Hold(at, process, sys.intern(event.queue), case, taken=True, flagged=event.redelivered)
                process.deliveries[event.delivery] = hold
                if case is not None:
                    case.holds.append(hold)
            elif isinstance(event, Settled):
                held = process.deliveries.get(event.delivery)
                if held is None or held.end != inf:
                    self.stray_settlings.append((event, held))
                else:
                    held.end = at
                    held.acked = event.how == "ack"
            elif isinstance(event, Sent):
                case = None if event.subject is None else self.case(event.subject)
                place = f"{event.exchange}/{event.routing_key}" if event.exchange else event.routing_key
                stored = event.term is not None or event.replay
                hold = Hold(at, process, sys.intern(place), case, taken=False, stored=stored)
                process.publishes[event.publish] = hold
                if case is not None:
                    case.holds.append(hold)
                if event.term is not None:
                    self.termed.append((event.term, event))
            elif isinstance(event, Confirmed):
                held = process.publishes.get(event.publish)
                if held is not None:
                    held.end = at
            elif isinstance(event, Began):
                run = self._runs[event.run] = Run(event)
                self.case(event.subject).runs.setdefault(sys.intern(event.worker), []).append(run)
            elif isinstance(event, Ended):
                self._end(event)
            elif isinstance(event, Asked):
                self.case(event.subject).asked.append(event)
            elif isinstance(event, Answered):
                self.case(event.subject).answers.append(event)
            else:
                self._read_rarer(event, process)
        self.last = max((process.last for process in self.processes.values()), default=-inf)

    def _read_rarer(self, event: AnyEvent, process: Process) -> None:
        match event:
            case Called(call=name):
                self._call(name).called = event
            case CallEnded(call=name):
                self._call(name).ends.append(event)
            case Served(call=name):
                self._call(name).served.append(event)
            case Found(subject=subject):
                case_ = self.case(subject)
                case_.found = [*case_.found, event]
            case Replayed(subject=subject):
                case_ = self.case(subject)
                case_.replayed = [*case_.replayed, event]
            case Struck():
                self._struck.append(event)
            case Healed(fault=fault):
                self._healed[fault] = event.at
            case LeaseTaken(lease=lease, term=term):
                self.leases.setdefault(lease, []).append(event)
                process.leases.setdefault(term, set()).add(lease)
            case Backlog():
                self.backlogs.append(event)

    def _end(self, event: Ended) -> None:
        run = self._runs.get(event.run)
        if run is None or run.ended is not None:
            self.stray_ends.append(event)
            return
        run.ended = event
        if event.outcome == "done":
            for type, subject in event.results:
                case = self.case(subject)
                case.returned = [*case.returned, (type, event.at, run)]

    def _see_blows(self) -> None:
        for struck in sorted(self._struck, key=lambda struck: struck.at):
            whom = self._process(struck.target) if struck.process else self.processes.get(struck.target)
            if whom is not None:
                whom.struck = max(struck.at, whom.struck)
            healed = self._healed.get(struck.fault, inf)
            self.blows.append(Blow(struck, healed, whom, self.terms.margin))

    def case(self, subject: str) -> Case:
        """All that is known of it; from now on there is something."""
        found = self.cases.get(subject)
        if found is None:
            found = self.cases[subject] = Case(subject)
        return found

    def _process(self, name: str) -> Process:
        found = self.processes.get(name)
        if found is None:
            found = self.processes[name] = Process(name)
        return found

    def _call(self, name: str) -> Call:
        found = self.calls.get(name)
        if found is None:
            found = self.calls[name] = Call()
        return found


def _began_at(run: Run) -> float:
    return run.began.at
