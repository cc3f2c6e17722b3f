"""Which blow excuses which copy, told on one message at one worker or two."""

from __future__ import annotations

import msgspec

from leveret.proof.ledger import Verdict, judge
from leveret.proof.record import (
    Answered,
    AnyEvent,
    Asked,
    Began,
    Confirmed,
    Ended,
    Found,
    Healed,
    Replayed,
    Sampled,
    Sent,
    Settled,
    Struck,
    Taken,
)

Events = list[AnyEvent]


def judged(events: Events, margin: float = 0.2) -> Verdict:
    takers = {"order.placed": ("charge",), "receipt.made": ("post",)}
    return judge(events, takers=takers, max_attempts=3, margin=margin)


def published(at: float = 0.0, answer: str = "accepted") -> Events:
    return [
        Asked(at=at, by="producer", subject="o1", type="order.placed", message_id="id"),
        Sent(at=at, by="producer", publish=f"{at}", exchange="shop.events", routing_key="order.placed", subject="o1"),
        Confirmed(at=at + 0.01, by="producer", publish=f"{at}", answer=answer),
        Answered(at=at + 0.01, by="producer", subject="o1", answer=answer),
    ]  # fmt: skip


def run(
    at: float, by: str = "first", outcome: str | None = "done", *, worker: str = "charge", step: int = 0,
    attempt: int | None = None, settled: bool = True, flagged: bool = False, results: tuple[str, ...] = (),
    replayed: int = 0,
) -> Events:  # fmt: skip
    """A delivery from 0.1 s before *at* to 0.9 s after it, and a run from *at* to 0.8 s after it."""
    name = f"{worker} {at}"
    events: Events = [
        Taken(at=at - 0.1, by=by, delivery=name, queue=f"shop.{worker}", subject="o1", redelivered=flagged),
        Began(at=at, by=by, run=name, worker=worker, subject="o1", message_id="id",
              attempt=step + 1 if attempt is None else attempt, step=step, replayed=replayed),
    ]  # fmt: skip
    if outcome is not None:
        returned = tuple((type, "o1") for type in results)
        events.append(Ended(at=at + 0.8, by=by, run=name, outcome=outcome, results=returned))
    if settled:
        events.append(Settled(at=at + 0.9, by=by, delivery=name, how="ack"))
    return events


def struck(at: float, target: str, *, healed: float | None = None, copies: bool = True) -> Events:
    name = f"blow at {at}"
    return [
        Struck(at=at, by="hand", fault=name, kind="blow", target=target, copies=copies),
        Healed(at=at if healed is None else healed, by="hand", fault=name),
    ]


def letter(reason: str = "never") -> Events:
    return [
        Found(
            at=99.0, by="survey", worker="charge", subject="o1", place="dead", reason=reason, replayed=False
        )
    ]


def rules(events: Events, **more: float) -> list[str]:
    return [fault.rule for fault in judged(events, **more).faults]


def test_a_second_run_without_a_blow_is_a_fault():
    verdict = judged([*published(), *run(1), *run(3, "second")])
    (fault,) = verdict.faults
    assert fault.rule == "copies"
    assert (fault.subject, fault.worker, fault.at) == ("o1", "charge", 3)
    assert [event.at for event in fault.events if isinstance(event, Began)] == [1, 3]
    assert verdict.duplicated == 1


def test_the_kill_of_the_process_that_has_it_in_hand_excuses_one():
    events = [*published(), *run(1, settled=False), *struck(1.85, "first"), *run(3, "second", flagged=True)]
    assert rules(events) == []
    assert judged(events).duplicated == 1


def test_and_one_only():
    events = [*published(), *run(1, settled=False), *struck(1.85, "first"), *run(3, "second", flagged=True)]
    assert rules([*events, *run(5, "third")]) == ["copies"]


def test_a_blow_to_a_broker_whose_own_figures_are_noted_struck_everybody_all_the_same():
    sample: Events = [Sampled(at=0.9, by="broker", figures={"channels": 8.0})]
    verdict = judged(
        [*published(), *sample, *run(1), *struck(1.5, "broker"), *run(3, "second", flagged=True)]
    )
    assert verdict.faults == ()
    assert verdict.duplicated == 1


