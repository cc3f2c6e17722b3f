from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.core.errors import BadPayload
from leveret.core.table import (
    DEEPEST,
    RawValue,
    decode_entry,
    decode_table,
    edit_table,
    encode_table,
    short_string,
)


def entry(name: bytes, letter: str, data: bytes) -> bytes:
    """One entry of a table, written by hand, so that the codec is not its own witness."""
    return bytes([len(name)]) + name + letter.encode() + data


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def decoded(letter: str, data: bytes) -> Any:
    raw = entry(b"h", letter, data)
    value = decode_table(raw, 0, len(raw))["h"]
    assert repr(decode_entry(raw, 0, len(raw), b"h", None)) == repr(value)
    return value


ENCODED = [
    (True, "t", b"\x01"),
    (False, "t", b"\x00"),
    (0, "I", b"\0\0\0\0"),
    (127, "I", b"\0\0\0\x7f"),
    (128, "I", b"\0\0\0\x80"),
    (255, "I", b"\0\0\0\xff"),
    (32768, "I", b"\0\0\x80\0"),
    (-1, "I", b"\xff\xff\xff\xff"),
    (2**31 - 1, "I", b"\x7f\xff\xff\xff"),
    (-(2**31), "I", b"\x80\0\0\0"),
    (2**31, "l", b"\0\0\0\0\x80\0\0\0"),
    (-(2**31) - 1, "l", b"\xff\xff\xff\xff\x7f\xff\xff\xff"),
    (2**63 - 1, "l", b"\x7f" + b"\xff" * 7),
    (-(2**63), "l", b"\x80" + b"\0" * 7),
    (1.5, "d", b"\x3f\xf8\0\0\0\0\0\0"),
    (Decimal("1.50"), "D", b"\x02\0\0\0\x96"),
    (Decimal("-0.001"), "D", b"\x03\xff\xff\xff\xff"),
    (Decimal("1E+3"), "D", b"\x00\0\0\x03\xe8"),
    (Decimal("1E-255"), "D", b"\xff\0\0\0\x01"),
    (Decimal(2**31 - 1), "D", b"\x00\x7f\xff\xff\xff"),
    ("é", "S", b"\0\0\0\x02\xc3\xa9"),
    ("a\0b", "S", b"\0\0\0\x03a\0b"),
    ("", "S", b"\0\0\0\0"),
    (b"\xff\0", "x", b"\0\0\0\x02\xff\0"),
    (bytearray(b"ab"), "x", b"\0\0\0\x02ab"),
    (memoryview(b"abcd")[::2], "x", b"\0\0\0\x02ac"),
    (None, "V", b""),
    (datetime(2023, 11, 14, 22, 13, 20, 999_999, tzinfo=UTC), "T", struct.pack(">Q", 1_700_000_000)),
    (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), "T", b"\0" * 8),
    ({}, "F", b"\0\0\0\0"),
    ({"n": None}, "F", b"\0\0\0\x03\x01nV"),
    ([], "A", b"\0\0\0\0"),
    (["a", 1], "A", b"\0\0\0\x0bS\0\0\0\x01aI\0\0\0\x01"),
    ((None, [True]), "A", b"\0\0\0\x08VA\0\0\0\x02t\x01"),
    (RawValue("?", b"\x01\x02"), "x", b"\0\0\0\x02\x01\x02"),
]


@pytest.mark.parametrize(("value", "letter", "data"), ENCODED)
def test_each_type_is_written_in_the_form_that_rabbitmq_reads(value, letter, data):
    assert encode_table({"h": value}) == entry(b"h", letter, data)


def test_subclasses_are_written_as_what_they_are_made_of():
    class Colour(StrEnum):
        RED = "red"

    class Level(IntEnum):
        HIGH = 7

    assert encode_table({Colour.RED: Level.HIGH, "c": Colour.RED}) == encode_table({"red": 7, "c": "red"})


