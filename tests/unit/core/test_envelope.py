from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core import envelope
from leveret.core import headers as h
from leveret.core.dead_letter import DeadLetter, Replay
from leveret.core.envelope import Cause, Malformed, Where
from leveret.core.message import TAG_ROOM, Received, received, retry_id
from leveret.core.policy import RetryAt, RetryPolicy
from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.core.seconds import LONGEST

POLICY = RetryPolicy(max_attempts=4).to_header()
CAUSE = Cause(reason="503", worker="charge", at=1000.5, error="OSError", traceback="Traceback …")
WHERE = Where()
#: So narrow that whatever has headers of some size is wrapped.
NARROW = Where(frame_max=500)


def new_id() -> str:
    return "minted"


def message(body: bytes = b"{}", properties: Properties | None = None, **more: Any) -> Received:
    given_ = Properties.build(message_id="m", headers={"kept": 1}) if properties is None else properties
    values: dict[str, Any] = {
        "queue": "shop.charge", "exchange": "shop.events", "routing_key": "order.placed", "body": body,
        "properties": given_,
    }  # fmt: skip
    return Received(**(values | more))


def plan(**more: Any) -> RetryAt:
    return RetryAt(**({"delay": 30.0, "attempt": 2, "counted": True, "reason": "503"} | more))


def fail(
    failed: Received,
    planned: RetryAt | None = None,
    *,
    cause: Cause = CAUSE,
    where: Where = WHERE,
    **more: Any,
) -> tuple[bytes, Properties]:
    values: dict[str, Any] = {"retry_id": "r-1", "policy": POLICY, "through_exchange": False}
    return envelope.soft_failure(failed, planned or plan(), cause, **(values | more), where=where)


def stored(sent: tuple[bytes, Properties]) -> RetryEntry:
    return envelope.read_retry(*sent, namespace="shop")


def comes_back(entry: RetryEntry) -> Received:
    assert entry.body is not None
    return received(
        queue=entry.queue, exchange="", routing_key=entry.queue, body=entry.body,
        properties=Properties(entry.properties), redelivered=False,
    )  # fmt: skip


def die(
    failed: Received, *, cause: Cause = CAUSE, attempts: int = 1, where: Where = WHERE
) -> tuple[bytes, Properties]:
    return envelope.dead_letter(
        failed, cause, "hard failure", letter_id="l-1", retry_id="r-1", attempts=attempts, where=where
    )


def kept(sent: tuple[bytes, Properties]) -> DeadLetter:
    return envelope.read_letter(*sent, namespace="shop", now=5.0, new_id=new_id)


# ── Whatever the message is, it comes back as it was ──────────────────────────────────────────────────────────────────


def _is_taken_off(name: str) -> bool:
    return name in h.SET_ASIDE or h.is_ours(name) or h.is_broker_owned(name)


TEXT = st.text(max_size=30)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ORIGINALS = st.builds(
    Properties.build,
    content_type=st.none() | TEXT,
    content_encoding=st.none() | TEXT,
    headers=st.dictionaries(TEXT.filter(lambda name: not _is_taken_off(name)), VALUES, max_size=4),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | TEXT,
    reply_to=st.none() | TEXT,
    message_id=st.none() | TEXT,
    timestamp=st.none() | st.integers(0, 2**62),
    type=st.none() | TEXT,
    app_id=st.none() | TEXT,
    cluster_id=st.none() | TEXT,
)
BODIES = st.binary(max_size=60)
WHERES = st.sampled_from([WHERE, NARROW, Where(frame_max=80)])


def is_the_same(back: Received, body: bytes, original: Properties) -> None:
    """Body and all properties, and the headers that are not ours to the last byte, in their order."""
    assert back.body == body
    plain = back.properties.edit(drop=h.is_ours)
    # A header table that has lost its last entry is gone, and so was one that was empty.
    assert plain.raw in {original.raw, original.edit(fields={"delivery_mode": original.delivery_mode}).raw}


