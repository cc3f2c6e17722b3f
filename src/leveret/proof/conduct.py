"""Conduct: the sentences of the promise that are about processes, calls and queues, rather than one message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from leveret.proof.accounts import sent
from leveret.proof.histories import Call, Histories
from leveret.proof.record import AnyEvent, Asked, Called, CallOutcome, LeaseTaken, Sent
from leveret.proof.verdict import Fault

#: Seconds that a request may be on its way, or a caller may take to notice that its time is up.
TRANSIT: Final = 0.5
#: How a call can end that nobody was asked to serve.
_NEVER_SERVED: Final[frozenset[CallOutcome]] = frozenset({"unreachable", "not sent"})
#: And how it ends where somebody has.
_SERVED: Final[frozenset[CallOutcome]] = frozenset({"answered", "failed"})


def settled_once(record: Histories) -> Iterator[Fault]:
    """Each delivery is settled once, by the process that took it."""
    for event, held in record.stray_settlings:
        subject = None if held is None or held.case is None else held.case.subject
        again = "was never taken" if held is None else "had been settled"
        told = f"{event.by} settled delivery {event.delivery} ({event.how}), which {again}"
        yield Fault(rule="settled once", told=told, at=event.at, subject=subject, events=(event,))


def runs_end_once(record: Histories) -> Iterator[Fault]:
    """A handler ends once for each time that it began."""
    for event in record.stray_ends:
        told = f"{event.by} says that run {event.run} ended, which had not begun or had ended before"
        yield Fault(rule="runs end once", told=told, at=event.at, events=(event,))


def nothing_published_from_an_old_term(record: Histories) -> Iterator[Fault]:
    """No due message is handed to the socket by a process whose lease another one has taken since."""
    for term, due in record.termed:
        process = record.processes[due.by]
        leases = process.leases.get(term)
        if leases is None:
            told = f"{due.by} published {due.subject} in term {term}, which it was never told to have"
            yield Fault(rule="old term", told=told, at=due.at, subject=due.subject, events=(due,))
            continue
        newer = [_newer(record.leases[lease], term, due) for lease in sorted(leases)]
        # Where it holds two leases in terms of one number, either may be meant.
        if all(newer) and newer[0] is not None:
            told = (
                f"{due.by} published {due.subject} in term {term}, "
                f"{due.at - newer[0].at:.3f} s after {newer[0].by} had taken {newer[0].lease} in term {newer[0].term}"
            )
            yield Fault(rule="old term", told=told, at=due.at, subject=due.subject, events=(newer[0], due))


def _newer(taken: list[LeaseTaken], term: int, due: Sent) -> LeaseTaken | None:
    """When another process first took the lease in a higher term, if that was before that publish."""
    newer = [each for each in taken if each.term > term and each.at < due.at and each.by != due.by]
    return min(newer, key=lambda each: each.at, default=None)


def each_publish_ends(record: Histories) -> Iterator[Fault]:
    """Whoever publishes is told what became of it, at the latest when its time is over."""
    for case in record.cases.values():
        if len(case.asked) <= len(case.answers):
            continue
        for asked, answered in sent(case):
            if answered is None and _lived_on(record, asked):
                told = (
                    f"the publish of {asked.subject} by {asked.by} has not ended, "
                    f"{record.terms.publish_timeout:g} s after which it should"
                )
                yield Fault(
                    rule="publishes",
                    told=told,
                    at=asked.at,
                    subject=asked.subject,
                    events=(asked, *case.answers),
                )


def _lived_on(record: Histories, asked: Asked) -> bool:
    """Whether the publisher's process lived on beyond the publish's time; a fault may have held it up meanwhile."""
    process = record.processes[asked.by]
    # Who was not struck since is there until the end.
    until = process.last if process.struck >= asked.at else record.last
    held_up = _struck(record, asked.at, until)
    return until > asked.at + record.terms.publish_timeout + TRANSIT + held_up


def each_call_ends_once(record: Histories) -> Iterator[Fault]:
    """A call ends in exactly one outcome, and its outcome is true."""
    for name, call in record.calls.items():
        if call.called is None:
            yield _of_call(name, call, "was never called")
            continue
        if len(call.ends) > 1:
            yield _of_call(
                name, call, f"ended {len(call.ends)} times: {', '.join(e.outcome for e in call.ends)}"
            )
            continue
        if not call.ends:
            if _outlived(record, call.called):
                yield _of_call(name, call, f"has not ended, {call.called.timeout:g} s after which it should")
            continue
        end = call.ends[0]
        if end.outcome in _NEVER_SERVED and call.served:
            yield _of_call(name, call, f"was served, and its caller was told: {end.outcome}")
        elif end.outcome in _SERVED and not any(each.at <= end.at for each in call.served):
            yield _of_call(name, call, f"was served by nobody, and its caller was told: {end.outcome}")
        elif not end.right:
            yield _of_call(name, call, f"ended as {end.outcome}, and not with what it asks for")


def _outlived(record: Histories, called: Called) -> bool:
    """Whether the caller's process lived on beyond the call's time, or was never struck in it."""
    caller = record.processes[called.by]
    return caller.last > called.at + called.timeout + TRANSIT or caller.struck < called.at


def nothing_starts_that_was_given_up(record: Histories) -> Iterator[Fault]:
    """What a caller gave up on is not started later, and a request is served once.

    A request waits in its queue for its timeout at most, and then in the server's hands for that long again, since no
    clock is shared; what a fault holds up on the wire in between comes on top.
    """
    for name, call in record.calls.items():
        if call.called is None or not call.served:
            continue
        called = call.called
        served = sorted(call.served, key=lambda each: each.at)
        last = served[-1]
        if last.at > called.at + 2 * called.timeout + TRANSIT + _struck(record, called.at, last.at):
            late = last.at - called.at
            yield _of_call(
                name,
                call,
                f"was started {late:.1f} s after it was made, by a caller that waits {called.timeout:g} s",
            )
        # What struck nobody who served it, has brought no copy of it back.
        servers = {each.by for each in served}
        copies = sum(
            blow.struck.copies
            and blow.first <= last.at
            and blow.last >= called.at
            and (blow.whom is None or blow.whom.name in servers)
            for blow in record.blows
        )
        if len(served) > 1 + copies:
            yield _of_call(name, call, f"was served {len(served)} times, and {copies} blows struck meanwhile")


def _struck(record: Histories, begin: float, end: float) -> float:
    """Seconds between two moments in which some fault lasted."""
    seconds = 0.0
    for blow in record.blows:
        first, last = max(blow.struck.at, begin), min(blow.healed, end)
        if last > first:
            seconds += last - first
            begin = last
    return seconds


def nothing_is_left(record: Histories) -> Iterator[Fault]:
    """Once faults have stopped and all had time to come to rest, every queue is empty."""
    for backlog in record.backlogs:
        if backlog.messages:
            told = f"{backlog.queue} still holds {backlog.messages} messages"
            yield Fault(rule="backlog", told=told, at=backlog.at, events=(backlog,))


def _of_call(name: str, call: Call, told: str) -> Fault:
    events: list[AnyEvent] = [*call.ends, *call.served]
    if call.called is not None:
        events.append(call.called)
    events.sort(key=lambda event: event.at)
    return Fault(rule="calls", told=f"call {name} {told}", at=events[-1].at, events=tuple(events))


#: All that are about no single message.
RECORD_RULES: Final = (
    settled_once,
    runs_end_once,
    nothing_published_from_an_old_term,
    each_publish_ends,
    each_call_ends_once,
    nothing_starts_that_was_given_up,
    nothing_is_left,
)
