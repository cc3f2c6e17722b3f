from __future__ import annotations

import struct
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core import headers as h
from leveret.core.message import (
    DERIVED_IDS,
    DIRECT_REPLY,
    TAG_ROOM,
    Received,
    derived_id,
    received,
    result_id,
    retry_id,
    retry_key,
    unwrap,
    wrap,
)
from leveret.core.properties import Properties

FRAME_MAX = 131_072
#: A header frame: 7 bytes in front, 12 of class, weight and size, 1 at its end.
FRAME = 20

# ── Tables by hand, so that the codec is not its own witness ──────────────────────────────────────────────────────────


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def by_hand(*entries: tuple[str, str, bytes], message_id: str = "m-1") -> Properties:
    """Headers as (name, letter, data), delivery mode 2, and a message id."""
    table = b"".join(
        bytes([len(name)]) + name.encode() + kind.encode() + data for name, kind, data in entries
    )
    return Properties(b"\x30\x80" + long(table) + b"\x02" + bytes([len(message_id)]) + message_id.encode())


def read(properties: Properties, body: bytes = b"{}", queue: str = "shop.charge", **more: Any) -> Received:
    return received(
        queue=queue,
        exchange="shop.events",
        routing_key="order.placed",
        body=body,
        properties=properties,
        redelivered=False,
        **more,
    )


# ── Ids ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_retry_id_survives_that_rabbitmq_4_writes_long_integers_under_another_letter():
    number = struct.pack(">q", 7)
    assert retry_id(read(by_hand(("n", "L", number)))) == retry_id(read(by_hand(("n", "l", number))))


def test_the_retry_id_survives_that_rabbitmq_4_drops_the_second_header_of_a_name():
    one, other = ("n", "S", long(b"one")), ("n", "S", long(b"other"))
    assert retry_id(read(by_hand(one, other))) == retry_id(read(by_hand(one)))
    assert retry_id(read(by_hand(other))) != retry_id(read(by_hand(one)))


def test_the_retry_id_survives_another_order_of_the_headers_at_any_depth():
    there = Properties.build(message_id="m", headers={"a": {"x": 1, "y": [{"p": 1, "q": 2}]}, "b": 2})
    back = Properties.build(message_id="m", headers={"b": 2, "a": {"y": [{"q": 2, "p": 1}], "x": 1}})
    assert there != back
    assert retry_id(read(there)) == retry_id(read(back))


def test_the_order_of_an_array_is_part_of_the_retry_id():
    one, other = ({"a": [1, 2]}, {"a": [2, 1]})
    ids = {retry_id(read(Properties.build(message_id="m", headers=headers))) for headers in (one, other)}
    assert len(ids) == 2


BASE: dict[str, Any] = {"message_id": "m", "content_type": "application/json", "headers": {"a": 1}}


@pytest.mark.parametrize(
    "other",
    [
        {"message_id": "n"},
        {"content_type": "text/plain"},
        {"content_type": None},
        {"content_encoding": "gzip"},
        {"headers": {"a": 2}},
        {"headers": {"a": "1"}},
        {"headers": {"a": 1.0}},
        {"headers": {"a": True}},
        {"headers": {"a": None}},
        {"headers": {"a": b"1"}},
        {"headers": {"a": [1]}},
        {"headers": {"a": {"1": 1}}},
        {"headers": {"a": Decimal(1)}},
        {"headers": {"a": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}},
        {"headers": {}},
        {"priority": 1},
        {"correlation_id": "c"},
        {"reply_to": "answers"},
        {"timestamp": 1},
        {"type": "t"},
        {"app_id": "shop"},
    ],
    ids=repr,
)
def test_two_different_messages_under_one_id_have_different_retry_ids(other: dict[str, Any]):
    first, second = Properties.build(**BASE), Properties.build(**(BASE | other))
    assert retry_id(read(first)) != retry_id(read(second))


def test_another_body_or_another_queue_makes_another_retry_id():
    properties = Properties.build(**BASE)
    ids = {
        retry_id(read(properties)),
        retry_id(read(properties, body=b"{} ")),
        retry_id(read(properties, queue="shop.mail")),
    }
    assert len(ids) == 3


def test_what_the_broker_and_leveret_add_changes_no_retry_id():
    properties = Properties.build(**BASE)
    travelled = properties.edit(
        add={"x-death": [{"count": 1}], "x-delivery-count": 3, "x-acquired-count": 2, "x-first-death-queue": "q",
             h.STARTS: 2, h.ORIGIN_KEY: "order.placed", h.ATTEMPT: 4, "CC": ["also"]}
    )  # fmt: skip
    assert retry_id(read(travelled)) == retry_id(read(properties))