def test_the_kill_of_another_process_excuses_none():
    bystander: Events = [Taken(at=0.9, by="bystander", delivery="x", queue="shop.charge", subject="o2")]
    assert rules([*published(), *bystander, *run(1), *struck(1.85, "bystander"), *run(3)]) == ["copies"]


def test_a_process_that_was_struck_before_it_wrote_anything_is_one_all_the_same():
    twice = [*published(), *run(1), *run(3, "second")]
    for process, found in ((True, ["copies"]), (False, [])):
        blow = Struck(at=1.5, by="hand", fault="1", kind="kill", target="silent", process=process)
        assert rules([*twice, blow, Healed(at=1.6, by="hand", fault="1")]) == found


def test_a_kill_before_it_was_taken_or_long_after_it_was_settled_excuses_none():
    for at in (0.5, 2.6):
        assert rules([*published(), *run(1), *struck(at, "first"), *run(3, "second")]) == ["copies"], at


def test_what_was_settled_right_before_a_kill_may_not_have_reached_the_socket():
    events = [*published(), *run(1), *struck(2.0, "first"), *run(3, "second")]
    assert rules(events, margin=0.2) == []
    assert rules(events, margin=0.05) == ["copies"]


def test_a_blow_that_comes_after_the_copy_excuses_none():
    assert rules([*published(), *run(1), *run(1.4, "second"), *struck(1.6, "first")]) == ["copies"]


def test_a_blow_that_leaves_no_copies_excuses_none():
    events = [*published(), *run(1, settled=False), *struck(1.85, "first", copies=False), *run(3, "second")]
    assert rules(events) == ["copies"]


def test_a_broker_that_is_struck_takes_back_what_anybody_has_in_hand():
    assert rules([*published(), *run(1, settled=False), *struck(1.5, "broker"), *run(3, "second")]) == []


def test_a_fault_that_lasts_excuses_what_was_in_hand_at_any_moment_of_it():
    late = [*published(), *struck(0.4, "broker", healed=1.4), *run(1, settled=False), *run(3, "second")]
    assert rules(late) == []
    over = [*published(), *struck(0.4, "broker", healed=0.6), *run(1), *run(3, "second")]
    assert rules(over) == ["copies"]


def test_of_two_copies_in_hand_each_may_be_there_once_more():
    sent_twice = [*published(0.0, "unknown"), *published(0.5)]
    both = [*run(3, "second", settled=False), *run(3.1, "third", settled=False), *struck(3.5, "broker")]
    again = [*run(5, "second", flagged=True), *run(5.1, "third", flagged=True)]
    assert rules([*sent_twice, *both, *again]) == []
    assert rules([*sent_twice, *both, *again, *run(7)]) == ["copies"]


def test_copies_that_were_in_hand_one_after_the_other_are_no_copies_in_hand_at_once():
    # One cut, and a message that is done and acked again and again right after it.
    cut = [*published(), *run(1), *struck(1.5, "broker", healed=6.0)]
    assert rules([*cut, *run(3, "second", flagged=True)]) == []
    assert rules([*cut, *run(3, "second", flagged=True), *run(5, "second")]) == ["copies"]


def test_a_copy_that_is_given_back_and_taken_again_all_through_a_fault_is_one():
    slow = [*published(), *struck(0.4, "store", healed=9.0)]
    assert rules([*slow, *(event for at in (1, 3) for event in run(at))]) == []
    assert rules([*slow, *(event for at in (1, 3, 5) for event in run(at))]) == ["copies"]


def test_what_had_come_back_to_the_broker_before_a_blow_was_not_in_hand_then():
    # The first delivery was never settled: its process lost its connection. The second one settled it.
    cut = [*published(), *run(1, settled=False), *struck(1.5, "first"), *run(3, "second", flagged=True)]
    alive: Events = [Taken(at=9.0, by="first", delivery="later", queue="shop.charge", subject="another")]
    assert rules([*cut, *alive, *struck(6.0, "first"), *run(7, "second")]) == ["copies"]


