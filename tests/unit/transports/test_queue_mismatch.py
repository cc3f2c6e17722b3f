from __future__ import annotations

import pytest

from leveret.core.errors import QueueMismatch
from leveret.core.topology import Queue
from leveret.transports.queue_mismatch import declared_arguments, differences

HARMLESS = [
    {"x-max-priority": 5},
    {"x-dead-letter-exchange": "elsewhere"},
    {"x-queue-type": "quorum"},
    {"x-queue-type": "quorum", "x-delivery-limit": -1},
    {"x-queue-type": "quorum", "x-delivery-limit": 5, "x-dead-letter-exchange": "elsewhere"},
    {"x-max-length": 5, "x-overflow": "reject-publish"},
    {"x-max-length-bytes": 5, "x-overflow": "reject-publish-dlx"},
    {"x-overflow": "drop-head"},
    {"x-single-active-consumer": True},
]
UNSAFE = [
    ({"durable": False}, "durable=False"),
    ({"auto_delete": True}, "auto_delete=True"),
    ({"exclusive": True}, "exclusive=True"),
    ({"x-expires": 1000}, "x-expires=1000"),
    ({"x-message-ttl": 0}, "x-message-ttl=0"),
    ({"x-max-length": 5}, "x-max-length=5"),
    ({"x-max-length-bytes": 5, "x-overflow": "drop-head"}, "x-max-length-bytes=5"),
    ({"x-queue-type": "quorum", "x-delivery-limit": 20}, "x-delivery-limit=20"),
    ({"x-queue-type": "quorum", "x-delivery-limit": 0}, "x-delivery-limit=0"),
]


@pytest.mark.parametrize("theirs", HARMLESS)
def test_what_takes_no_message_away_is_told_and_used(theirs):
    notes = differences(Queue("shop.charge"), theirs)
    assert len(notes) == len(theirs)
    for argument, value in theirs.items():
        assert any(f"shop.charge exists with {argument}={value!r}" in note for note in notes)


@pytest.mark.parametrize(("theirs", "named"), UNSAFE)
def test_what_takes_messages_away_is_refused_with_both_values_and_the_remedy(theirs, named):
    with pytest.raises(QueueMismatch) as caught:
        differences(Queue("shop.charge"), theirs)
    words = str(caught.value)
    assert f"queue shop.charge exists with {named}, leveret declares " in words
    assert "rabbitmqctl delete_queue shop.charge --if-empty" in words


def test_a_queue_as_declared_differs_in_nothing():
    queue = Queue("shop.charge", "quorum", {"x-message-ttl": 1000})
    assert differences(queue, {"x-queue-type": "quorum", "x-message-ttl": 1000, "durable": True}) == []


def test_an_unsafe_argument_that_the_user_asked_for_himself_is_no_reason_to_refuse():
    queue = Queue("shop.charge", "classic", {"x-message-ttl": 1000})
    assert differences(queue, {"x-message-ttl": 1000}) == []
    with pytest.raises(QueueMismatch, match="x-message-ttl=2000, leveret declares x-message-ttl=1000"):
        differences(queue, {"x-message-ttl": 2000})


def test_no_type_written_out_is_classic():
    assert differences(Queue("q", "classic", pinned=True), {}) == []
    assert differences(Queue("q", "classic"), {"x-queue-type": "classic"}) == []


@pytest.mark.parametrize("theirs", [{}, {"x-queue-type": "classic"}, {"x-queue-type": "quorum"}])
def test_where_no_type_is_asked_for_any_will_do(theirs):
    assert differences(Queue("q", None), theirs) == []


def test_a_pinned_type_is_refused_instead_of_shared():
    with pytest.raises(QueueMismatch, match="x-queue-type='quorum', leveret declares x-queue-type='classic'"):
        differences(Queue("q", "classic", pinned=True), {"x-queue-type": "quorum"})


def test_the_type_that_is_asked_for_is_written_out_and_never_left_to_the_brokers_default():
    assert declared_arguments(Queue("q")) == {"x-queue-type": "classic"}
    assert declared_arguments(Queue("q", None)) == {}
    assert declared_arguments(Queue("q", "quorum", {"x-max-priority": 2})) == {
        "x-queue-type": "quorum",
        "x-max-priority": 2,
    }
