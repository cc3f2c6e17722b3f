from __future__ import annotations

import copy
import pickle
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.errors import BadPayload
from leveret.core.properties import EMPTY, Properties, check_short
from leveret.core.table import RawValue

ALL: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "headers": {
        "table": {"array": [{"deep": Decimal("1.50")}, None]},
        "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        "bytes": b"\xff\0",
        "none": None,
    },
    "delivery_mode": 1,
    "priority": 9,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "60000",
    "message_id": "m-1",
    "timestamp": 1_700_000_000,
    "type": "order.placed",
    "user_id": "guest",
    "app_id": "shop",
    "cluster_id": "é",
}
SHORT = [name for name, value in ALL.items() if isinstance(value, str)]


def everything(properties: Properties) -> dict[str, Any]:
    return {name: getattr(properties, name) for name in ALL}


# A message by hand: entries as (name, letter, data), so that the codec is not its own witness.
Entry = tuple[bytes, bytes, bytes]


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def table(*entries: Entry) -> bytes:
    return long(b"".join(bytes([len(name)]) + name + letter + data for name, letter, data in entries))


def with_headers(*entries: Entry) -> Properties:
    """Content type, these headers, delivery mode and message id."""
    return Properties(b"\xb0\x80" + b"\x01c" + table(*entries) + b"\x02" + b"\x02id")


A: Entry = (b"a", b"I", b"\0\0\0\x01")
B: Entry = (b"b", b"S", b"\0\0\0\x02hi")
TAG: Entry = (b"leveret-tag", b"x", b"\0\0\0\x0812345678")


def test_all_fourteen_properties_come_back_as_they_were_given():
    assert everything(Properties.build(**ALL)) == ALL


@pytest.mark.parametrize("name", ALL)
def test_each_property_stands_alone_and_the_others_are_none(name):
    properties = Properties.build(**{"delivery_mode": None, name: ALL[name]})

    assert everything(properties) == {**dict.fromkeys(ALL), "headers": {}, name: ALL[name]}


def test_the_bytes_are_those_of_a_content_header_frame():
    properties = Properties.build(
        content_type="c", headers={"a": 1}, priority=5, message_id="id", timestamp=1, type="t"
    )

    assert properties.raw == (
        b"\xb8\xe0" + b"\x01c" + b"\0\0\0\x07\x01aI\0\0\0\x01" + b"\x02" + b"\x05" + b"\x02id" + b"\0" * 7 + b"\x01"
        b"\x01t"
    )  # fmt: skip
    assert properties.encoded_size == len(properties.raw)


def test_a_message_is_persistent_unless_told_otherwise():
    assert Properties.build().raw == b"\x10\x00\x02"
    assert Properties.build(delivery_mode=None) == EMPTY


def test_empty_headers_are_left_out():
    assert Properties.build(headers={}) == Properties.build()


def test_empty_text_is_there_and_is_not_none():
    assert Properties.build(correlation_id="").correlation_id == ""


def test_a_timestamp_may_be_a_datetime_and_is_read_as_the_number_on_the_wire():
    assert Properties.build(timestamp=datetime(1970, 1, 1, 0, 1, 0, 900_000, tzinfo=UTC)).timestamp == 60
    assert Properties.build(timestamp=1_700_000_000_000).timestamp == 1_700_000_000_000
    assert Properties.build(timestamp=2**64 - 1).timestamp == 2**64 - 1


