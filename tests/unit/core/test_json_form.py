"""The JSON form of envelopes: read as other programs write it, written as they read it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core import envelope, json_form
from leveret.core import headers as h
from leveret.core.envelope import Cause, Malformed
from leveret.core.json_form import build_message_key, may_go_through_exchange, parse, read_retry
from leveret.core.message import Received, received
from leveret.core.policy import RetryAt
from leveret.core.properties import Properties

# Everything that the standard json reads back as it wrote it.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.dictionaries(st.text(st.characters(codec=None)), VALUES, max_size=5)


def an_envelope(**more) -> dict:
    message = {
        "data_type": "page",
        "data": {"doc_id": "d1", "part_idx": 3},
        "job_id": "j1",
        "origin": {"type": "splitter", "name": "host-1"},
        "retry": {"count": 2, "after": 7.5, "reason": "503", "max": 4},
        "_replay_routing_key": "fast.page",
    }
    outer = {"data_type": "soft-failure", "data": message | more, "job_id": "j1"}
    return outer | {"origin": {"type": "parser", "name": "host-2"}}


def read(outer, **changes):
    body = outer if isinstance(outer, bytes) else json.dumps(outer).encode()
    given = {"namespace": "shop", "exchange": "jobs", "now": 1000.0, "new_id": lambda: "a-new-id"} | changes
    return read_retry(body, **given)


# ── parse ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_envelope_says_what_failed_where_why_and_how_long_to_wait():
    found = parse(an_envelope())
    assert (found.worker, found.host) == ("parser", "host-2")
    assert (found.job_id, found.doc_id) == ("j1", "d1")
    assert (found.after, found.count, found.max, found.reason) == (7.5, 2, 4, "503")
    assert (found.routing_key, found.scope) == ("fast.page", None)
    assert found.message == an_envelope()["data"]


def test_what_an_envelope_leaves_out_has_a_default():
    found = parse({"data_type": "soft-failure", "data": {}})
    assert (found.after, found.count, found.max, found.worker, found.job_id) == (30.0, 0, 5, "", None)


@pytest.mark.parametrize(
    "after", [-1, math.nan, math.inf, "30", True, [], {}, 10**400, 1e300], ids=lambda value: str(value)[:9]
)
def test_c12_seconds_that_cannot_be_meant_are_refused(after):
    with pytest.raises(Malformed, match=r"retry\.after"):
        parse(an_envelope(retry={"after": after}))


@pytest.mark.parametrize("after", [0, 0.001, 3600, 10**9])
def test_c12_seconds_are_final(after):
    assert parse(an_envelope(retry={"after": after})).after == after


def test_c12_a_max_of_zero_is_zero():
    assert parse(an_envelope(retry={"max": 0})).max == 0


@pytest.mark.parametrize("value", ["2", True, -1, 1.5, None, 2**80])
def test_counts_that_cannot_be_meant_are_as_good_as_none(value):
    found = parse(an_envelope(retry={"count": value, "max": value}))
    assert (found.count, found.max) == (0, 5)


@pytest.mark.parametrize(
    "broken",
    [{"data_type": "page"}, {"data": None}, {"data": []}, {"data": "x"}, {"data": {"retry": "soon"}}],
)
def test_what_is_no_envelope_of_a_soft_failure_is_malformed(broken):
    with pytest.raises(Malformed):
        parse(an_envelope() | broken)


@pytest.mark.parametrize("origin", [None, [], "parser", {}, {"type": None}, {"type": 5}])
def test_an_origin_that_names_nobody_is_nobody(origin):
    assert parse(an_envelope() | {"origin": origin}).worker == ""


def test_without_a_replay_key_the_data_type_is_the_key():
    assert parse(an_envelope(_replay_routing_key=None)).routing_key == "page"
    assert parse(an_envelope(_replay_routing_key="")).routing_key == ""


@pytest.mark.parametrize(
    ("scope", "valid"),
    [("a", True), ("tenant-7", True), ("x" * 40, True), ("x" * 41, False), ("-a", False), ("A", False),
     ("a\n", False), ("", False), (7, False)],
)  # fmt: skip
def test_a_scope_counts_where_it_is_valid(scope, valid):
    assert parse(an_envelope() | {"scope": scope}).scope == (scope if valid else None)
    assert parse(an_envelope(scope=scope)).scope == (scope if valid else None)


@given(MESSAGES)
def test_whatever_a_message_holds_it_is_read_or_malformed(message):
    try:
        found = parse({"data_type": "soft-failure", "data": message, "origin": message})
    except Malformed:
        return
    assert found.message == message
    assert 0 <= found.after < math.inf


def test_failures_of_one_message_have_one_digest_and_other_messages_another():
    first = parse(an_envelope()).digest
    assert parse(an_envelope(retry={"count": 3}, delivery_count=2)).digest == first
    # What went straight back to its queue comes again with the queue's name for a key.
    assert parse(an_envelope(_replay_routing_key="jobs.parser")).digest == first
    assert parse(an_envelope(data_type="table")).digest != first
    assert len(first) == 32


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ({"job_id": "j", "data": {"doc_id": "d", "part_idx": 0}}, "job:j:doc:d:part:0"),
        ({"job_id": 7, "data": {"doc_id": 8, "part_idx": 9}}, "job:7:doc:8:part:9"),
        ({"job_id": "", "data": {"doc_id": None}}, "job:-:doc:-:part:0"),
        ({"job_id": True, "data": []}, "job:-:doc:-:part:0"),
    ],
)
def test_a_message_is_named_by_job_document_and_part(message, key):
    assert build_message_key(message) == key


# ── read_retry ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_entry_goes_to_the_queue_of_who_failed_it():
    entry = read(an_envelope())
    assert (entry.queue, entry.through_exchange) == ("jobs.parser", False)
    assert (entry.exchange, entry.routing_key) == ("jobs", "fast.page")
    assert (entry.key, entry.retry_id) == ("jobs.parser:a-new-id", "a-new-id")
    assert (entry.wait, entry.attempt, entry.max_attempts, entry.worker) == (7.5, 2, 5, "parser")
    assert (entry.type, entry.reason, entry.host, entry.failed_at) == ("page", "503", "host-2", 1000.0)
    assert may_go_through_exchange(entry)


@pytest.mark.parametrize("worker", ["", "ü" * 130, "\ud800"])
def test_where_nobody_is_named_that_could_have_a_queue_it_goes_through_the_exchange(worker):
    entry = read(an_envelope() | {"origin": {"type": worker}})
    assert (entry.queue, entry.through_exchange) == ("", True)
    assert entry.key == "jobs/fast.page:a-new-id"


@given(MESSAGES)
def test_what_goes_back_is_the_failed_message_with_big_integers_and_half_surrogates(message):
    message.pop("retry", None)
    entry = read({"data_type": "soft-failure", "data": message})
    assert entry.body is not None
    assert json.loads(entry.body) == message
    assert entry.size == len(entry.body)


def test_what_goes_back_is_persistent_json_with_priority_and_type():
    found = Properties(read(an_envelope(priority=3)).properties)
    assert (found.content_type, found.delivery_mode, found.priority) == ("application/json", 2, 3)
    assert (found.type, found.correlation_id) == ("page", "j1")
    assert found.headers == {}


@pytest.mark.parametrize("priority", [-1, 256, "3", 1.5, None, 10**30])
def test_a_priority_that_amqp_cannot_carry_is_left_off(priority):
    assert Properties(read(an_envelope(priority=priority)).properties).priority is None


@pytest.mark.parametrize("name", ["data_type", "job_id"])
def test_names_that_amqp_cannot_carry_are_left_off(name):
    entry = read(an_envelope(**{name: "ü" * 200}))
    assert json.loads(entry.body)[name] == "ü" * 200


def test_a_reason_is_cut_to_its_budget():
    assert len(read(an_envelope(retry={"reason": "x" * 10_000})).reason.encode()) <= envelope.REASON_BYTES


def test_copies_of_one_message_have_one_message_id_and_other_messages_another():
    first = read(an_envelope()).message_id
    assert read(an_envelope(retry={"count": 3})).message_id == first
    assert read(an_envelope(data={"doc_id": "d2"})).message_id != first
    assert read(an_envelope() | {"origin": {"type": "other"}}).message_id != first


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[1]",
        b'"text"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"1" * 5000,
        b'{"data_type": 1}',
    ],
    ids=range(9),
)
def test_bodies_that_are_no_envelope_are_malformed_and_say_why(body):
    with pytest.raises(Malformed, match=r"."):
        read(body)


def test_leverets_own_retries_never_go_through_the_exchange_instead():
    body, properties = envelope.soft_failure(
        a_message(),
        RetryAt(delay=1.0, attempt=2),
        Cause(reason="503", worker="charge", at=1.0),
        retry_id="r1",
        policy="{}",
        through_exchange=False,
        where=envelope.Where(),
    )
    entry = envelope.read_retry(body, properties, namespace="shop")
    assert Properties(entry.properties).header(h.RETRY_ID) == "r1"
    assert not may_go_through_exchange(entry)


# ── What observers see ────────────────────────────────────────────────────────────────────────────────────────────────


def a_message(body: bytes = b'{"id":1}', **properties) -> Received:
    return received(
        queue="shop.charge",
        exchange="shop.events",
        routing_key="order.placed",
        body=body,
        properties=Properties.build(message_id="m1", type="order.placed", **properties),
        redelivered=False,
    )


def test_a_copy_for_observers_is_read_as_an_envelope_and_bears_what_tells_it_from_one():
    plan = RetryAt(delay=7.0, attempt=3)
    copy = json_form.soft_failure(a_message(), Cause(reason="503", worker="charge", at=1.0), plan, 6, "r1")
    outer = json.loads(copy)
    found = parse(outer)
    assert (found.worker, found.after, found.count, found.max, found.reason) == ("charge", 7.0, 2, 5, "503")
    assert (found.job_id, found.routing_key) == ("m1", "order.placed")
    assert found.message["data"] == {"id": 1}
    assert outer[json_form.RETRY_ID] == "r1"


@pytest.mark.parametrize("body", [b"\xff\x00", b"", b"[1]", b"null", b"[" * 100_000])
def test_a_payload_that_is_no_object_travels_as_bytes(body):
    copy = json_form.hard_failure(a_message(body), Cause(reason="no", worker="charge", at=1.0))
    outer = json.loads(copy)
    assert (outer["data_type"], outer["error"]) == ("hard-failure", "no")
    assert list(outer["data"]["data"]) == ["body_b64"]