def test_a_publish_whose_confirm_was_not_there_yet_is_in_hand():
    envelope: Events = [
        Sent(at=1.85, by="first", publish="e", exchange="", routing_key="shop.retry", subject="o1"),
    ]
    events = [
        *published(), *run(1, outcome="soft", settled=False), *envelope, *struck(1.9, "first"),
        *run(3, "second", outcome="soft", flagged=True), *run(5, step=1), *run(7, step=1),
    ]  # fmt: skip
    assert rules(events) == []


def test_copies_of_a_step_go_on_through_the_steps_after_it():
    events = [
        *published(), *run(1, outcome="soft", settled=False), *struck(1.85, "first"),
        *run(3, "second", outcome="soft", flagged=True), *run(5, step=1), *run(7, step=1),
    ]  # fmt: skip
    assert rules(events) == []
    assert rules([*events, *run(9, step=1)]) == ["copies"]


def test_copies_of_a_result_follow_from_copies_of_its_input():
    events = [
        *published(), *run(1, results=("receipt.made",), settled=False), *struck(1.85, "first"),
        *run(3, "second", results=("receipt.made",), flagged=True), *run(5, worker="post"), *run(7, worker="post"),
    ]  # fmt: skip
    assert rules(events) == []
    assert rules([*events, *run(9, worker="post")]) == ["copies"]


def test_a_publish_that_was_unknown_may_be_there_once_for_each_sending():
    events = [*published(0.0, "unknown"), *published(0.5), *run(1), *run(3)]
    assert rules(events) == []
    assert rules([*events, *run(5)]) == ["copies"]
    refused = [*published(0.0, "refused"), *published(0.5), *run(1), *run(3)]
    assert rules(refused) == ["copies"]


def test_what_one_of_several_queues_refused_may_be_at_the_others():
    events = [*published(0.0, "refused"), *run(1), *published(5), *run(6, worker="audit"), *run(7)]
    takers = {"order.placed": ("charge", "audit")}
    assert judge(events, takers=takers, max_attempts=3).faults == ()
    assert rules([*published(0.0, "refused"), *run(1), *published(5), *run(7)]) == [
        "copies",
        "nothing invented",
    ]


def test_a_death_leaves_one_letter_and_one_more_for_a_blow_while_it_was_handed_over():
    death = [*published(), *run(1, outcome="hard")]
    assert rules([*death, *letter()]) == []
    assert rules([*death, *letter(), *letter()]) == ["copies"]
    assert rules([*death, *letter(), *letter(), *struck(1.85, "first")]) == []


def started(times: int, *, blows: int, by: str = "first", unseen: bool = False) -> Events:
    """A message that comes again so often, and is buried the last time; *unseen*: nobody read its first delivery."""
    events = published()
    for number in range(times):
        at = 2 * number + 1.0
        events += run(at, by, outcome=None, settled=False, flagged=unseen or number > 0)
        events += struck(at + 0.5, by if number < blows else "bystander", copies=False)
    at = 2 * times + 1.0
    return [
        *events,
        Taken(at=at, by="second", delivery="last", queue="shop.charge", subject="o1", redelivered=True),
        Settled(at=at + 0.1, by="second", delivery="last", how="ack"),
        Taken(at=0.0, by="bystander", delivery="another", queue="shop.charge", subject="o2"),
        *letter("worker died: started 5 times"),
    ]


def test_what_ends_its_process_is_dead_once_so_many_blows_struck_while_it_was_in_hand():
    assert "attempts" not in rules(started(5, blows=5))
    for few in (started(1, blows=1), started(4, blows=4), started(5, blows=4), started(5, blows=0)):
        assert "attempts" in rules(few)


def test_that_it_comes_again_shows_a_start_that_its_process_was_struck_before_it_saw():
    before = struck(0.5, "silent")
    assert "attempts" not in rules([*started(4, blows=4, unseen=True), *before])
    assert "attempts" in rules([*started(4, blows=4), *before])
    assert "attempts" in rules([*started(3, blows=3, unseen=True), *before])