@pytest.mark.parametrize("name", SHORT)
def test_text_of_255_bytes_passes_and_256_is_refused_with_its_name_and_length(name):
    assert getattr(Properties.build(**{name: "é" * 127 + "x"}), name) == "é" * 127 + "x"
    with pytest.raises(BadPayload, match=f"^{name}: 256 bytes in UTF-8"):
        Properties.build(**{name: "é" * 128})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message_id", "a\ud800"),
        ("message_id", 5),
        ("type", b"bytes"),
        ("priority", -1),
        ("priority", 256),
        ("priority", True),
        ("priority", "5"),
        pytest.param("priority", 10**5000, id="priority-10**5000"),
        ("delivery_mode", 0),
        ("delivery_mode", 3),
        ("delivery_mode", True),
        ("delivery_mode", "2"),
        pytest.param("delivery_mode", 10**5000, id="delivery_mode-10**5000"),
        ("timestamp", -1),
        ("timestamp", 2**64),
        ("timestamp", 1.5),
        ("timestamp", True),
        pytest.param("timestamp", 10**5000, id="timestamp-10**5000"),
        ("timestamp", datetime(2024, 1, 1)),  # noqa: DTZ001 - the case
        ("timestamp", datetime(1969, 1, 1, tzinfo=UTC)),
        ("headers", ["a"]),
        ("headers", {"a": 2**63}),
        ("headers", {5: "a"}),
    ],
)
def test_what_amqp_cannot_carry_is_refused_by_name(name, value):
    with pytest.raises(BadPayload, match=f"^{name}") as caught:
        Properties.build(**{name: value})

    str(caught.value).encode()


def test_a_bad_header_is_told_with_its_path():
    with pytest.raises(BadPayload, match=r'^headers\["a"\]\[2\]: set is no type'):
        Properties.build(headers={"a": [1, 2, set()]})


def test_headers_of_every_letter_are_read_from_a_raw_frame():
    properties = with_headers(
        (b"byte", b"b", b"\x80"),
        (b"octet", b"B", b"\x80"),
        (b"millis", b"T", struct.pack(">Q", 1_700_000_000_000)),
        (b"huge", b"T", b"\xff" * 8),
        (b"float", b"f", struct.pack(">f", 0.5)),
        (b"latin", b"S", long(b"caf\xe9")),
        (b"odd", b"?", b"rest"),
    )

    assert properties.headers == {
        "byte": -128,
        "octet": 128,
        "millis": 1_700_000_000_000,
        "huge": 2**64 - 1,
        "float": 0.5,
        "latin": b"caf\xe9",
        "odd": RawValue("?", b"rest"),
    }
    assert {name: properties.header(name) for name in properties.headers} == properties.headers
    assert properties.message_id == "id"


def test_a_change_to_the_headers_that_were_read_changes_nothing():
    properties = Properties.build(headers={"list": [1]})

    properties.headers["list"].append(2)

    assert properties.headers == {"list": [1]}


def test_a_header_that_is_absent_gives_the_default():
    properties = with_headers(A, (b"t", b"F", table((b"inner", b"V", b""))))

    assert properties.header("nowhere") is None
    assert properties.header("inner", "default") == "default"
    # It stands in the bytes, though not among the headers.
    assert properties.header("id", "default") == "default"
    assert properties.header("\ud800") is None
    assert EMPTY.header("") is None
    assert Properties.build(headers={"\\x": 1}).header("\\x") == 1


def test_text_that_is_not_utf8_is_shown_and_can_be_stored_and_dropped():
    properties = Properties(b"\x20\x80" + table((b"n\xff", b"V", b""), A) + b"\x03id\xe9")

    assert properties.message_id == "id\\xe9"
    assert list(properties.headers) == ["n\\xff", "a"]
    assert properties.header("n\\xff", "default") is None
    for drop in ({"n\\xff"}, lambda name: name == "n\\xff"):
        assert properties.edit(drop=drop).raw == b"\x20\x80" + table(A) + b"\x03id\xe9"
    assert properties.edit(add={"n\\xff": 1}).headers == {"a": 1, "n\\xff": 1}


def test_a_header_is_added_behind_the_others_and_nothing_else_moves():
    assert with_headers(A, B).edit(add={"leveret-tag": b"12345678"}) == with_headers(A, B, TAG)


def test_a_header_is_dropped_and_nothing_else_moves():
    assert with_headers(A, TAG, B).edit(drop={"leveret-tag"}) == with_headers(A, B)
    assert with_headers(A, TAG, B).edit(drop=["a", "b", "nowhere"]) == with_headers(TAG)
    assert with_headers(A, TAG, B).edit(drop=lambda name: name.startswith("leveret-")) == with_headers(A, B)