@given(BODIES, ORIGINALS, WHERES)
def test_a_message_that_fails_softly_comes_back_byte_for_byte(
    body: bytes, original: Properties, where: Where
):
    back = comes_back(stored(fail(message(body, original), where=where)))
    is_the_same(back, body, original)
    assert (back.attempt, back.failure, back.retry_id, back.first_failed_at) == (2, 1, "r-1", 1000.5)
    assert (back.policy, back.exchange, back.routing_key) == (POLICY, "shop.events", "order.placed")


@given(BODIES, ORIGINALS, st.lists(WHERES, min_size=2, max_size=5))
def test_a_message_that_fails_again_and_again_stays_the_same(
    body: bytes, original: Properties, wheres: list[Where]
):
    failing = message(body, original)
    for number, where in enumerate(wheres, 1):
        failing = comes_back(stored(fail(failing, plan(attempt=number + 1), where=where)))
        is_the_same(failing, body, original)
        assert (failing.attempt, failing.failure, failing.first_failed_at) == (number + 1, number, 1000.5)
        assert (failing.exchange, failing.routing_key) == ("shop.events", "order.placed")


@given(BODIES, ORIGINALS, WHERES, st.booleans())
def test_a_message_that_dies_is_kept_and_replayed_byte_for_byte(
    body: bytes, original: Properties, where: Where, reset: bool
):
    letter = kept(die(message(body, original, failure=2), attempts=3, where=where))
    assert letter.body == body
    assert (letter.id, letter.retry_id, letter.attempts, letter.failure, letter.ending) == (
        "l-1",
        "r-1",
        3,
        3,
        "hard failure",
    )
    sent, properties = envelope.replayed(letter, reset_attempts=reset, where=where)
    back = received(
        queue=letter.queue,
        exchange="",
        routing_key=letter.queue,
        body=sent,
        properties=properties,
        redelivered=False,
    )
    is_the_same(back, body, original)
    assert (back.attempt, back.failure, back.retry_id, back.first_letter) == (
        1 if reset else 4,
        3,
        "r-1",
        "l-1",
    )


@given(BODIES, ORIGINALS, WHERES, st.floats(0, 1e9), st.booleans())
def test_a_delayed_publish_goes_out_as_though_it_had_never_waited(
    body: bytes, original: Properties, where: Where, seconds: float, absolute: bool
):
    entry = stored(
        envelope.delayed(
            body, original, exchange="shop.events", routing_key="order.placed", retry_id="r-1", at=1.0,
            wait=None if absolute else seconds, due_at=seconds if absolute else None, where=where,
        )
    )  # fmt: skip
    assert (entry.kind, entry.attempt, entry.failure, entry.through_exchange) == ("delayed", 0, 0, True)
    assert (entry.key, entry.queue) == ("shop.events/order.placed:r-1", "")
    assert (entry.wait, entry.due_at) == ((None, seconds) if absolute else (seconds, 0.0))
    first = received(
        queue="shop.charge", exchange="shop.events", routing_key="order.placed", body=entry.body or b"",
        properties=Properties(entry.properties), redelivered=False,
    )  # fmt: skip
    is_the_same(first, body, original)
    assert [name for name in Properties(entry.properties).headers if h.is_ours(name)] in ([], [h.WRAPPED])
    assert (first.attempt, first.failure, first.retry_id, first.first_failed_at) == (1, 0, None, None)


@given(BODIES, ORIGINALS, WHERES)
def test_a_message_that_is_moved_as_a_suspect_stays_the_same_and_counts_its_starts(
    body: bytes, original: Properties, where: Where
):
    moved = body, original
    for starts in (1, 2, 3):
        moved = envelope.restarted(
            *moved, starts=starts, exchange="shop.events", routing_key="order.placed", where=where
        )
        back = received(
            queue="shop.charge", exchange="", routing_key="shop.charge", body=moved[0], properties=moved[1],
            redelivered=True,
        )  # fmt: skip
        is_the_same(back, body, original)
        assert (back.starts, back.attempt) == (starts, 1)
        assert (back.exchange, back.routing_key) == ("shop.events", "order.placed")


