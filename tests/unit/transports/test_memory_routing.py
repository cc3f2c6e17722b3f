from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.errors import NotFound, PublishRefused, QueueMismatch
from leveret.core.topology import RMQExchangeConfig
from leveret.transports.memory_broker import MemoryBroker
from leveret.transports.memory_routing import topic_matches

words = st.sampled_from(["a", "b", "ab"])


def by_regular_expression(pattern, key):
    """The same rule, told another way: every word with the dot behind it."""
    parts = {"#": r"(?:[^.]+\.)*", "*": r"[^.]+\."}
    expression = "".join(parts.get(part, re.escape(part) + r"\.") for part in pattern.split("."))
    return re.fullmatch(expression, key + "." if key else "") is not None


@given(
    st.lists(st.one_of(words, st.just("*"), st.just("#")), min_size=1, max_size=6).map(".".join),
    st.lists(words, max_size=6).map(".".join),
)
def test_topics_match_as_a_regular_expression_does(pattern, key):
    assert topic_matches(pattern, key) == by_regular_expression(pattern, key)


def test_many_hashes_cost_no_more_than_their_number_times_the_words():
    assert not topic_matches("#.a." * 30 + "#.b", "a." * 60 + "c")


@pytest.fixture
def broker():
    return MemoryBroker()


def reached(broker, exchange, key):
    return [queue.name for queue in broker._routing.route(exchange, key)]


def test_queues_are_reached_in_the_order_they_were_bound(broker):
    broker.declare_exchange("x", "fanout")
    names = [f"q{number}" for number in range(20)]
    for name in names:
        broker.declare_queue(name)
    for name in reversed(names):
        broker.bind("x", name)
    assert reached(broker, "x", "any") == names[::-1]


def test_a_new_binding_reaches_what_was_routed_before(broker):
    broker.declare_exchange("x")
    broker.declare_queue("q")
    assert reached(broker, "x", "order") == []
    broker.bind("x", "q", "order")
    assert reached(broker, "x", "order") == ["q"]
    broker.delete_queue("q")
    assert reached(broker, "x", "order") == []
    broker.declare_queue("q")
    assert reached(broker, "x", "order") == []


def test_binding_needs_both_ends(broker):
    broker.declare_exchange("x")
    broker.declare_queue("q")
    with pytest.raises(NotFound, match="exchange nowhere"):
        broker.bind("nowhere", "q")
    with pytest.raises(NotFound, match="queue nobody"):
        broker.bind("x", "nobody")


def test_an_exchange_of_another_type_is_refused_and_stays(broker):
    broker.declare_exchange("x", "fanout")
    with pytest.raises(QueueMismatch, match=r"'fanout'.*'topic'"):
        broker.declare_exchange("x", "topic")
    broker.declare_exchange("x", "fanout")


def test_a_missing_exchange_and_a_key_that_is_too_long_have_their_codes(broker):
    with pytest.raises(PublishRefused) as caught:
        broker._routing.route("nowhere", "key")
    assert caught.value.code == 404
    with pytest.raises(PublishRefused, match="256") as caught:
        broker._routing.route("", "é" * 128)
    assert caught.value.code == 502


def test_remembering_routes_takes_no_more_memory_than_so_much(broker):
    broker.declare_exchange("x")
    for number in range(10_000):
        broker._routing.route("x", f"key.{number}")
    assert len(broker._routing._known) <= 4096


def test_an_exchange_that_is_not_durable_is_gone_after_a_restart(broker):
    broker.declare_exchange("kept")
    broker.declare_exchange("lost", durable=False)
    assert RMQExchangeConfig("kept").durable
    broker.stop()
    broker.start()
    assert broker._routing.has_exchange("kept")
    assert not broker._routing.has_exchange("lost")