def test_a_header_that_is_added_takes_the_place_of_all_that_bear_its_name():
    assert with_headers(A, B, A).edit(add={"a": "hi"}) == with_headers(B, (b"a", b"S", b"\0\0\0\x02hi"))
    # And of a function that drops nothing.
    assert with_headers(A, B).edit(drop=lambda _: False, add={"a": None}) == with_headers(
        B, (b"a", b"V", b"")
    )


def test_what_is_dropped_may_be_added_in_the_same_step():
    assert with_headers(A, B).edit(drop={"a"}, add={"a": True}).headers == {"b": "hi", "a": True}


def test_an_edit_of_nothing_changes_nothing():
    assert Properties.build(**ALL).edit() == Properties.build(**ALL)
    assert EMPTY.edit() == EMPTY


def test_a_table_that_loses_its_last_header_goes_and_an_empty_one_stays():
    bare = Properties.build(message_id="id")

    assert bare.edit(add={"leveret-tag": b"1"}).edit(drop={"leveret-tag"}) == bare
    assert with_headers().edit(drop={"leveret-tag"}) == with_headers()
    assert with_headers().edit(fields={"priority": 1}).edit(fields={"priority": None}) == with_headers()


def test_the_brokers_death_headers_go_and_the_rest_stays_byte_for_byte():
    death = b"F" + table((b"queue", b"S", long(b"q")), (b"count", b"l", b"\0" * 7 + b"\x01"))
    odd = (b"odd", b"L", b"\xff" * 8)
    properties = with_headers(
        odd, (b"x-death", b"A", long(death)), (b"at", b"T", b"\xff" * 8), (b"f", b"f", b"\0" * 4)
    )

    edited = properties.edit(drop=lambda name: name == "x-death")

    assert edited == with_headers(odd, (b"at", b"T", b"\xff" * 8), (b"f", b"f", b"\0" * 4))


values_on_the_wire = st.one_of(
    st.tuples(st.sampled_from([b"S", b"x", b"A", b"F"]), st.binary(max_size=12).map(long)),
    st.tuples(st.sampled_from([b"t", b"b", b"B"]), st.binary(min_size=1, max_size=1)),
    st.tuples(st.sampled_from([b"s", b"u"]), st.binary(min_size=2, max_size=2)),
    st.tuples(st.sampled_from([b"I", b"i", b"f"]), st.binary(min_size=4, max_size=4)),
    st.tuples(st.just(b"D"), st.binary(min_size=5, max_size=5)),
    st.tuples(st.sampled_from([b"l", b"L", b"d", b"T"]), st.binary(min_size=8, max_size=8)),
    st.tuples(st.just(b"V"), st.just(b"")),
)
names_on_the_wire = st.one_of(
    st.sampled_from([b"a", b"b", b"leveret-tag", b"x-death", b"n\xff"]), st.binary(max_size=6)
)
entries_on_the_wire = st.lists(
    st.tuples(names_on_the_wire, values_on_the_wire).map(lambda it: (it[0], *it[1])), max_size=6
)


def shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


@settings(deadline=None)
@given(entries_on_the_wire, st.sets(names_on_the_wire, max_size=4), st.booleans(), st.binary(max_size=9))
def test_an_edit_keeps_every_byte_of_the_headers_it_does_not_name(entries, names, as_function, unread):
    # Whatever stands behind the properties stays too.
    properties = Properties(with_headers(*entries).raw + unread)
    dropped = {shown(name) for name in names}
    left = [it for it in entries if shown(it[0]) not in dropped | {"added"}]

    edited = properties.edit(drop=dropped.__contains__ if as_function else dropped, add={"added": True})

    assert edited.raw == with_headers(*left, (b"added", b"t", b"\x01")).raw + unread
    assert edited.header("added") is True
    assert (edited.content_type, edited.delivery_mode, edited.message_id) == ("c", 2, "id")