def test_a_suspect_that_was_retried_keeps_what_travels_with_it():
    retried = stored(fail(message(), plan(attempts_allowed=9)))
    body, properties = envelope.restarted(
        retried.body or b"", Properties(retried.properties), starts=1, exchange="shop.events",
        routing_key="order.placed", where=WHERE,
    )  # fmt: skip
    back = received(
        queue="shop.charge", exchange="", routing_key="", body=body, properties=properties, redelivered=True
    )
    assert (back.attempt, back.failure, back.retry_id, back.attempts_allowed, back.policy) == (
        2,
        1,
        "r-1",
        9,
        POLICY,
    )
    assert back.starts == 1


def test_a_start_count_stays_behind_once_the_message_has_failed():
    suspect = message(properties=Properties.build(message_id="m", headers={h.STARTS: 4}), starts=4)
    assert comes_back(stored(fail(suspect))).starts == 0


# ── What an envelope tells ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_entry_tells_all_that_a_person_wants_to_know():
    entry = stored(fail(message(attempt=2, failure=3), plan(attempt=3, counted=False, attempts_allowed=7)))
    assert entry == RetryEntry(
        namespace="shop", key="shop.charge:r-1", queue="shop.charge", exchange="shop.events",
        routing_key="order.placed", worker="charge", type="order.placed", message_id="m", retry_id="r-1", attempt=2,
        max_attempts=7, failure=4, counted=False, reason="503", error="OSError", traceback="Traceback …",
        host=envelope.HOST, wait=30.0, first_failed_at=1000.5, failed_at=1000.5, size=2, body=b"{}",
        properties=entry.properties,
    )  # fmt: skip


def test_the_policy_says_how_many_runs_there_are_where_no_failure_did():
    assert stored(fail(message())).max_attempts == 4


def test_a_retry_through_the_exchange_says_so():
    entry = stored(fail(message(), through_exchange=True))
    assert (entry.through_exchange, entry.key) == (True, "shop.charge:r-1")
    assert not stored(fail(message())).through_exchange


def test_the_first_failure_keeps_its_time_through_later_ones():
    later = replace(CAUSE, at=2000.0)
    entry = stored(fail(comes_back(stored(fail(message()))), cause=later))
    assert (entry.first_failed_at, entry.failed_at) == (1000.5, 2000.0)


@pytest.mark.parametrize("where", [WHERE, NARROW], ids=["plain", "wrapped"])
def test_what_dies_a_second_time_names_the_letter_it_was_replayed_from(where: Where):
    wide = message(properties=Properties.build(message_id="m", headers={"wide": "x" * 400}))
    first = kept(die(wide, where=where))
    sent, properties = envelope.replayed(first, reset_attempts=True, where=where)
    back = received(
        queue="shop.charge", exchange="", routing_key="", body=sent, properties=properties, redelivered=False
    )
    # It fails softly in between, and dies at its second run.
    again = comes_back(stored(fail(back, where=where)))
    second = kept(envelope.dead_letter(
        again, CAUSE, "retries exhausted", letter_id="l-2", retry_id="r-1", attempts=2, where=where
    ))  # fmt: skip
    assert (second.id, second.first_letter) == ("l-2", "l-1")
    waiting = stored(fail(back, where=where))
    cancelled = envelope.letter_of_entry(
        waiting, ending="cancelled", reason="cancelled", letter_id="l-3", now=9.0
    )
    assert cancelled.first_letter == "l-1"


def test_a_replay_numbers_itself_and_never_resets_the_failure_number():
    letter = replace(
        kept(die(message(failure=6))),
        replays=(Replay(at=1.0, replay_id="a", to="shop.charge", outcome="published"),),
    )
    _, properties = envelope.replayed(letter, reset_attempts=True, where=WHERE)
    assert properties.headers == {
        "kept": 1, h.FIRST_LETTER: "l-1", h.REPLAYS: 2, h.FAILURE: 7, h.RETRY_ID: "r-1",
        h.ORIGIN_EXCHANGE: "shop.events", h.ORIGIN_KEY: "order.placed",
    }  # fmt: skip


def test_a_replay_to_an_exchange_says_nothing_of_an_origin():
    letter = replace(kept(die(message())), queue="", retry_id="")
    _, properties = envelope.replayed(letter, reset_attempts=True, where=WHERE)
    assert properties.headers == {"kept": 1, h.FIRST_LETTER: "l-1", h.REPLAYS: 1, h.FAILURE: 1}


