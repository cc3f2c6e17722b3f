"""Frames that we write ourselves are those that pika writes, and a tag goes on and off without a trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from leveret.core.errors import BadPayload
from leveret.core.properties import Properties
from leveret.transports.rabbitmq import wire

names = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)
built = st.builds(
    Properties.build,
    content_type=st.none() | st.just("application/json"),
    content_encoding=st.none() | st.just("gzip"),
    headers=st.none() | st.dictionaries(names, st.integers(-5, 5) | st.text(max_size=20), max_size=4),
    delivery_mode=st.sampled_from([None, 1, 2]),
    message_id=st.none() | st.text("abc", max_size=9),
    timestamp=st.none() | st.integers(0, 2**40),
)


def frames(data: bytes) -> list:
    found = []
    while data:
        size, value = frame.decode_frame(data)
        found.append(value)
        data = data[size:]
    return found


@given(built)
def test_a_tag_goes_on_behind_all_headers_and_comes_off_without_a_trace(properties):
    tagged = Properties(wire.tagged(properties, b"aa-1-2"))
    assert tagged == properties.edit(add={"leveret-tag": "aa-1-2"})
    assert wire.tag_of(tagged) == "aa-1-2"
    assert wire.untagged(tagged) == properties.edit(drop=("leveret-tag",))


@given(st.binary(max_size=60))
def test_a_tag_on_any_bytes_at_all_never_raises(raw):
    wire.tagged(Properties(raw), b"aa-1-2")


def test_a_tag_that_is_there_already_is_replaced():
    properties = Properties.build(headers={"leveret-tag": "old", "mine": 1})
    assert Properties(wire.tagged(properties, b"new")).headers == {"mine": 1, "leveret-tag": "new"}


def test_a_header_that_only_holds_the_name_of_the_tag_is_no_tag():
    properties = Properties.build(headers={"mine": "leveret-tag"})
    assert wire.tag_of(properties) is None
    assert wire.untagged(properties) == properties


@given(names, names, built, st.integers(0, 40), st.sampled_from((18, 4096)), st.booleans())
def test_a_publish_reads_as_one_to_pika(exchange, key, properties, size, frame_max, mandatory):
    body = bytes(range(size))
    publish = wire.publish(7, exchange, key, mandatory=mandatory)
    method, header, *bodies = frames(wire.content(publish, 7, properties.raw, body, frame_max))
    assert {each.channel_number for each in (method, header, *bodies)} == {7}
    assert isinstance(method.method, spec.Basic.Publish)
    assert (method.method.exchange, method.method.routing_key) == (exchange, key)
    assert (method.method.mandatory, method.method.immediate) == (mandatory, False)
    assert header.body_size == size
    assert header.properties.message_id == properties.message_id
    assert b"".join(each.fragment for each in bodies) == body
    # No frame is larger than was agreed on, and none is empty.
    assert all(0 < len(each.fragment) <= frame_max - 8 for each in bodies)


@pytest.mark.parametrize(("exchange", "key"), [("x" * 256, ""), ("", "é" * 128)])
def test_a_name_that_amqp_cannot_carry_is_refused_with_its_length(exchange, key):
    with pytest.raises(BadPayload, match="256 bytes"):
        wire.publish(1, exchange, key, mandatory=True)


def test_what_is_sent_with_each_delivery_reads_as_such_to_pika():
    ack, requeue, get, select = frames(
        wire.ack(3, 2**40) + wire.requeue(3, 5) + wire.get(3, "q") + wire.confirm_select(3)
    )
    assert (ack.method.NAME, ack.method.delivery_tag, ack.method.multiple) == ("Basic.Ack", 2**40, False)
    assert (requeue.method.NAME, requeue.method.delivery_tag, requeue.method.requeue) == (
        "Basic.Reject",
        5,
        True,
    )
    assert (get.method.NAME, get.method.queue, get.method.no_ack) == ("Basic.Get", "q", False)
    assert (select.method.NAME, select.method.nowait) == ("Confirm.Select", True)
