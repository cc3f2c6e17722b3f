"""What a refusal says of a queue, and what is declared on which version (names table)."""

from __future__ import annotations

import pytest

from leveret.core.errors import QueueMismatch
from leveret.core.topology import Queue
from leveret.transports.rabbitmq.declare import inequivalent, mismatch_notes, queue_arguments
from leveret.transports.rabbitmq.errors import Gone


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("'x-max-length' for queue 'q' in vhost '/': received none but current is the value '100' of type 'signedint'",
         ("x-max-length", 100)),
        ("'x-max-length' for queue 'q' in vhost '/': received the value '5' of type 'signedint' but current is none",
         ("x-max-length", None)),
        (("'x-queue-type' for queue 'a 'but current is none' b' in vhost '/': received none but current is the value "
         "'quorum' of type 'longstr'"), ("x-queue-type", "quorum")),
        (("'x-dead-letter-routing-key' for queue 'q' in vhost '/': received none but current is the value 'o'clock' of "
         "type 'longstr'"), ("x-dead-letter-routing-key", "o'clock")),
        (("'x-single-active-consumer' for queue 'q' in vhost '/': received none but current is the value 'true' of "
         "type 'bool'"), ("x-single-active-consumer", True)),
        ("'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'", ("durable", False)),
        ("'type' for exchange 'x' in vhost '/': received 'topic' but current is 'fanout'", ("type", "fanout")),
        ("'x-odd' for queue 'q' in vhost '/': received none but current is the value '[]' of type 'array'", None),
    ],
)  # fmt: skip
def test_what_a_refusal_names_is_read(says, found):
    assert inequivalent(Gone(f"406 PRECONDITION_FAILED - inequivalent arg {says}", code=406), {}) == found


def test_other_refusals_name_nothing():
    assert inequivalent(Gone("403 ACCESS_REFUSED - inequivalent arg 'durable'", code=403), {}) is None
    assert inequivalent(Gone("406 PRECONDITION_FAILED - something else", code=406), {}) is None


@pytest.mark.parametrize(
    ("argument", "ours", "theirs", "found"),
    [
        ("x-delivery-limit", -1, "1000000", 1_000_000), ("x-delivery-limit", 5, "-1", -1),
        ("x-overflow", "reject-publish", "100", "100"), ("x-single-active-consumer", True, "false", False),
    ],
)  # fmt: skip
def test_where_both_have_a_value_theirs_is_read_as_ours_was_written(argument, ours, theirs, found):
    says = f"'{argument}' for queue 'q' in vhost '/': received '{ours}' but current is '{theirs}'"
    gone = Gone(f"406 PRECONDITION_FAILED - inequivalent arg {says}", code=406)
    (name, value) = inequivalent(gone, {argument: ours})
    assert (name, value, type(value)) == (argument, found, type(found))


@pytest.mark.parametrize(
    ("version", "limit"), [("3.10.8", None), ("3.13.7", None), ("4.0.5", -1), ("4.3.6", -1)]
)
def test_a_quorum_queue_gets_no_delivery_limit_where_that_deletes_messages(version, limit):
    assert queue_arguments(Queue("q", "quorum"), version).get("x-delivery-limit") == limit
    # Named even so: a virtual host may make quorum queues of those that name no type.
    assert queue_arguments(Queue("q", "classic"), version) == {"x-queue-type": "classic"}


def test_a_limit_that_somebody_asked_for_is_left_alone():
    queue = Queue("q", "quorum", {"x-delivery-limit": 7, "x-dead-letter-exchange": "dead"})
    assert queue_arguments(queue, "4.0.5")["x-delivery-limit"] == 7
    assert queue_arguments(queue, "3.10.8")["x-delivery-limit"] == 7


@pytest.mark.parametrize(("version", "limit"), [("3.10.8", None), ("4.0.5", -1)])
def test_no_limit_that_somebody_asked_for_is_spelled_as_the_version_has_it(version, limit):
    queue = Queue("q", "quorum", {"x-delivery-limit": -1})
    assert queue_arguments(queue, version).get("x-delivery-limit") == limit
    there = {**queue_arguments(queue, version), "x-single-active-consumer": True}
    (note,) = mismatch_notes(queue, version, there)
    assert "x-single-active-consumer" in note


@pytest.mark.parametrize("type", ["quorum", "classic"])
def test_a_quorum_queue_without_the_argument_met_on_4_is_used_with_a_warning_and_the_remedy(type):
    there = {"x-queue-type": "quorum", "durable": True, "auto_delete": False, "exclusive": False}
    *others, note = mismatch_notes(Queue("shop.charge", type), "4.0.5", there)
    assert "20 times" in note
    assert '"delivery-limit": 1000000' in note
    assert [("x-queue-type" in other) for other in others] == [True] * (type == "classic")
    assert not any("delivery" in each for each in mismatch_notes(Queue("shop.charge", type), "3.10.8", there))


def test_our_own_unlimited_one_beside_another_difference_is_not_told():
    queue = Queue("q", "quorum")
    there = {**queue_arguments(queue, "4.0.5"), "x-single-active-consumer": True, "durable": True}
    (note,) = mismatch_notes(queue, "4.0.5", there)
    assert "x-single-active-consumer" in note


@pytest.mark.parametrize("version", ["3.10.8", "4.0.5"])
def test_a_finite_limit_without_dead_lettering_is_refused(version):
    there = {"x-queue-type": "quorum", "x-delivery-limit": 20}
    with pytest.raises(QueueMismatch, match="x-delivery-limit=20"):
        mismatch_notes(Queue("q", "quorum"), version, there)


@pytest.mark.parametrize("type", ["quorum", "classic"])
def test_no_limit_as_4_spells_it_met_before_4_is_refused_for_it_deletes_at_the_first_return(type):
    there = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    with pytest.raises(QueueMismatch, match=r"x-delivery-limit=-1.*first comes back"):
        mismatch_notes(Queue("q", type), "3.10.8", there)
    (note,) = mismatch_notes(Queue("q", type), "3.10.8", {**there, "x-dead-letter-exchange": "dead"})[-1:]
    assert "uses it as it is" in note