def test_a_replay_that_goes_on_counting_keeps_the_age_of_the_message():
    letter = kept(die(message(attempt=3, first_failed_at=7.0), attempts=3))
    _, properties = envelope.replayed(letter, reset_attempts=False, where=WHERE)
    assert (properties.headers[h.ATTEMPT], properties.headers[h.FIRST_FAILED_AT]) == (4, 7.0)


@pytest.mark.parametrize("where", [WHERE, NARROW], ids=["plain", "wrapped"])
def test_a_cancelled_retry_becomes_a_letter_of_the_message_itself(where: Where):
    wide = message(b"body", Properties.build(message_id="m", headers={"wide": "x" * 400}))
    letter = envelope.letter_of_entry(
        stored(fail(wide, where=where)), ending="cancelled", reason="by hand", letter_id="l-9", now=3000.0
    )
    assert (letter.body, letter.properties, letter.size) == (b"body", wide.properties.raw, 4)
    assert (letter.id, letter.ending, letter.reason, letter.died_at) == (
        "l-9",
        "cancelled",
        "by hand",
        3000.0,
    )
    assert (letter.attempts, letter.failure, letter.retry_id, letter.worker) == (1, 1, "r-1", "charge")


def test_what_misroutes_a_copy_is_off_it_and_told_to_handlers():
    original = Properties.build(
        message_id="m", expiration="60000", user_id="somebody", reply_to="amq.rabbitmq.reply-to",
        headers={"CC": ["also"], "BCC": ["hidden"], "x-death": [{"count": 3}], h.TAG: "t", "kept": 1},
    )  # fmt: skip
    sent = fail(message(properties=original))
    for properties in (
        sent[1],
        Properties(stored(sent).properties),
        Properties(kept(die(message(properties=original))).properties),
    ):
        assert (properties.expiration, properties.user_id, properties.reply_to) == (None, None, None)
        found = properties.headers
        assert not {"CC", "BCC", "x-death", h.TAG} & found.keys()
        assert {name: found[name] for name in h.FOR_HANDLERS} == {
            "leveret-cc": ["also"], "leveret-bcc": ["hidden"],
            h.USER_ID: "somebody", h.REPLY_TO: "amq.rabbitmq.reply-to",
        }  # fmt: skip
        assert found["kept"] == 1


# ── The budget ────────────────────────────────────────────────────────────────────────────────────────────────────────


def ours(properties: Properties, original: Properties) -> int:
    return len(properties.raw) - len(original.raw)


@pytest.mark.parametrize("letter", ["x", "é", "☃", "😀", "\ud800"], ids=ascii)
def test_leverets_headers_take_at_most_8_kib_whatever_failed(letter: str):
    original = Properties.build(message_id="m", headers={"kept": 1})
    cause = Cause(
        reason=letter * 100_000, worker="w" * 64, at=1e9, error=letter * 5000, traceback=letter * 1_000_000
    )
    long_names = message(
        properties=original, queue="q" * 255, exchange="e" * 255, routing_key="k" * 255, first_failed_at=1.0,
        first_letter="l" * 36, replays=3,
    )  # fmt: skip
    sent = fail(long_names, plan(attempts_allowed=5), cause=cause, through_exchange=True)
    assert ours(sent[1], original) <= h.BUDGET
    assert ours(die(long_names, cause=cause)[1], original) <= h.BUDGET
    entry = stored(sent)
    assert entry.reason.endswith("…")
    assert entry.traceback.startswith("…")
    assert len(entry.reason) > 100
    assert len(entry.traceback) > 100


def test_the_traceback_is_cut_before_the_reason_and_from_its_head():
    lines = "".join(f"line {number}\n" for number in range(5000)) + "ValueError: the end tells"
    entry = stored(fail(message(), cause=replace(CAUSE, reason="r" * 1500, traceback=lines)))
    assert entry.reason == "r" * 1500
    assert entry.traceback.endswith("ValueError: the end tells")
    assert len(entry.traceback) < len(lines)


