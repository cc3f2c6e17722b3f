from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.demo.ledger import Ledger, account


def test_a_ledger_names_every_place_in_its_last_line():
    ledger = account(["a", "b", "c"], {"a": 1}, {"b"}, {"c"})
    assert str(ledger) == "accounted: published=3 delivered=1 dead=1 waiting=1 lost=0"


@pytest.mark.parametrize("taken_away", ["a", "b", "c"])
def test_a_message_that_is_taken_away_is_lost(taken_away):
    places = {"a": {"a": 1}, "b": {"b"}, "c": {"c"}}
    places[taken_away] = type(places[taken_away])()
    ledger = account(["a", "b", "c"], *places.values())
    assert ledger.lost == 1


def test_a_message_in_two_places_is_counted_once():
    assert account(["a"], {"a": 1}, {"a"}, {"a"}) == Ledger(
        published=1, delivered=1, dead=0, waiting=0, lost=0, twice=0
    )


def test_a_message_that_was_delivered_twice_is_one_delivered_message():
    ledger = account(["a", "b"], {"a": 2, "b": 1}, (), ())
    assert (ledger.delivered, ledger.twice) == (2, 1)


def test_other_peoples_messages_are_not_counted():
    assert account(["a"], {"a": 1, "x": 3}, {"y"}, {"z"}).published == 1


def test_what_the_broker_still_has_waits_and_is_not_lost():
    ledger = account(["a", "b", "c"], {}, (), (), on_the_way=2)
    assert (ledger.waiting, ledger.lost) == (2, 1)
    assert account(["a"], {"a": 1}, (), (), on_the_way=5).waiting == 0


ids = st.integers(0, 20).map(str)


@given(st.lists(ids, unique=True), st.lists(ids), st.sets(ids), st.sets(ids), st.integers(0, 30))
def test_every_published_message_is_in_exactly_one_place(published, taken, dead, waiting, on_the_way):
    counted = {id: taken.count(id) for id in taken}
    ledger = account(published, counted, dead, waiting, on_the_way=on_the_way)
    assert ledger.published == len(published)
    assert ledger.published == ledger.delivered + ledger.dead + ledger.waiting + ledger.lost
    assert min(ledger.delivered, ledger.dead, ledger.waiting, ledger.lost) >= 0
