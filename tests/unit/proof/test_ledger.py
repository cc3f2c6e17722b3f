"""Clean records pass, whatever was struck in them; and each breach of the promise is found, and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.proof.clean import Clean

from leveret.proof.ledger import Verdict, judge
from leveret.proof.record import (
    Answered,
    AnyEvent,
    Asked,
    Backlog,
    Began,
    Ended,
    Found,
    LeaseTaken,
    Replayed,
    Sent,
    Settled,
)
from leveret.proof.shop import MAX_ATTEMPTS, TAKERS

Events = list[AnyEvent]
Pick = Callable[[list[Any]], Any]


def judged(events: Events) -> Verdict:
    return judge(events, takers=TAKERS, max_attempts=MAX_ATTEMPTS)


def found(events: Events) -> set[str]:
    return {fault.rule for fault in judged(events).faults}


def changed(events: Events, old: AnyEvent, **fields: Any) -> Events:
    """*events* with one of them otherwise."""
    return [msgspec.structs.replace(event, **fields) if event is old else event for event in events]


def again(run: str, began: Began, events: Events, *, after: float) -> Events:
    """One more run like *began*'s, so much later."""
    ended = next(event for event in events if isinstance(event, Ended) and event.run == began.run)
    return [
        msgspec.structs.replace(began, run=run, at=began.at + after),
        msgspec.structs.replace(ended, run=run, at=ended.at + after),
    ]


def every(events: Events, kind: type[Any], condition: Callable[[Any], bool] = lambda _: True) -> list[Any]:
    return [event for event in events if isinstance(event, kind) and condition(event)]


def runs_of(events: Events, began: Began) -> list[Began]:
    return every(events, Began, lambda each: (each.subject, each.worker) == (began.subject, began.worker))


def done(events: Events) -> set[str]:
    return {ended.run for ended in every(events, Ended, lambda each: each.outcome == "done")}


CALM = st.builds(
    lambda seed: list(Clean(seed, soft=0.5, hard=0.1, delayed=0.2).events(25)), st.integers(0, 10_000)
)
STORMY = st.builds(
    lambda seed: list(Clean(seed, soft=0.4, hard=0.1, delayed=0.1, killed=0.3, unknown=0.2).events(25)),
    st.integers(0, 10_000),
)
few = settings(max_examples=15, deadline=None)


@given(CALM | STORMY)
@few
def test_a_record_in_which_the_promise_is_kept_has_no_fault(events):
    verdict = judged(events)
    assert [str(fault) for fault in verdict.faults] == []
    assert verdict.lost == 0
    assert verdict.accepted == verdict.done + verdict.dead + verdict.waiting > 25


@given(CALM | STORMY, st.randoms(use_true_random=False))
@few
def test_the_order_of_the_lines_of_different_processes_changes_nothing(events, random):
    by_process: dict[str, Events] = {}
    for event in events:
        by_process.setdefault(event.by, []).append(event)
    names = sorted(by_process)
    random.shuffle(names)
    shuffled = [event for name in names for event in by_process[name]]
    assert judged(shuffled).as_json() == judged(events).as_json()


# ── Breaches: each takes a record that is clean, and gives it back broken ─────────────────────────────────────────────


def lose_an_accepted_one(events: Events, pick: Pick) -> Events:
    told = {answered.subject for answered in every(events, Answered, lambda each: each.answer == "accepted")}
    lost = pick(every(events, Began, lambda each: each.worker in {"audit", "vault"} and each.subject in told))
    runs = {began.run for began in runs_of(events, lost)}
    return [
        event
        for event in events
        if getattr(event, "run", None) not in runs
        and not (
            isinstance(event, Found | Replayed)
            and (event.subject, event.worker) == (lost.subject, lost.worker)
        )
    ]


def lose_a_receipt(events: Events, pick: Pick) -> Events:
    lost = pick(every(events, Began, lambda each: each.worker == "post"))
    runs = {began.run for began in runs_of(events, lost)}
    return [
        event
        for event in events
        if getattr(event, "run", None) not in runs
        and not (
            isinstance(event, Found | Replayed) and (event.subject, event.worker) == (lost.subject, "post")
        )
    ]


def run_what_nobody_sent(events: Events, pick: Pick) -> Events:
    model = pick(every(events, Began, lambda each: each.run in done(events) and each.step == 0))
    more = again("made up", model, events, after=0.0)
    return [*events, msgspec.structs.replace(more[0], subject="never sent", worker="audit"), more[1]]


def run_what_was_refused(events: Events, pick: Pick) -> Events:
    asked = pick(every(events, Asked, lambda each: len(TAKERS[each.type]) == 1))
    return [
        msgspec.structs.replace(event, answer="refused")
        if isinstance(event, Answered) and event.subject == asked.subject
        else event
        for event in events
    ]


def run_it_before_it_was_sent(events: Events, pick: Pick) -> Events:
    asked = pick(every(events, Asked, lambda each: not each.wait))
    first = min(each.at for each in every(events, Began, lambda each: each.subject == asked.subject))
    others = [each for each in every(events, Asked) if each.subject == asked.subject and each is not asked]
    return changed([event for event in events if event not in others], asked, at=first + 0.5)


