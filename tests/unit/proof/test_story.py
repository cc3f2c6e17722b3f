"""A message's events, read as a story."""

from __future__ import annotations

from tests.unit.proof.clean import Clean

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
from leveret.proof.story import pick, tell

STORY: list[AnyEvent] = [
    Asked(at=10.0, by="producer 1", subject="o1", type="order.placed", message_id="7c1e4b", wait=2.5),
    Sent(at=10.0, by="producer 1", publish="1", exchange="", routing_key="shop.retry", subject="o1"),
    Confirmed(at=10.01, by="producer 1", publish="1", answer="accepted"),
    Answered(at=10.02, by="producer 1", subject="o1", answer="unknown", error="no answer in 10 s"),
    LeaseTaken(at=10.1, by="retry 1", lease="retry", term=3),
    Sent(
        at=12.6,
        by="retry 1",
        publish="1",
        exchange="shop.events",
        routing_key="order.placed",
        subject="o1",
        term=3,
    ),
    Taken(at=12.7, by="workers 1", delivery="d1", queue="shop.charge", subject="o1"),
    Began(
        at=12.7, by="workers 1", run="r1", worker="charge", subject="o1", message_id="7c1e4b", attempt=1, step=0
    ),
    Ended(at=12.8, by="workers 1", run="r1", outcome="soft", again_in=1.5, counted=False),
    Struck(at=12.85, by="hand", fault="kill 1", kind="kill", target="workers 1", note="at H5"),
    Healed(at=13.5, by="hand", fault="kill 1"),
    Taken(at=13.6, by="workers 2", delivery="d1", queue="shop.charge", subject="o1", redelivered=True),
    Began(
        at=13.6, by="workers 2", run="r2", worker="charge", subject="o1", message_id="7c1e4b", attempt=1, step=1,
        replayed=2,
    ),
    Ended(at=13.7, by="workers 2", run="r2", outcome="done", results=(("receipt.made", "o1"),)),
    Settled(at=13.8, by="workers 2", delivery="d1", how="ack"),
    Replayed(at=14.0, by="hand", worker="audit", subject="o1", letter="l1"),
    Found(at=15.0, by="survey", worker="audit", subject="o1", place="dead", reason="HardFailure: never"),
]  # fmt: skip


def test_a_story_has_a_line_for_each_event():
    assert tell(STORY) == [
        "   0.000 s  producer 1  publishes o1 as order.placed (id 7c1e4b), in 2.5 s",
        "   0.000 s  producer 1  sends o1 to shop.retry",
        "   0.010 s  producer 1  is told of what it sent to shop.retry: accepted",
        "   0.020 s  producer 1  is told of o1: unknown whether it arrived (no answer in 10 s)",
        "   0.100 s  retry 1     takes the lease retry in term 3",
        "   2.600 s  retry 1     sends o1 to shop.events as order.placed, in term 3 of its lease",
        "   2.700 s  workers 1   takes o1 from shop.charge",
        "   2.700 s  workers 1   charge begins on o1, attempt 1",
        "   2.800 s  workers 1   charge fails, wants it back in 1.5 s, which does not count",
        "   2.850 s  hand        ⚡ kill: workers 1 (at H5)",
        "   3.500 s  hand        ⚡ kill 1 is over",
        "   3.600 s  workers 2   takes o1 from shop.charge, for another time",
        "   3.600 s  workers 2   charge begins on o1, attempt 1, failed 1 before, replayed 2",
        "   3.700 s  workers 2   charge is done, returns receipt.made",
        "   3.800 s  workers 2   acks o1 from shop.charge",
        "   4.000 s  hand        replays o1 to audit (letter l1)",
        "   5.000 s  survey      finds o1 of audit dead: HardFailure: never",
    ]


def test_events_about_no_message_have_their_words_too():
    told = tell(
        [
            Called(at=1.0, by="caller", call="c1", timeout=5.0),
            Served(at=1.1, by="server", call="c1"),
            CallEnded(at=1.2, by="caller", call="c1", outcome="answered"),
            CallEnded(at=1.2, by="caller", call="c2", outcome="failed", right=False),
            Settled(at=1.3, by="server", delivery="d7", how="requeue"),
            Confirmed(at=1.4, by="server", publish="p7", answer="refused"),
            Ended(at=1.5, by="server", run="r7", outcome="hard"),
            Backlog(at=1.6, by="survey", queue="shop.charge", messages=3),
            Sampled(at=1.7, by="server", figures={"threads": 9.0}),
        ],
        since=0.0,
    )
    assert [line[20:] for line in told] == [
        "calls c1, waits 5 s",
        "starts on call c1",
        "is told of call c1: answered",
        "is told of call c2: failed, and not with what it asks for",
        "gives back d7",
        "is told of publish p7: not accepted: the broker refused it",
        "run r7 fails for good",
        "finds 3 messages in shop.charge",
        "threads 9",
    ]
    assert told[0].startswith("   1.000 s  caller  ")


def test_a_story_of_nothing_is_empty():
    assert tell([]) == []


def test_a_message_is_picked_with_its_ends_and_the_blows_that_fell_in_between():
    before = Struck(at=1.0, by="hand", fault="early", kind="cut", target="broker")
    other = Began(
        at=13.0, by="workers 1", run="r9", worker="charge", subject="o2", message_id=None, attempt=1, step=0
    )
    its_end = Ended(at=13.1, by="workers 1", run="r9", outcome="done")
    about_nobody = {LeaseTaken}
    picked = pick([before, *STORY, other, its_end], ["o1", "o3"])
    assert picked["o1"] == [event for event in STORY if type(event) not in about_nobody]
    assert picked["o3"] == []


def test_every_event_of_a_clean_record_belongs_to_a_story_or_to_none():
    events = list(Clean(5, soft=0.5, hard=0.2).events(20))
    subjects = {event.subject for event in events if isinstance(event, Asked)}
    told = [event for its in pick(events, subjects).values() for event in its]
    assert len(told) == len([event for event in events if not isinstance(event, LeaseTaken | Backlog)])