def test_a_copy_of_a_message_has_the_retry_id_of_the_message():
    original = Properties.build(
        message_id="m", reply_to=DIRECT_REPLY, expiration="60000", user_id="somebody", delivery_mode=1,
        headers={"CC": ["a"], "BCC": ["b"], "kept": 1, "x-death": [{"count": 2}]},
    )  # fmt: skip
    body, copy = wrap(b"{}", original, {h.STARTS: 1}, frame_max=FRAME_MAX, user="guest")
    assert retry_id(read(copy, body=body)) == retry_id(read(original))
    body, wrapped = wrap(b"{}", original, {h.STARTS: 1}, frame_max=100, user="guest")
    assert body != b"{}"
    assert retry_id(read(wrapped, body=body)) == retry_id(read(original))


def test_a_message_without_an_id_has_no_retry_id_until_a_failing_side_mints_one():
    assert retry_id(read(Properties.build(headers={"a": 1}))) is None
    assert retry_id(read(Properties.build(headers={h.RETRY_ID: "minted"}))) == "minted"
    assert retry_id(read(Properties.build(message_id="m", headers={h.RETRY_ID: "minted"}))) == "minted"


def test_a_retry_id_is_the_same_in_every_process():
    assert (
        retry_id(read(Properties.build(message_id="m"), body=b"1")) == "bfc376b2-8eb1-57f4-a660-50163ca24306"
    )


def test_a_result_has_one_id_however_often_its_handler_runs():
    ids = [
        result_id("m", "charge", 0),
        result_id("m", "charge", 1),
        result_id("m", "mail", 0),
        result_id("n", "charge", 0),
    ]
    assert len(set(ids)) == 4
    assert ids[0] == result_id("m", "charge", 0)
    assert result_id(None, "charge", 0) is None


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"))))
def test_a_derived_id_is_a_uuid_of_version_5(parts: list[str]):
    named = "".join(f"{len(part)}:{part}" for part in parts)
    assert derived_id(*parts) == str(uuid.uuid5(DERIVED_IDS, named))


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_derived_ids_are_equal_where_their_parts_are(one: list[str], other: list[str]):
    assert (derived_id(*one) == derived_id(*other)) == (one == other)


def test_two_workers_that_fail_one_message_have_two_keys():
    assert retry_key("shop.charge", "r") != retry_key("shop.mail", "r")