DECODED = [
    ("t", b"\x00", False),
    ("t", b"\x05", True),
    ("b", b"\x80", -128),
    ("B", b"\x80", 128),
    ("s", b"\x80\x00", -32768),
    ("u", b"\x80\x00", 32768),
    ("I", b"\x80\0\0\0", -(2**31)),
    ("i", b"\x80\0\0\0", 2**31),
    ("l", b"\xff" * 8, -1),
    ("L", b"\xff" * 8, -1),
    ("f", struct.pack(">f", 0.5), 0.5),
    ("d", struct.pack(">d", 0.1), 0.1),
    ("D", b"\x02\0\0\0\x96", Decimal("1.50")),
    ("D", b"\xff\x80\0\0\0", Decimal((1, tuple(map(int, str(2**31))), -255))),
    ("S", long("né".encode()), "né"),
    ("S", long(b"n\xe9"), b"n\xe9"),
    ("x", long(b"\xff"), b"\xff"),
    ("V", b"", None),
    ("T", struct.pack(">Q", 0), datetime(1970, 1, 1, tzinfo=UTC)),
    ("T", struct.pack(">Q", 253_402_300_799), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("T", struct.pack(">Q", 253_402_300_800), 253_402_300_800),
    ("T", struct.pack(">Q", 1_700_000_000_000), 1_700_000_000_000),
    ("T", b"\xff" * 8, 2**64 - 1),
    ("F", long(entry(b"a", "A", long(b"VV"))), {"a": [None, None]}),
    ("F", long(b""), {}),
    ("A", long(b"F" + long(entry(b"", "t", b"\x01")) + b"V"), [{"": True}, None]),
]


@pytest.mark.parametrize(("letter", "data", "value"), DECODED)
def test_each_letter_of_rabbitmq_is_read(letter, data, value):
    found = decoded(letter, data)

    assert found == value
    assert type(found) is type(value)


def test_a_decimal_keeps_its_digits_and_its_scale():
    assert str(decoded("D", b"\x02\0\0\0\x96")) == "1.50"


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
        st.binary(),
        st.builds(
            lambda unscaled, scale: Decimal(unscaled).scaleb(-scale),
            st.integers(-(2**31), 2**31 - 1),
            st.integers(0, 255),
        ),
        st.integers(0, 253_402_300_799).map(
            lambda after: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=after)
        ),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=60), values, max_size=6))
def test_what_is_written_is_read_back_with_its_types(headers):
    raw = b"front" + encode_table(headers) + b"behind"

    found = decode_table(raw, 5, len(raw) - 6)

    assert repr(found) == repr(headers)


class Unknown:
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        pytest.param(10**5000, "integer of", id="10**5000"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (Decimal("NaN"), "NaN"),
        (Decimal("Infinity"), "Infinity"),
        (Decimal("1E-256"), "1E-256"),
        (Decimal(2**31), "2147483648"),
        (Decimal("1E+999999"), "1E+999999"),
        ("a\ud800", "lone surrogate at position 1"),
        ("\udcff", "lone surrogate at position 0"),
        (datetime(2024, 1, 1), "no time zone"),  # noqa: DTZ001 - the case
        (datetime(1969, 12, 31, tzinfo=UTC), "before 1970"),
        (date(2024, 1, 1), "date"),
        ({1, 2}, "set"),
        (1j, "complex"),
        (Unknown(), "Unknown"),
        ({"n" * 256: 1}, "256 bytes"),
        ({"é" * 128: 1}, "256 bytes"),
        ({5: 1}, "expected text, got int"),
        ({b"a": 1}, "expected text, got bytes"),
        ({"\ud800": 1}, "lone surrogate"),
    ],
)
def test_what_amqp_cannot_carry_is_refused_with_its_path_and_reason(value, words):
    with pytest.raises(BadPayload) as caught:
        encode_table({"a": [1, {"b": value}]})

    told = str(caught.value)
    assert told.startswith('headers["a"][1]["b"]')
    assert words in told
    # An error is printed and logged, so its words must be text that can be.
    told.encode()


def test_a_name_of_255_bytes_is_carried():
    raw = encode_table({"é" * 127 + "x": 1})

    assert decode_table(raw, 0, len(raw)) == {"é" * 127 + "x": 1}


def test_a_value_within_itself_is_refused():
    endless: list[Any] = []
    endless.append({"again": endless})

    with pytest.raises(BadPayload, match="within itself"):
        encode_table({"a": endless})


def nested(levels: int) -> Any:
    value: Any = None
    for level in range(levels):
        value = [value] if level % 2 else {"n": value}
    return value


def test_a_hundred_levels_are_carried_and_one_more_is_refused():
    raw = encode_table({"a": nested(DEEPEST)})

    assert decode_table(raw, 0, len(raw)) == {"a": nested(DEEPEST)}
    with pytest.raises(BadPayload, match="deeper than 100 levels"):
        encode_table({"a": nested(DEEPEST + 1)})