def test_what_stands_in_front_of_a_wrapped_message_fits_the_smallest_frame_with_its_tag():
    cause = Cause(reason="r" * 5000, worker="w" * 200, at=1.0, error="e" * 300, traceback="t" * 9000)
    failed = message(
        properties=Properties.build(message_id="m" * 255, type="t" * 255, headers={"wide": "x" * 5000})
    )
    where = Where(frame_max=4096)
    for _, properties in (fail(failed, cause=cause, where=where), die(failed, cause=cause, where=where)):
        assert len(properties.raw) + 20 + TAG_ROOM <= 4096
        assert properties.header(h.TRACEBACK).endswith("ttt") or properties.header(h.REASON).startswith("rrr")


def test_what_is_too_long_for_an_id_or_a_policy_of_ours_counts_as_none():
    headers = {h.RETRY_ID: "r" * 256, h.FIRST_LETTER: "é" * 128, h.POLICY: "p" * 2000, h.ATTEMPT: 3}
    found = received(
        queue="shop.charge", exchange="", routing_key="shop.charge", body=b"", redelivered=False,
        properties=Properties.build(headers=headers),
    )  # fmt: skip
    assert (found.retry_id, found.first_letter, found.policy, found.attempt) == (None, None, None, 3)


def test_the_reason_gives_way_only_where_the_traceback_is_gone():
    full = {h.POLICY: "p" * 7000, h.REASON: "r" * 2000, h.TRACEBACK: "t" * 4000}
    cut = envelope.bounded(full, WHERE.frame_max)
    assert cut[h.TRACEBACK] == ""
    assert 500 < len(cut[h.REASON]) < 2000
    assert cut[h.POLICY] == "p" * 7000
    assert full[h.TRACEBACK] == "t" * 4000


@given(st.text(st.characters()), st.integers(0, 40), st.booleans())
def test_cut_text_fits_and_says_that_something_went(text: str, limit: int, tail: bool):
    cut = envelope.cut(text, limit, keep_tail=tail)
    whole = text.encode("utf-8", "backslashreplace").decode()
    assert len(cut.encode()) <= limit or cut == whole == ""
    if cut == whole:
        return
    assert cut == "" or cut.startswith("…") if tail else cut == "" or cut.endswith("…")
    rest = cut.strip("…") if cut else ""
    assert whole.endswith(rest) if tail else whole.startswith(rest)


def test_a_message_with_headers_just_under_the_frame_is_wrapped_and_unharmed():
    original = Properties.build(
        message_id="m", type="wide", priority=4, headers={"wide": "x" * 130_900, "kept": [1]}
    )
    assert 130_900 <= len(original.raw) <= 131_072 - 20
    body, properties = fail(message(b"payload", original))
    assert len(properties.raw) + 20 <= 131_072
    assert body == original.raw + b"payload"
    assert (properties.message_id, properties.type, properties.priority) == ("m", "wide", 4)
    back = comes_back(stored((body, properties)))
    assert (back.body, back.properties.raw) == (b"payload", original.raw)
    letter = kept(die(back))
    assert (letter.body, letter.properties) == (b"payload", original.raw)
    assert letter.message_id == "m"


# ── What cannot be what it says ───────────────────────────────────────────────────────────────────────────────────────

GOOD = fail(message())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (h.ENVELOPE, None), (h.ENVELOPE, "dead-letter"), (h.ENVELOPE, 1), (h.RETRY_ID, None), (h.RETRY_ID, 7),
        (h.QUEUE, None), (h.QUEUE, ["q"]), (h.ATTEMPT, None), (h.ATTEMPT, "2"), (h.ATTEMPT, 0), (h.ATTEMPT, 2**40),
        (h.FAILURE, None), (h.FAILURE, -1), (h.FAILURE, True), (h.FAILURE, 2**63 - 1), (h.RETRY_AFTER, None),
        (h.RETRY_AFTER, "soon"), (h.RETRY_AFTER, -0.5), (h.RETRY_AFTER, LONGEST * 2), (h.RETRY_AFTER, True),
    ],
    ids=repr,
)  # fmt: skip
def test_an_envelope_that_lacks_what_one_must_have_is_malformed(name: str, value: object):
    properties = GOOD[1].edit(add={name: value})
    with pytest.raises(Malformed, match=name):
        envelope.read_retry(GOOD[0], properties, namespace="shop")