@settings(deadline=None)
@given(entries_on_the_wire)
def test_whatever_stands_in_a_table_is_read_one_by_one_as_all_at_once(entries):
    properties = with_headers(*entries)

    assert list(properties.headers) == list(dict.fromkeys(shown(name) for name, _, _ in entries))
    for name, value in properties.headers.items():
        assert repr(properties.header(name, "absent")) == repr(value)


@given(entries_on_the_wire, st.randoms(use_true_random=False))
def test_in_order_the_headers_are_the_same_whatever_their_order_was(entries, order):
    entries = list({name: (name, letter, data) for name, letter, data in entries}.values())
    shuffled = list(entries)
    order.shuffle(shuffled)

    ordered = with_headers(*shuffled).in_order()

    assert ordered == with_headers(*entries).in_order()
    if entries:
        assert ordered == with_headers(*sorted(entries)).raw


def test_in_order_each_header_is_as_it_was_and_what_nobody_can_read_stays_behind():
    unread = (b"c", b"?", b"rest")
    original = with_headers(
        (b"b", b"F", table((b"z", b"t", b"\1"), (b"a", b"V", b""))), (b"a", b"V", b""), unread
    )
    assert (
        original.in_order()
        == with_headers(
            (b"a", b"V", b""), (b"b", b"F", table((b"z", b"t", b"\1"), (b"a", b"V", b""))), unread
        ).raw
    )


def test_in_order_an_empty_table_is_none():
    assert (
        with_headers().in_order() == Properties.build(content_type="c", delivery_mode=2, message_id="id").raw
    )
    assert EMPTY.in_order() == EMPTY.raw


def test_behind_an_unknown_letter_nothing_is_touched_and_what_is_added_can_be_found():
    odd: Entry = (b"odd", b"?", b"\x07")

    edited = with_headers(A, B, odd, A, TAG).edit(drop={"a", "leveret-tag"}, add={"new": True})

    assert edited == with_headers(B, (b"new", b"t", b"\x01"), odd, A, TAG)
    assert edited.header("new") is True
    assert with_headers(odd, A).edit(drop={"odd", "a"}) == with_headers(odd, A)


@pytest.mark.parametrize("name", [name for name in ALL if name != "headers"])
def test_a_property_is_taken_off_and_set_and_the_others_stay(name):
    full = Properties.build(**ALL)
    without = {**ALL, name: None}

    assert full.edit(fields={name: None}) == Properties.build(**without)
    assert Properties.build(**without).edit(fields={name: ALL[name]}) == full


def test_headers_and_properties_are_edited_in_one_step():
    edited = with_headers(A, TAG).edit(
        drop={"leveret-tag"},
        add={"b": "hi"},
        fields={"content_type": None, "expiration": "5", "delivery_mode": 1},
    )

    assert edited.raw == b"\x31\x80" + table(A, B) + b"\x01" + b"\x015" + b"\x02id"


def test_a_header_is_added_where_there_was_no_table():
    bare = Properties.build(content_type="c", message_id="id")

    assert bare.edit(add={"a": 1}) == with_headers(A)


def test_an_edit_refuses_what_amqp_cannot_carry():
    with pytest.raises(BadPayload, match=r'^headers\["a"\]'):
        with_headers().edit(add={"a": 2**63})
    with pytest.raises(BadPayload, match=r"^expiration: 256 bytes"):
        with_headers().edit(fields={"expiration": "1" * 256})


def test_an_edit_told_nonsense_says_so():
    with pytest.raises(TypeError, match="'headers'"):
        EMPTY.edit(fields={"headers": {}})
    with pytest.raises(TypeError, match="'messageid'"):
        EMPTY.edit(fields={"messageid": "id"})
    # The letters of a name would otherwise be taken for names.
    with pytest.raises(TypeError, match="collection of names"):
        with_headers(A).edit(drop="a")