def test_a_letter_without_a_run_has_died_of_nothing():
    verdict = judged([*published(), *letter("whatever")])
    (fault,) = verdict.faults
    assert (fault.rule, fault.told) == ("attempts", "o1 is dead (whatever), though charge never began on it")
    takers = {"order.placed": ("charge",)}
    assert judge([*published(), *letter("no JSON")], takers=takers, max_attempts=3, unread=True).passed


def test_a_letter_that_was_replayed_runs_once_for_each_replay():
    death = [*published(), *run(1, outcome="hard")]
    history = [Found(at=99.0, by="survey", worker="charge", subject="o1", place="dead", replayed=True)]
    asked: Events = [Replayed(at=3.0, by="hand", worker="charge", subject="o1", letter="l1")]
    once = [*death, *history, *asked, *run(4, step=1, attempt=1, replayed=1)]
    assert rules(once) == []
    assert rules([*once, *run(6, step=1, attempt=1, replayed=1)]) == ["copies"]


def test_what_no_handler_can_read_is_dead_once_more_for_each_replay():
    replay: Events = [Replayed(at=3.0, by="hand", worker="charge", subject="o1", letter="l1")]
    takers = {"order.placed": ("charge",)}
    unread = [*published(), *replay, *letter("no JSON"), *letter("no JSON")]
    assert judge(unread, takers=takers, max_attempts=3, unread=True).passed
    verdict = judge([*unread, *letter("no JSON")], takers=takers, max_attempts=3, unread=True)
    assert [fault.rule for fault in verdict.faults] == ["copies"]


def test_where_nobody_wrote_down_what_was_in_hand_a_blow_between_two_runs_excuses_one():
    def handlers_alone(events: Events) -> Events:
        return [event for event in events if not isinstance(event, Taken | Settled | Sent | Confirmed)]

    between = handlers_alone([*published(), *run(1), *struck(2.0, "broker"), *run(3)])
    assert rules(between) == []
    assert rules(handlers_alone([*between, *run(5)])) == ["copies"]
    assert rules(handlers_alone([*published(), *run(1), *run(3), *struck(4.0, "broker")])) == ["copies"]


def test_what_its_worker_gets_is_what_was_published():
    def changed(asked: str, began: str) -> Events:
        digests = {Asked: asked, Began: began}
        return [
            msgspec.structs.replace(event, digest=digests[type(event)]) if type(event) in digests else event
            for event in [*published(), *run(1)]
        ]

    assert rules(changed("1", "1")) == rules(changed("", "1")) == []
    (fault,) = judged(changed("1", "2")).faults
    assert (fault.rule, fault.told) == ("the same message", "the digest of o1 at charge was 1, and then 2")


def test_a_result_is_another_message_than_its_input():
    returned = [*published(), *run(1, results=("receipt.made",)), *run(3, worker="post")]
    digests = {("charge", 1): "1", ("post", 3): "2"}
    events: Events = [
        msgspec.structs.replace(event, digest=digests[event.worker, event.at])
        if isinstance(event, Began)
        else msgspec.structs.replace(event, digest="1")
        if isinstance(event, Asked)
        else event
        for event in returned
    ]
    assert rules(events) == []


def test_a_result_that_no_handler_returned_is_invented():
    assert rules([*published(), *run(1), *run(3, worker="post")]) == ["nothing invented"]


def test_a_result_that_no_queue_took_has_a_letter_of_its_own_before_it_is_replayed_and_dies():
    replay: Events = [Replayed(at=0.5, by="hand", worker="charge", subject="o1", letter="l1")]
    died = [*published(), *replay, *run(1, outcome="hard", replayed=1)]
    assert rules([*died, *letter("unroutable result"), *letter()]) == []
    assert rules([*died, *letter("unroutable result"), *letter(), *letter()]) == ["copies"]
    late: Events = [Replayed(at=1.5, by="hand", worker="charge", subject="o1", letter="l1")]
    assert rules([*published(), *run(1, outcome="hard"), *late, *letter(), *letter()]) == ["copies"]