def test_tables_nested_three_thousand_deep_are_read_to_a_depth_and_no_further():
    data = b""
    for _ in range(3_000):
        data = b"A" + long(data)
    raw = entry(b"deep", "A", long(data)) + entry(b"next", "t", b"\x01")

    found = decode_table(raw, 0, len(raw))

    assert found["next"] is True
    value = found["deep"]
    for _ in range(DEEPEST):
        (value,) = value
    assert value.kind == "A"
    assert value.data in data


def test_an_unknown_letter_ends_the_reading_and_nothing_before_it_is_lost():
    rest = b"\x01\x02" + entry(b"c", "I", b"\0\0\0\x03")
    raw = entry(b"a", "I", b"\0\0\0\x01") + entry(b"b", "?", b"") + rest

    assert decode_table(raw, 0, len(raw)) == {"a": 1, "b": RawValue("?", rest)}
    assert decode_entry(raw, 0, len(raw), b"b", None) == RawValue("?", rest)
    assert decode_entry(raw, 0, len(raw), b"c", "default") == "default"


def test_an_unknown_letter_within_a_nested_table_or_array_ends_that_one_only():
    table = entry(b"x", "t", b"\x01") + entry(b"y", "?", b"zz")
    raw = entry(b"a", "F", long(table)) + entry(b"b", "A", long(b"V?zz")) + entry(b"c", "V", b"")

    assert decode_table(raw, 0, len(raw)) == {
        "a": {"x": True, "y": RawValue("?", b"zz")},
        "b": [None, RawValue("?", b"zz")],
        "c": None,
    }


@pytest.mark.parametrize(("letter", "data", "value"), [case for case in DECODED if case[1]])
def test_a_value_that_is_cut_off_is_given_as_its_bytes(letter, data, value):
    raw = entry(b"a", "V", b"") + entry(b"h", letter, data)

    for end in range(len(raw) - len(data), len(raw)):
        rest = raw[len(raw) - len(data) : end]
        assert decode_table(raw, 0, end) == {"a": None, "h": RawValue(letter, rest)}
        # Neither what stands behind the table is read, nor what does not exist.
        assert decode_table(raw[:end], 0, end) == {"a": None, "h": RawValue(letter, rest)}


def test_an_entry_that_ends_within_its_name_is_given_without_one():
    raw = entry(b"a", "V", b"") + b"\x05na"

    assert decode_table(raw, 0, len(raw)) == {"a": None, "": RawValue("", b"\x05na")}
    assert decode_entry(raw, 0, len(raw), b"", None) == RawValue("", b"\x05na")
    # The name does not go on behind the table.
    assert decode_entry(raw + b"med", 0, len(raw), b"named", "default") == "default"


def test_of_two_entries_with_one_name_the_first_counts():
    raw = entry(b"a", "t", b"\x01") + entry(b"a", "t", b"\x00")

    assert decode_table(raw, 0, len(raw)) == {"a": True}
    assert decode_entry(raw, 0, len(raw), b"a", None) is True


def test_a_name_within_a_nested_table_is_not_taken_for_a_header():
    raw = encode_table({"outer": {"inner": 1}})

    assert decode_entry(raw, 0, len(raw), b"inner", "default") == "default"


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_reading_and_editing_any_bytes_never_raises_nor_loses_a_byte(raw):
    decode_table(raw, 0, len(raw))

    assert edit_table(raw, 0, len(raw), lambda _: False, b"") == raw


def test_a_short_string_of_255_bytes_passes_and_256_is_told_in_bytes():
    assert short_string("é" * 127 + "x", "routing key") == b"\xff" + ("é" * 127 + "x").encode()
    with pytest.raises(BadPayload, match=r"^routing key: 256 bytes in UTF-8"):
        short_string("é" * 128, "routing key")


def test_a_short_string_may_be_empty_and_hold_nul():
    assert short_string("", "queue") == b"\0"
    assert short_string("a\0b", "queue") == b"\x03a\0b"


@pytest.mark.parametrize("value", [None, b"bytes", 5])
def test_a_short_string_that_is_no_text_is_refused(value):
    with pytest.raises(BadPayload, match=f"queue: expected text, got {type(value).__name__}"):
        short_string(value, "queue")
