from __future__ import annotations

from datetime import UTC, datetime

from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.transports.memory_dead_lettering import dead_lettered, runs_in_circles


def die(message, queue="q", reason="expired", exchange="dlx", key=None):
    return dead_lettered(message, queue=queue, reason=reason, at=1_750_000_000.9, exchange=exchange, key=key)


def message(**properties):
    return Outgoing("events", "order.placed", b"body", Properties.build(**properties))


def test_a_death_says_where_why_when_and_by_which_address():
    letter, keys = die(message(expiration="1000", message_id="id", headers={"mine": 1}))
    assert letter.properties.header("x-death") == [
        {
            "count": 1,
            "reason": "expired",
            "queue": "q",
            "time": datetime.fromtimestamp(1_750_000_000, UTC),
            "exchange": "events",
            "routing-keys": ["order.placed"],
            "original-expiration": "1000",
        }
    ]
    assert (letter.exchange, letter.routing_key, letter.body) == ("dlx", "order.placed", b"body")
    assert (letter.properties.expiration, letter.properties.message_id) == (None, "id")
    assert letter.properties.header("mine") == 1
    assert keys == ["order.placed"]


def test_the_same_death_again_is_counted_and_another_one_stands_in_front():
    first, _ = die(message())
    again, _ = die(first)
    other, _ = die(again, queue="other", reason="maxlen")
    deaths = other.properties.header("x-death")
    assert [(d["queue"], d["reason"], d["count"]) for d in deaths] == [
        ("other", "maxlen", 1),
        ("q", "expired", 2),
    ]
    assert other.properties.header("x-first-death-queue") == "q"
    assert other.properties.header("x-last-death-queue") == "other"


def test_copies_go_along_unless_the_queue_names_a_key():
    carbon = message(headers={"CC": ["second", 3]})
    letter, keys = die(carbon)
    assert keys == ["order.placed", "second"]
    assert letter.properties.header("CC") == ["second", 3]
    letter, keys = die(carbon, key="dead")
    assert (letter.routing_key, keys) == ("dead", ["dead"])
    assert letter.properties.header("CC") is None
    assert letter.properties.header("x-death")[0]["routing-keys"] == ["order.placed", "second"]


def test_what_only_the_broker_sends_round_runs_in_circles():
    letter, _ = die(message())
    assert runs_in_circles(letter, "q") is True
    assert runs_in_circles(letter, "other") is False
    rejected, _ = die(message(), reason="rejected")
    assert runs_in_circles(rejected, "q") is False


def test_a_death_header_that_somebody_made_up_is_no_hindrance():
    letter, _ = die(message(headers={"x-death": "nonsense"}))
    assert [death["queue"] for death in letter.properties.header("x-death")] == ["q"]
    assert runs_in_circles(message(headers={"x-death": [1, "two"]}), "q") is False
