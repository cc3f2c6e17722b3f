from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.errors import StoreRefused
from leveret.stores import cursors
from leveret.stores.intake import due_time, shown, with_new_body
from leveret.testing.store_contract import a_letter

ANY_TEXT = st.text(st.characters(exclude_categories=()))


@given(ANY_TEXT)
def test_a_shown_text_is_utf_8_without_nul_and_showing_it_again_changes_nothing(text):
    assert b"\0" not in shown(text).encode()
    assert shown(shown(text)) == shown(text)


@given(st.text().filter(lambda text: "\0" not in text))
def test_a_text_that_can_be_shown_is_left_as_it_is(text):
    assert shown(text) == text


def test_nul_and_lone_surrogates_become_visible():
    assert shown("a\0b\ud800\U0001f407") == "a\\x00b\\ud800\U0001f407"


@given(st.floats(allow_nan=False), ANY_TEXT, ANY_TEXT)
def test_a_cursor_is_read_as_it_was_written(time, namespace, id):
    cursor = cursors.written(time, namespace, id)
    assert cursors.read(cursor) == (time, namespace, id)
    assert cursor.isascii()


@given(st.text())
def test_any_other_text_is_no_cursor(text):
    with pytest.raises(StoreRefused, match="not a cursor"):
        cursors.read(text)


def test_a_due_time_is_given_once():
    assert due_time(100.0, due_at=7.0, wait=None) == 7.0
    assert due_time(100.0, due_at=None, wait=0.0) == 100.0
    for due_at, wait in ((None, None), (1.0, 1.0)):
        with pytest.raises(ValueError, match="exactly one"):
            due_time(100.0, due_at=due_at, wait=wait)
    with pytest.raises(ValueError, match="finite"):
        due_time(100.0, due_at=float("inf"), wait=None)


def test_the_same_old_body_of_a_letter_has_the_same_id_and_another_one_another():
    one, again, other = (with_new_body(a_letter(body=body), b"new")[1].id for body in (b"a", b"a", b"b"))
    elsewhere = with_new_body(a_letter(namespace="depot", body=b"a"), b"new")[1].id
    assert one == again
    assert len({one, other, elsewhere}) == 3
