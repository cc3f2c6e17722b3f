from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret import ConfigError
from leveret.cli import words


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0042, "0.004 s"),
        (27.44, "27.4 s"),
        (59.96, "1 m 00 s"),
        (3599.7, "1 h 00 m"),
        (10_920, "3 h 02 m"),
        (86_400 * 400, "400 d 00 h"),
    ],
)
def test_a_span_is_told_in_the_units_that_show_a_change(seconds, shown):
    assert words.span(seconds) == shown


@given(st.text())
def test_no_text_makes_a_terminal_do_anything(text):
    safe = words.safe(text)
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in safe)
    assert not set(safe) & set("\u2028\u202e\u2066")


def test_a_time_of_day_is_of_today_and_a_time_without_a_zone_of_this_machine():
    now = datetime(2026, 11, 30, 12, 0, tzinfo=UTC).astimezone()
    assert words.moment("18:05", "--at", now=now) == now.replace(hour=18, minute=5).timestamp()
    assert words.moment("2026-11-30T12:00:00Z", "--at") == now.timestamp()
    assert words.moment(now.replace(tzinfo=None).isoformat(), "--at") == now.timestamp()


@pytest.mark.parametrize("text", ["", "soon", "25:00", "2026-13-01", "9" * 5000])
def test_what_is_no_time_is_refused_with_the_flag_and_an_example(text):
    with pytest.raises(ConfigError, match=r"--since .*expected a time, such as"):
        words.moment(text, "--since")


def test_a_moment_of_another_day_is_shown_with_its_date():
    noon = datetime(2026, 11, 30, 12, 0).astimezone().timestamp()
    assert words.clock(noon - 60, now=noon) == "11:59:00"
    assert words.clock(noon - 86_400, now=noon) == "Nov 29 12:00"
    assert words.clock(noon - 86_400 * 365, now=noon) == "2025-11-30 12:00"


def test_messages_that_end_alike_are_shown_by_longer_endings():
    assert words.short_ids([("a1-123456", "x"), ("b2-123456", "y")]) == ["1-123456", "2-123456"]


def test_two_ids_of_one_message_may_end_alike():
    assert words.short_ids([("a1-123456", "b2-123456")]) == ["123456"]


def test_two_rows_of_one_message_are_told_by_their_own_ids():
    assert words.short_ids([("message-1", "own-000001"), ("message-1", "own-000002")]) == ["000001", "000002"]


@given(st.lists(st.tuples(st.none() | st.text("ab1", max_size=9), st.uuids().map(str)), max_size=8))
def test_every_short_id_names_its_row_alone(rows):
    for row, short in zip(rows, words.short_ids(rows), strict=True):
        named = [
            pair
            for pair in rows
            if any(id and (id == short or (len(short) >= 6 and id.endswith(short))) for id in pair)
        ]
        assert named == [row]


def test_many_names_are_cut_and_counted():
    assert words.listed("abcdefg") == "a, b, c, d, e and 2 more"


def test_sizes_grow_through_their_units():
    assert [words.size(n) for n in (0, 1, 1023, 1024, 2**20, 5 * 2**30, 2**62)] == [
        "0 bytes", "1 byte", "1023 bytes", "1.0 KB", "1.0 MB", "5.0 GB", "4194304.0 TB",
    ]  # fmt: skip


def test_a_moment_for_programs_is_in_utc():
    assert json.dumps(words.iso(0)) == '"1970-01-01T00:00:00.000+00:00"'