@pytest.mark.parametrize("due_at", [None, -1.0, 1e300, "tomorrow", True], ids=repr)
def test_a_delayed_publish_whose_time_cannot_be_meant_is_malformed(due_at: object):
    properties = Properties.build(
        headers={h.ENVELOPE: h.DELAYED, h.RETRY_ID: "r", h.ORIGIN_KEY: "k", h.DUE_AT: due_at}
    )
    with pytest.raises(Malformed, match=h.DUE_AT):
        envelope.read_retry(b"", properties, namespace="shop")


def test_a_delayed_publish_that_goes_nowhere_is_malformed():
    properties = Properties.build(headers={h.ENVELOPE: h.DELAYED, h.RETRY_ID: "r", h.RETRY_AFTER: 1})
    with pytest.raises(Malformed, match=h.ORIGIN_KEY):
        envelope.read_retry(b"", properties, namespace="shop")


@pytest.mark.parametrize("ending", [None, "bored", 3], ids=repr)
def test_a_letter_without_a_known_ending_is_malformed(ending: object):
    _, properties = die(message())
    with pytest.raises(Malformed, match=h.ENDING):
        envelope.read_letter(
            b"", properties.edit(add={h.ENDING: ending}), namespace="shop", now=5.0, new_id=new_id
        )


def test_a_letter_without_an_id_or_a_time_gets_them_from_its_reader():
    body, properties = die(message())
    letter = kept((body, properties.edit(drop={h.LETTER_ID, h.FAILED_AT, h.FIRST_FAILED_AT})))
    assert (letter.id, letter.died_at, letter.first_failed_at) == ("minted", 5.0, 5.0)


@pytest.mark.parametrize(
    ("id", "read"),
    [
        ("x" * 255, "x" * 255),
        ("x" * 256, "minted"),
        ("é" * 128, "minted"),
        ("x" * 5000, "minted"),
    ],
    ids=["255 bytes", "256 bytes", "128 letters of two bytes", "several kB"],
)
def test_a_letter_whose_id_is_too_long_for_a_key_gets_a_new_one(id: str, read: str):
    body, properties = die(message())
    assert kept((body, properties.edit(add={h.LETTER_ID: id}))).id == read


OURS = st.sampled_from([
    h.RETRY_ID, h.ATTEMPT, h.FAILURE, h.FIRST_FAILED_AT, h.POLICY, h.ALLOWED, h.ORIGIN_EXCHANGE, h.ORIGIN_KEY,
    h.FIRST_LETTER, h.QUEUE, h.WORKER, h.RETRY_AFTER, h.DUE_AT, h.COUNTED, h.THROUGH_EXCHANGE, h.FAILED_AT, h.REASON,
    h.ERROR, h.TRACEBACK, h.HOST, h.LETTER_ID, h.ENDING, h.WRAPPED,
])  # fmt: skip
ANYTHING = (
    VALUES | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([2**63 - 1, -(2**63), 1e308])
)


@given(
    BODIES,
    st.sampled_from([h.SOFT_FAILURE, h.DELAYED, h.DEAD_LETTER]),
    st.dictionaries(OURS, ANYTHING, max_size=6),
)
def test_whatever_stands_in_an_envelope_it_is_read_or_malformed_and_nothing_else(
    body: bytes, kind: str, changed: dict[str, Any]
):
    base = (die(message()) if kind == h.DEAD_LETTER else GOOD)[1]
    properties = base.edit(add={**changed, h.ENVELOPE: kind})
    entry: DeadLetter | RetryEntry
    try:
        if kind == h.DEAD_LETTER:
            entry = envelope.read_letter(body, properties, namespace="shop", now=5.0, new_id=new_id)
        else:
            entry = envelope.read_retry(body, properties, namespace="shop")
    except Malformed:
        return
    assert 0 <= entry.failure <= 2**32
    if isinstance(entry, RetryEntry):
        assert entry.due_at >= 0
        assert entry.wait is None or 0 <= entry.wait <= LONGEST


def test_the_retry_id_of_a_first_failure_is_that_of_all_later_ones():
    first = message()
    id_ = retry_id(first)
    assert id_ is not None
    assert retry_id(comes_back(stored(fail(first, retry_id=id_)))) == id_
