from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.core.errors import StoreRefused
from leveret.stores.postgres import columns
from leveret.stores.postgres.columns import AFTER_ALL, exact, portions, text_of

texts = st.text(st.characters(exclude_categories=())) | st.text("a\\\0u0\ud800", max_size=8)


@given(texts)
@example("\\u0000")
@example("\\\\u0000\0")
def test_every_text_comes_back_as_it_was_and_fits_into_a_text_column(text: str):
    column = exact(text)
    assert text_of(column) == text
    assert "\0" not in column
    column.encode()


@given(texts, texts)
def test_two_texts_never_lie_as_one(one: str, two: str):
    assert (exact(one) == exact(two)) == (one == two)


@given(texts, st.integers(6, 20))
def test_the_ending_of_a_text_lies_as_the_ending_of_its_column(text: str, length: int):
    assert exact(text).endswith(exact(text[-length:]))


@given(texts.filter(lambda text: not text.startswith("\U0010ffff")))
def test_every_name_sorts_before_what_sorts_behind_all(text: str):
    assert exact(text).encode() < AFTER_ALL.encode()


def test_rows_go_in_portions_that_a_message_holds_and_a_large_one_goes_alone():
    mib = 1024 * 1024
    sizes = [1, 20 * mib, 20 * mib, 40 * mib, 1, 1]
    found = [[len(row[0]) for row in portion] for portion in portions(((bytes(size),) for size in sizes), 0)]
    assert found == [[1, 20 * mib], [20 * mib], [40 * mib], [1, 1]]
    assert [len(portion) for portion in portions(((b"",) for _ in range(2500)), 0)] == [1000, 1000, 500]
    assert list(portions([], 0)) == []


def test_a_body_that_no_message_holds_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "LONGEST", 10)
    with pytest.raises(StoreRefused, match="11 bytes"):
        list(portions([(b"x",), (b"x" * 11,)], 0))