def test_properties_of_a_later_amqp_stay_as_they_are():
    # Two more words of flags, and what they announce, behind what AMQP 0-9-1 knows.
    later = Properties(b"\x20\x83" + b"\x80\x01" + b"\x40\x00" + table(A) + b"\x02id" + b"later")

    assert (later.headers, later.message_id, later.priority) == ({"a": 1}, "id", None)
    assert later.edit(drop={"a"}, add={"b": "hi"}).raw == (
        b"\x20\x83" + b"\x80\x01" + b"\x40\x00" + table(B) + b"\x02id" + b"later"
    )
    assert later.edit(fields={"message_id": None, "priority": 1}).raw == (
        b"\x28\x03" + b"\x80\x01" + b"\x40\x00" + table(A) + b"\x01" + b"later"
    )


def test_properties_that_are_cut_off_are_read_up_to_there_and_can_be_sent_again():
    raw = Properties.build(**ALL).raw
    order = list(ALL)
    counts = set()

    for end in range(len(raw)):
        cut = Properties(raw[:end])
        found = {name: value for name, value in everything(cut).items() if value not in (None, {})}
        counts.add(len(found))
        assert found == {name: ALL[name] for name in order[: len(found)]}
        repr(cut)
        # What can be read is kept, and the flags no longer announce what is not there.
        assert cut.edit() == Properties.build(**{"delivery_mode": None, **found})
        assert cut.edit(add={"new": 1}).header("new") == 1

    assert counts == set(range(len(ALL)))


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_no_bytes_make_reading_or_editing_raise(raw):
    properties = Properties(raw)

    everything(properties)
    repr(properties)
    str(everything(properties)).encode()
    assert properties.raw == raw
    assert properties.header("a", 1) == properties.headers.get("a", 1)
    edited = properties.edit(drop={"a"}, add={"new": 1}, fields={"expiration": None, "message_id": "id"})
    assert edited.header("new") == 1
    assert (edited.expiration, edited.message_id) == (None, "id")
    assert edited.edit() == edited


def test_properties_are_equal_and_hashed_by_their_bytes():
    assert {with_headers(A), with_headers(A), with_headers(B)} == {with_headers(A), with_headers(B)}
    assert with_headers(A) != with_headers(A).raw


def test_properties_never_change():
    properties = with_headers(A)

    with pytest.raises(AttributeError):
        properties.raw = b""
    with pytest.raises(AttributeError):
        properties.priority = 5
    with pytest.raises(AttributeError):
        properties.note = "x"


def test_properties_can_be_pickled_and_copied_after_they_were_read():
    properties = Properties.build(**ALL)
    assert properties.type == "order.placed"

    assert pickle.loads(pickle.dumps(properties)) == properties
    assert everything(copy.deepcopy(properties)) == ALL


def test_they_show_what_they_hold():
    assert repr(Properties.build(headers={"a": 1}, type="t")) == (
        "Properties(headers={'a': 1}, delivery_mode=2, type='t')"
    )
    assert repr(Properties(b"\x10\x80\x02\x05ab")) == r"Properties(delivery_mode=2, unread=b'\x05ab')"
    assert repr(Properties(b"")) == "Properties()"


def test_a_short_name_passes_and_a_long_one_is_told_with_its_length():
    assert check_short("shop.events", "exchange") == "shop.events"
    with pytest.raises(BadPayload, match=r"^routing key: 300 bytes"):
        check_short("k" * 300, "routing key")


def test_plain_json_is_told_without_decoding():
    assert Properties.build(content_type="application/json", message_id="o-1").is_plain_json
    assert not Properties.build(content_type="application/json", content_encoding="gzip").is_plain_json
    assert not Properties.build(content_type="application/json; charset=utf-16").is_plain_json
    assert not Properties.build(message_id="\x10application/json").is_plain_json
    assert not EMPTY.is_plain_json


@given(
    st.builds(lambda flags, rest: flags + b"\x10application/json" + rest, st.binary(max_size=4), st.binary())
)
def test_what_is_told_to_be_plain_json_reads_so(raw):
    properties = Properties(raw)
    if properties.is_plain_json:
        assert (properties.content_type, properties.content_encoding) == ("application/json", None)
