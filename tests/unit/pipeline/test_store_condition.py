"""The store is away for an app from the first who is not answered to the last who is answered again."""

from __future__ import annotations

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.core.errors import LeaseLost, StoreRefused, StoreUnavailable

HOLDS = {("retry_store_unavailable", "shop")}


@pytest.fixture
async def t():
    async with RunningApp(Leveret("shop", broker="memory://", store="memory://")) as running:
        yield running


@pytest.fixture
def condition(t):
    return t.app._open.parts.store_condition


def ask(condition, who: str, error: Exception | None = None) -> None:
    with condition.asking(who, f"{who} cannot go on"):
        if error is not None:
            raise error


def fail(condition, who: str) -> None:
    with pytest.raises(StoreUnavailable):
        ask(condition, who, StoreUnavailable("away"))


def test_it_holds_until_each_who_was_not_answered_is(t, condition):
    fail(condition, "reader")
    fail(condition, "writer")
    assert t.alarms.holding == HOLDS
    ask(condition, "reader")
    ask(condition, "somebody else")
    assert t.alarms.holding == HOLDS
    ask(condition, "writer")
    assert t.alarms.holding == set()


def test_an_answer_to_what_was_asked_before_the_failure_ends_nothing(t, condition):
    with condition.asking("writer", "cannot go on"):
        fail(condition, "writer")
    assert t.alarms.holding == HOLDS
    ask(condition, "writer")
    assert t.alarms.holding == set()


@pytest.mark.parametrize("answer", [StoreRefused("too large"), LeaseLost("somebody else holds it")])
def test_a_refusal_is_an_answer(t, condition, answer):
    fail(condition, "writer")
    with pytest.raises(type(answer)):
        ask(condition, "writer", answer)
    assert t.alarms.holding == set()


def test_a_fault_of_ours_says_nothing_of_the_store(t, condition):
    with pytest.raises(ZeroDivisionError):
        ask(condition, "writer", ZeroDivisionError())
    assert t.alarms.holding == set()
    fail(condition, "writer")
    with pytest.raises(ZeroDivisionError):
        ask(condition, "writer", ZeroDivisionError())
    assert t.alarms.holding == HOLDS


def test_whoever_asks_no_more_holds_nothing_up(t, condition):
    fail(condition, "writer")
    fail(condition, "reader")
    condition.over_for("writer", "nobody")
    assert t.alarms.holding == HOLDS
    condition.over_for("reader")
    assert t.alarms.holding == set()


async def test_a_store_that_is_only_read_is_away_until_it_is_written(t):
    """Leases are renewed all the time, and what waits is looked for: neither proves that what fails can be stored."""

    async def read_only(name, *_) -> None:
        if name not in ("upcoming", "count_entries"):
            raise StoreUnavailable("it takes no writes")

    await t.clock.advance(1)
    t.store.before = read_only
    await t.send("shop.events.dlq", b"dead")
    await t.clock.advance(1)
    over = []
    plain = t.alarms.resolved

    def resolved(code: str, about: str = "") -> None:
        if (code, about) in t.alarms.holding:
            over.append((code, about))
        plain(code, about)

    t.alarms.resolved = resolved
    await t.clock.advance(600)
    assert (t.alarms.holding, over) == (HOLDS, [])
    t.store.before = None
    await t.clock.advance(31)
    assert len(t.data.letters) == 1
    assert (t.alarms.holding, over) == (set(), list(HOLDS))