# ── Wrapping ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SHORT = st.text(max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
HEADERS = st.dictionaries(SHORT, VALUES, max_size=5)
ORIGINALS = st.builds(
    Properties.build,
    content_type=st.none() | SHORT,
    headers=HEADERS,
    delivery_mode=st.sampled_from([1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | SHORT,
    reply_to=st.none() | SHORT,
    message_id=st.none() | SHORT,
    timestamp=st.none() | st.integers(0, 2**63),
    type=st.none() | SHORT,
    app_id=st.none() | SHORT,
)
ADDED = {h.ATTEMPT: 2, h.RETRY_ID: "r"}


@given(st.binary(max_size=50), ORIGINALS, st.sampled_from([100, 400, FRAME_MAX]))
def test_wrapping_is_undone_by_unwrapping_whatever_the_frame_size(
    body: bytes, original: Properties, frame_max: int
):
    sent, properties = wrap(body, original, ADDED, frame_max=frame_max)
    back, again, found = unwrap(sent, properties)
    assert back == body
    assert {name: found[name] for name in ADDED} == ADDED
    if h.WRAPPED in found:
        assert again.raw == original.raw
    else:
        assert sent == body
        kept = again.edit(drop=set(ADDED), fields={"delivery_mode": original.delivery_mode})
        assert kept.raw in {original.raw, original.edit().raw}
        assert len(properties.raw) + FRAME <= frame_max


def test_a_message_is_wrapped_at_the_byte_from_which_it_no_longer_fits():
    original = Properties.build(message_id="m", headers={"a": "x" * 500})
    plain = len(wrap(b"body", original, ADDED, frame_max=FRAME_MAX)[1].raw)
    # The transport adds what it tells a returned message by.
    assert wrap(b"body", original, ADDED, frame_max=plain + FRAME + TAG_ROOM)[0] == b"body"
    assert wrap(b"body", original, ADDED, frame_max=plain + FRAME + TAG_ROOM - 1)[0] == original.raw + b"body"


def test_a_wrapped_message_bears_id_type_and_priority_outside_and_is_persistent():
    original = Properties.build(
        message_id="m", type="t", priority=3, delivery_mode=1, correlation_id="c", user_id="x", expiration="1",
        headers={"wide": "x" * 1000},
    )  # fmt: skip
    _, outer = wrap(b"", original, ADDED, frame_max=500)
    assert (outer.message_id, outer.type, outer.priority, outer.delivery_mode) == ("m", "t", 3, 2)
    assert (outer.correlation_id, outer.user_id, outer.expiration) == (None, None, None)
    assert outer.headers == ADDED | {h.WRAPPED: len(original.raw)}


def test_taken_off_a_copy_is_what_would_kill_misroute_or_stop_it():
    original = Properties.build(
        expiration="60000", user_id="somebody", reply_to=DIRECT_REPLY,
        headers={"CC": ["a"], "BCC": ["b"], "x-death": [{"count": 1}], "x-first-death-queue": "q",
                 "x-delivery-count": 1, "x-last-death-reason": "expired", "x-acquired-count": 1, h.TAG: "t",
                 h.STARTS: 1, "x-mine": 1, "mine": 2},
    )  # fmt: skip
    _, copy = wrap(b"", original, ADDED, frame_max=FRAME_MAX, user="guest")
    assert (copy.expiration, copy.user_id, copy.reply_to, copy.delivery_mode) == (None, None, None, 2)
    assert copy.headers == {
        "x-mine": 1, "mine": 2, "leveret-cc": ["a"], "leveret-bcc": ["b"], h.USER_ID: "somebody",
        h.REPLY_TO: DIRECT_REPLY,
    } | ADDED  # fmt: skip


def test_a_user_id_that_is_ours_and_a_reply_queue_of_its_own_stay():
    original = Properties.build(user_id="guest", reply_to="answers")
    _, copy = wrap(b"", original, {}, frame_max=FRAME_MAX, user="guest")
    assert (copy.user_id, copy.reply_to) == ("guest", "answers")


def test_a_cc_that_nobody_can_write_again_does_not_keep_a_message_from_being_copied():
    never_a_number = struct.pack(">d", float("nan"))
    original = by_hand(("CC", "d", never_a_number), ("kept", "V", b""))
    _, copy = wrap(b"", original, ADDED, frame_max=FRAME_MAX)
    assert copy.headers == {"kept": None} | ADDED


@pytest.mark.parametrize("size", [-1, 10, 2**40, True, "4", None, 1.0, b"4"], ids=repr)
def test_a_size_that_cannot_be_meant_wraps_nothing(size: object):
    properties = Properties.build(headers={h.WRAPPED: size})
    assert unwrap(b"four", properties)[:2] == (b"four", properties)


# ── Receiving ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_without_headers_of_ours_is_at_its_first_attempt():
    properties = Properties.build(message_id="m", type="order.placed")
    message = read(properties)
    assert message == Received(
        queue="shop.charge",
        exchange="shop.events",
        routing_key="order.placed",
        body=b"{}",
        properties=properties,
    )
    assert message.type == "order.placed"


def test_what_earlier_failures_say_is_read():
    message = read(
        Properties.build(
            headers={
                h.ATTEMPT: 3, h.FAILURE: 5, h.RETRY_ID: "r", h.FIRST_FAILED_AT: 12.5, h.POLICY: "{}", h.ALLOWED: 9,
                h.STARTS: 2, h.ORIGIN_EXCHANGE: "other", h.ORIGIN_KEY: "", h.FIRST_LETTER: "l", h.REPLAYS: 1,
            }
        )
    )  # fmt: skip
    assert (message.attempt, message.failure, message.retry_id, message.first_failed_at) == (3, 5, "r", 12.5)
    assert (message.policy, message.attempts_allowed, message.starts) == ("{}", 9, 2)
    assert (message.exchange, message.routing_key) == ("other", "")
    assert (message.first_letter, message.replays) == ("l", 1)


NONSENSE = [
    None,
    True,
    "3",
    b"3",
    -1,
    0,
    2**62,
    1.5,
    float(2**200),
    [1],
    {"a": 1},
    Decimal(3),
    datetime(2025, 1, 1, tzinfo=UTC),
]
OURS = [
    h.ATTEMPT, h.FAILURE, h.RETRY_ID, h.FIRST_FAILED_AT, h.POLICY, h.ALLOWED, h.STARTS, h.ORIGIN_EXCHANGE, h.ORIGIN_KEY,
    h.FIRST_LETTER, h.REPLAYS, h.WRAPPED,
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(OURS), st.sampled_from(NONSENSE) | VALUES), st.binary(max_size=20))
def test_whatever_strangers_write_under_our_names_is_read_to_values_that_can_be_worked_with(
    headers: dict[str, Any], body: bytes
):
    message = read(Properties.build(headers=headers), body=body)
    assert 1 <= message.attempt < 2**32
    assert 0 <= message.failure < 2**32
    assert 0 <= message.starts < 2**32
    assert message.attempts_allowed is None or message.attempts_allowed >= 1
    if message.first_failed_at is not None:
        datetime.fromtimestamp(message.first_failed_at, UTC)
    for text in (message.retry_id, message.policy, message.first_letter):
        assert text is None or isinstance(text, str)
    retry_id(message)


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_no_bytes_in_the_place_of_properties_keep_a_message_from_being_read(raw: bytes, body: bytes):
    message = read(Properties(raw), body=body)
    assert message.attempt >= 1
    retry_id(message)


def test_a_wrapped_message_is_received_as_the_original():
    original = Properties.build(message_id="m", headers={"wide": "x" * 1000, "CC": ["a"]}, expiration="5")
    body, sent = wrap(b"payload", original, ADDED | {h.ORIGIN_EXCHANGE: "there"}, frame_max=500)
    message = read(sent, body=body)
    assert (message.body, message.properties.raw) == (b"payload", original.raw)
    assert (message.attempt, message.retry_id, message.exchange) == (2, "r", "there")