def replay_what_nobody_asked_for(events: Events, pick: Pick) -> Events:
    replayed = pick(every(events, Replayed))
    return [
        event
        for event in events
        if not (
            isinstance(event, Replayed)
            and (event.subject, event.worker) == (replayed.subject, replayed.worker)
        )
    ]


def send_a_retry_to_the_other_worker(events: Events, pick: Pick) -> Events:
    failed = {(each.subject, each.worker) for each in every(events, Began) if each.run not in done(events)}
    others = {"charge": "audit", "audit": "charge"}
    model = pick(
        every(
            events,
            Began,
            lambda each: (
                each.step == 1
                and each.worker in others
                and not each.replayed
                and (each.subject, others[each.worker]) not in failed
                and each.run in done(events)
            ),
        )
    )
    more = again("astray", model, events, after=0.1)
    return [
        *events,
        msgspec.structs.replace(more[0], worker=others[model.worker], retry_id=None),
        msgspec.structs.replace(more[1], results=()),
    ]


def skip_an_attempt(events: Events, pick: Pick) -> Events:
    last = pick(every(events, Began, lambda each: each.step > 0 and each.run in done(events)))
    return changed(events, last, attempt=last.attempt + 3)


def come_early(events: Events, pick: Pick) -> Events:
    ended = {each.run: each for each in every(events, Ended)}
    begun = every(events, Began)
    asked_to_wait = [
        (each, ended[each.run].at, after)
        for each in begun
        if each.run in ended and (ended[each.run].again_in or 0) > 0.25 and each.attempt < MAX_ATTEMPTS
        for after in begun
        if (after.subject, after.worker, after.step) == (each.subject, each.worker, each.step + 1)
        and after.run in done(events)
    ]
    _, failed_at, after = pick(asked_to_wait)
    return changed(events, after, at=failed_at + 0.1)


def change_the_bytes(events: Events, pick: Pick) -> Events:
    more_than_one = every(events, Began, lambda each: len(runs_of(events, each)) > 1)
    return changed(events, pick(more_than_one), digest="other bytes")


def change_the_id(events: Events, pick: Pick) -> Events:
    return changed(
        events, pick(every(events, Began, lambda each: each.worker == "audit")), message_id="another"
    )


def run_a_step_twice(events: Events, pick: Pick) -> Events:
    model = pick(every(events, Began, lambda each: each.run in done(events) and each.worker != "charge"))
    return [*events, *again("once more", model, events, after=0.5)]


def leave_two_letters(events: Events, pick: Pick) -> Events:
    return [*events, pick(every(events, Found))]


def settle_twice(events: Events, pick: Pick) -> Events:
    return [*events, pick(every(events, Settled))]


def settle_what_was_never_taken(events: Events, pick: Pick) -> Events:
    return changed(events, pick(every(events, Settled)), delivery="never taken")


def end_twice(events: Events, pick: Pick) -> Events:
    return [*events, pick(every(events, Ended))]


def publish_from_an_old_term(events: Events, pick: Pick) -> Events:
    sent = pick(every(events, Sent, lambda each: each.term == 1))
    return [*events, LeaseTaken(at=sent.at - 0.01, by="retry-2 1", lease="retry", term=2)]


def publish_without_the_lease(events: Events, pick: Pick) -> Events:
    return changed(events, pick(every(events, Sent, lambda each: each.term == 1)), term=7)


def leave_a_backlog(events: Events, pick: Pick) -> Events:
    return changed(events, pick(every(events, Backlog)), messages=3)


@pytest.mark.parametrize(
    ("breach", "rule", "records"),
    [
        (lose_an_accepted_one, "accounted for", STORMY),
        (lose_a_receipt, "conservation", STORMY),
        (run_what_nobody_sent, "nothing invented", STORMY),
        (run_what_was_refused, "nothing invented", CALM),
        (run_it_before_it_was_sent, "nothing invented", CALM),
        (replay_what_nobody_asked_for, "nothing invented", CALM),
        (send_a_retry_to_the_other_worker, "only the failing worker", CALM),
        (skip_an_attempt, "attempts", CALM),
        (come_early, "never early", CALM),
        (change_the_bytes, "the same message", STORMY),
        (change_the_id, "the same message", STORMY),
        (run_a_step_twice, "copies", CALM),
        (leave_two_letters, "copies", CALM),
        (settle_twice, "settled once", STORMY),
        (settle_what_was_never_taken, "settled once", STORMY),
        (end_twice, "runs end once", STORMY),
        (publish_from_an_old_term, "old term", STORMY),
        (publish_without_the_lease, "old term", STORMY),
        (leave_a_backlog, "backlog", STORMY),
    ],
)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_each_breach_is_found_and_nothing_beside_it(breach, rule, records, data):
    def pick(candidates: list[Any]) -> Any:
        assume(candidates)
        return candidates[data.draw(st.integers(0, len(candidates) - 1))]

    assert found(breach(data.draw(records), pick)) == {rule}
