"""The ledger's sentences about calls, lateness, leases and what is still on its way."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.proof.ledger import Verdict, judge
from leveret.proof.record import (
    Answered,
    AnyEvent,
    Asked,
    Began,
    Called,
    CallEnded,
    CallOutcome,
    Ended,
    Found,
    Healed,
    LeaseTaken,
    Sent,
    Served,
    Struck,
)


def judged(*events: AnyEvent, **more: Any) -> Verdict:
    return judge(events, takers={"order.placed": ("charge", "audit")}, max_attempts=3, **more)


def rules(*events: AnyEvent) -> list[str]:
    return [fault.rule for fault in judged(*events).faults]


def called(at: float = 0.0) -> Called:
    return Called(at=at, by="caller", call="c1", timeout=1.0)


def ended(outcome: CallOutcome, at: float = 0.8) -> CallEnded:
    return CallEnded(at=at, by="caller", call="c1", outcome=outcome)


def served(at: float = 0.3) -> Served:
    return Served(at=at, by="server", call="c1")


# ── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outcome", ["answered", "failed", "timeout", "unknown"])
def test_a_call_that_was_served_may_end_so(outcome):
    verdict = judged(called(), served(), ended(outcome))
    assert verdict.passed
    assert verdict.calls == {outcome: 1}


@pytest.mark.parametrize("outcome", ["timeout", "unknown", "unreachable", "not sent"])
def test_a_call_that_nobody_served_may_end_so(outcome):
    assert rules(called(), ended(outcome)) == []


@pytest.mark.parametrize("outcome", ["unreachable", "not sent"])
def test_whose_caller_was_told_that_nobody_has_the_request_is_never_served(outcome):
    assert rules(called(), served(), ended(outcome)) == ["calls"]


@pytest.mark.parametrize("outcome", ["answered", "failed"])
def test_an_answer_comes_from_somebody_who_has_started_before(outcome):
    assert rules(called(), ended(outcome)) == ["calls"]
    assert rules(called(), ended(outcome, at=0.2), served(at=0.3)) == ["calls"]


def test_a_call_ends_once():
    assert rules(called(), served(), ended("answered"), ended("timeout", at=1.0)) == ["calls"]


def test_a_call_that_never_ends_is_a_fault_where_its_process_lived_on():
    sign_of_life = Called(at=9.0, by="caller", call="c2", timeout=1.0)
    over = CallEnded(at=9.5, by="caller", call="c2", outcome="timeout")
    killed = Struck(at=0.5, by="hand", fault="1", kind="kill", target="caller")
    assert rules(called()) == ["calls"]
    assert rules(called(), killed) == []
    assert rules(called(), killed, sign_of_life, over) == ["calls"]


def test_what_nobody_called_is_not_served():
    assert rules(served()) == ["calls"]


def test_what_its_caller_gave_up_on_is_not_started_later():
    assert rules(called(), ended("timeout", at=1.0), served(at=2.4)) == [], "once in the queue, once in hand"
    assert rules(called(), ended("timeout", at=1.0), served(at=2.6)) == ["calls"]


def test_a_fault_may_hold_a_request_up_on_the_wire_by_as_long_as_it_lasts():
    held = (
        Struck(at=0.1, by="hand", fault="1", kind="black hole", target="server"),
        Healed(at=3.1, by="hand", fault="1"),
    )
    assert rules(called(), ended("timeout", at=1.0), served(at=5.4), *held) == []
    assert rules(called(), ended("timeout", at=1.0), served(at=5.6), *held) == ["calls"]


def test_faults_at_one_time_hold_it_up_once():
    def blow(name: str) -> tuple[AnyEvent, AnyEvent]:
        struck = Struck(at=0.1, by="hand", fault=name, kind="black hole", target="server")
        return struck, Healed(at=3.1, by="hand", fault=name)

    late = called(), ended("timeout", at=1.0), served(at=5.6)
    assert rules(*late, *blow("1"), *blow("2")) == ["calls"]


def test_a_request_is_served_once_and_once_more_for_a_blow():
    twice = called(), served(0.3), served(0.6), ended("answered")
    assert rules(*twice) == ["calls"]
    assert rules(*twice, Struck(at=0.5, by="hand", fault="1", kind="cut", target="server")) == []


def test_a_blow_at_a_process_that_never_served_it_excuses_no_second_start():
    twice = called(), served(0.3), Served(at=0.6, by="other", call="c1"), ended("answered")
    for target, wrong in (("server", []), ("other", []), ("bystander", ["calls"])):
        blow = Struck(at=0.5, by="hand", fault="1", kind="kill", target=target, process=True)
        assert rules(*twice, blow, Healed(at=0.5, by="hand", fault="1")) == wrong, target


@pytest.mark.parametrize("outcome", ["answered", "failed"])
def test_a_caller_gets_what_its_own_request_asks_for(outcome):
    end = CallEnded(at=0.8, by="caller", call="c1", outcome=outcome, right=False)
    assert rules(called(), served(), end) == ["calls"]
    assert judged(called(), served(), end).faults[0].told == (
        f"call c1 ended as {outcome}, and not with what it asks for"
    )


# ── Messages ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def asked(wait: float = 0.0) -> Asked:
    return Asked(at=0.0, by="producer", subject="o1", type="order.placed", message_id="id", wait=wait)


def answered(answer: Any = "accepted") -> Answered:
    return Answered(at=0.1, by="producer", subject="o1", answer=answer)


def run(at: float, worker: str = "charge", outcome: Any = "done", *, step: int = 0, attempt: int | None = None,
        **more: Any) -> tuple[Began, Ended]:  # fmt: skip
    name = f"{worker} {at}"
    attempt = step + 1 if attempt is None else attempt
    return (
        Began(
            at=at,
            by="shop",
            run=name,
            worker=worker,
            subject="o1",
            message_id="id",
            attempt=attempt,
            step=step,
        ),
        Ended(at=at + 0.1, by="shop", run=name, outcome=outcome, **more),
    )


def found(place: Any, worker: str | None, **more: Any) -> Found:
    return Found(at=99.0, by="survey", worker=worker, subject="o1", place=place, **more)


def test_a_message_counts_once_for_each_worker_that_takes_it():
    verdict = judged(asked(), answered(), *run(1), found("waiting", "audit"))
    assert (verdict.published, verdict.accepted, verdict.done, verdict.waiting) == (1, 2, 1, 1)
    assert verdict.line() == (
        "accepted 2   done 1   dead 0   waiting 1   duplicated 0   late 0   unknown 0   lost 0"
    )


def test_what_is_nowhere_at_one_of_its_workers_is_lost_there():
    verdict = judged(asked(), answered(), *run(1))
    assert (verdict.done, verdict.lost) == (1, 1)
    (fault,) = verdict.faults
    assert (fault.rule, fault.worker) == ("accounted for", "audit")
    assert not verdict.passed


def test_a_delayed_message_that_waits_for_its_first_publish_waits_for_all_its_workers():
    verdict = judged(asked(wait=500.0), answered(), found("waiting", None))
    assert (verdict.waiting, verdict.lost, verdict.passed) == (2, 0, True)


def test_a_result_that_nobody_takes_is_in_the_dead_letters():
    returned = asked(), answered(), *run(1, "audit"), *run(1, results=(("nobody.takes", "o1"),))
    assert rules(*returned) == ["conservation"]
    verdict = judged(*returned, found("dead", None, reason="unroutable result: nobody takes nobody.takes"))
    assert (verdict.accepted, verdict.done, verdict.dead, verdict.passed) == (3, 2, 1, True)


def test_a_copy_that_never_reached_its_worker_dies_with_tries_left():
    done = asked(), answered(), *run(1), *run(1, "audit")
    assert rules(*done, found("dead", "charge", reason="unroutable result: nobody took order.placed")) == []


def test_a_letter_that_was_replayed_is_history_and_no_place_to_be():
    dead = asked(), answered(), *run(1, outcome="hard"), *run(1, "audit")
    assert judged(*dead, found("dead", "charge")).dead == 1
    assert judged(*dead, found("dead", "charge", replayed=True)).lost == 1


def test_an_unknown_publish_that_did_not_turn_up_is_neither_accepted_nor_lost():
    verdict = judged(asked(), answered("unknown"))
    assert (verdict.accepted, verdict.lost, verdict.unknown) == (0, 0, 1)


def test_one_that_turned_up_is_accepted_where_it_did():
    verdict = judged(asked(), answered("unknown"), *run(1))
    assert (verdict.accepted, verdict.done, verdict.lost, verdict.unknown) == (1, 1, 0, 1)


def test_one_that_turned_up_and_vanished_is_lost():
    verdict = judged(asked(), answered("unknown"), *run(1, outcome="soft"))
    assert (verdict.accepted, verdict.lost) == (1, 1)


def test_a_publish_whose_process_was_killed_is_unknown():
    assert judged(asked()).unknown == 1


def test_a_publish_that_never_ends_is_a_fault_where_its_process_lived_on():
    killed = (
        Struck(at=3.0, by="hand", fault="1", kind="kill", target="producer", process=True),
        Healed(at=3.5, by="hand", fault="1"),
    )
    alive = Asked(at=12.0, by="producer", subject="o2", type="nobody.takes", message_id="id")
    told = Answered(at=12.1, by="producer", subject="o2", answer="unroutable")
    elsewhere = found("waiting", None)
    assert rules(asked(), elsewhere) == ["publishes"], "nothing struck it"
    assert rules(asked(), elsewhere, *killed) == []
    assert rules(asked(), elsewhere, *killed, alive, told) == ["publishes"]
    assert judged(asked(), elsewhere, *killed, alive, told).faults[0].told == (
        "the publish of o1 by producer has not ended, 10 s after which it should"
    )
    assert rules(asked(), answered("unknown"), elsewhere, *killed, alive, told) == []


def test_a_fault_may_hold_up_a_publish_by_as_long_as_it_lasts():
    asleep = (
        Struck(at=3.0, by="hand", fault="1", kind="paused", target="producer", process=True),
        Healed(at=6.0, by="hand", fault="1"),
    )

    def alive(at: float) -> tuple[Asked, Answered]:
        return (
            Asked(at=at, by="producer", subject="o2", type="nobody.takes", message_id="id"),
            Answered(at=at, by="producer", subject="o2", answer="unroutable"),
        )

    assert rules(asked(), *asleep, *alive(13.4)) == []
    assert rules(asked(), *asleep, *alive(13.6)) == ["publishes"]


def test_a_publish_that_was_sent_again_and_accepted_is_not_unknown():
    again = Asked(at=2.0, by="producer", subject="o1", type="order.placed", message_id="id")
    told = Answered(at=2.1, by="producer", subject="o1", answer="accepted")
    verdict = judged(asked(), answered("unknown"), again, told, *run(3), *run(3, "audit"))
    assert (verdict.published, verdict.unknown, verdict.passed) == (1, 0, True)


def test_a_message_that_dies_with_tries_left_is_a_fault():
    soft = asked(), answered(), *run(1, outcome="soft"), *run(1, "audit")
    assert rules(*soft, found("dead", "charge", reason="retries exhausted")) == ["attempts"]
    assert rules(*soft, found("dead", "charge", reason="older than max_age 1 s")) == []


def test_a_failure_that_does_not_count_leaves_the_attempt_as_it_was():
    first = asked(), answered(), *run(1, outcome="soft", counted=False), *run(1, "audit")
    assert rules(*first, *run(3, step=1, attempt=1)) == []
    assert rules(*first, *run(3, step=1, attempt=2)) == ["attempts"]


def test_a_failure_that_does_not_count_waits_for_a_second_at_least():
    first = asked(), answered(), *run(1, outcome="soft", counted=False, again_in=0.2), *run(1, "audit")
    assert rules(*first, *run(2.05, step=1, attempt=1)) == ["never early"]
    assert rules(*first, *run(2.15, step=1, attempt=1)) == []


def test_nothing_follows_the_last_attempt_but_a_replay():
    tries = asked(), answered(), *run(1, "audit"), *run(1, outcome="soft"), *run(2, outcome="soft", step=1)
    last = *tries, *run(3, outcome="soft", step=2)
    assert rules(*last, found("dead", "charge")) == []
    assert rules(*last, *run(4, step=3)) == ["attempts"]


def test_a_delayed_publish_is_never_early():
    delayed = asked(wait=2.0), answered(), *run(2.0, "audit")
    assert rules(*delayed, *run(2.0)) == []
    assert rules(*delayed, *run(1.9)) == ["never early"]


def test_a_wall_clock_that_was_moved_may_shorten_a_wait_by_as_much():
    moved = Struck(at=1.2, by="hand", fault="1", kind="clock", target="shop", copies=False, clock=30.0)
    first = asked(), answered(), *run(1, outcome="soft", again_in=40.0), *run(1, "audit"), moved
    assert rules(*first, *run(11.2, step=1)) == []
    assert rules(*first, *run(11.0, step=1)) == ["never early"]


def test_lateness_is_put_down_to_faults_where_one_was_struck_between_due_and_done():
    late = asked(), answered(), *run(1, outcome="soft", again_in=1.0), *run(1, "audit"), *run(4.1, step=1)
    calm = judged(*late)
    assert calm.late == 1
    assert (calm.outside.number, calm.outside.most) == (1, pytest.approx(2.0))
    assert calm.inside.number == 0
    for at, healed, inside in ((3.0, 3.5, 1), (0.5, 0.8, 0), (0.5, 1.5, 1), (4.5, 5.0, 0)):
        blow = (
            Struck(at=at, by="hand", fault="1", kind="store", target="store"),
            Healed(at=healed, by="hand", fault="1"),
        )
        assert judged(*late, *blow, recovery=1.0).inside.number == inside, (at, healed)


def test_a_publish_in_a_term_is_old_once_somebody_else_has_taken_the_lease():
    def sent(at: float) -> Sent:
        return Sent(
            at=at,
            by="retry-1",
            publish=f"p{at}",
            exchange="",
            routing_key="shop.charge",
            subject="o1",
            term=1,
        )

    first = LeaseTaken(at=0.0, by="retry-1", lease="retry", term=1)
    second = LeaseTaken(at=5.0, by="retry-2", lease="retry", term=2)
    other = LeaseTaken(at=3.0, by="retry-2", lease="keeper", term=2)
    everything = asked(), answered(), *run(1), *run(1, "audit"), first, second, other
    assert rules(*everything, sent(4.9)) == []
    verdict = judged(*everything, sent(5.1))
    assert [fault.rule for fault in verdict.faults] == ["old term"]
    assert verdict.faults[0].told == (
        "retry-1 published o1 in term 1, 0.100 s after retry-2 had taken retry in term 2"
    )


def test_an_empty_record_is_an_empty_ledger():
    verdict = judged()
    assert (verdict.accepted, verdict.seconds, verdict.passed) == (0, 0.0, True)
