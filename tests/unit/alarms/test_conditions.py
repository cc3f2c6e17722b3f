from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.alarms.conditions import FORGOTTEN_AFTER, MOST_CONDITIONS, WINDOW, Conditions
from leveret.core.alarm import Alarm


class SetClock:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return 1_000_000.0 + self.at

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock():
    return SetClock()


@pytest.fixture
def conditions(clock):
    return Conditions(clock)


def full(about: str = "") -> Alarm:
    return Alarm(code="disk_full", title="no room", about=about)


def shown(alert) -> tuple[str, int] | None:
    return None if alert is None else (alert.state, alert.count)


def test_a_condition_is_told_when_it_is_met_and_once_in_its_window(conditions, clock):
    assert shown(conditions.holds(full())) == ("holds", 1)
    clock.at = WINDOW - 1
    assert conditions.holds(full()) is None


def test_what_was_met_again_is_told_with_its_count_when_the_window_ends(conditions, clock):
    conditions.holds(full())
    clock.at = 10
    conditions.holds(full())
    assert conditions.due() == []
    assert conditions.next_due == WINDOW - 10
    clock.at = WINDOW
    [again] = conditions.due()
    assert (again.state, again.count, again.first, again.last) == ("holds", 2, 1_000_000.0, 1_000_010.0)
    clock.at = 2 * WINDOW
    assert conditions.due() == []


def test_each_thing_has_a_condition_of_its_own(conditions):
    assert conditions.holds(full("a")) is not None
    assert conditions.holds(full("b")) is not None
    assert conditions.holds(full("a")) is None


def test_the_end_is_told_once_and_only_of_what_was_told(conditions):
    assert conditions.over("disk_full", "") is None
    conditions.holds(full())
    conditions.holds(full())
    assert shown(conditions.over("disk_full", "")) == ("resolved", 2)
    assert conditions.over("disk_full", "") is None


def test_the_end_is_told_of_a_condition_that_was_quiet_for_hours(conditions, clock):
    conditions.holds(full())
    clock.at = 10 * WINDOW
    assert conditions.due() == []
    assert not conditions.empty
    assert shown(conditions.over("disk_full", "")) == ("resolved", 1)
    assert conditions.empty


def test_a_condition_that_flaps_is_told_and_resolved_once_a_window(conditions, clock):
    told = []
    for second in range(int(2 * WINDOW) + 1):
        clock.at = second
        met = (*conditions.due(), conditions.holds(full()), conditions.over("disk_full", ""))
        told += [(second, *shown(alert)) for alert in met if alert]
    assert told == [(0, "holds", 1), (0, "resolved", 1), (300, "resolved", 300), (600, "resolved", 600)]


def test_a_condition_that_came_back_in_its_window_is_told_at_its_end(conditions, clock):
    conditions.holds(full())
    conditions.over("disk_full", "")
    clock.at = 20
    assert conditions.holds(full()) is None
    clock.at = WINDOW
    assert [shown(alert) for alert in conditions.due()] == [("holds", 2)]


def test_the_count_starts_anew_after_a_long_silence(conditions, clock):
    conditions.holds(full())
    clock.at = WINDOW + 1
    conditions.due()
    assert shown(conditions.holds(full())) == ("holds", 2)
    clock.at += FORGOTTEN_AFTER + 1
    conditions.due()
    assert shown(conditions.holds(full())) == ("holds", 1)


def test_what_is_told_again_says_what_was_known_last(conditions, clock):
    conditions.holds(Alarm(code="c", title="first", fields={"n": 1}))
    conditions.holds(Alarm(code="c", title="second", fields={"n": 2}))
    clock.at = WINDOW
    [again] = conditions.due()
    assert (again.title, again.fields) == ("second", {"n": 2})


def test_a_storm_of_conditions_takes_no_more_than_its_room(conditions, clock):
    for number in range(3 * MOST_CONDITIONS):
        conditions.holds(full(f"thing {number}"))
        conditions.holds(full(f"thing {number}"))
    assert len(conditions._running) + len(conditions._quiet) == MOST_CONDITIONS
    assert conditions.forgotten == 2 * MOST_CONDITIONS
    clock.at = WINDOW
    assert len(conditions.due()) == MOST_CONDITIONS


@given(st.lists(st.tuples(st.sampled_from(["met", "over", "wait"]), st.floats(0, 400)), max_size=60))
def test_however_it_goes_a_window_tells_a_state_once_and_nothing_is_uncounted(steps):
    clock = SetClock()
    conditions = Conditions(clock)
    told: list[tuple[float, str, int]] = []
    met = 0
    for step, seconds in steps:
        if step == "wait":
            clock.at += seconds
        told += [(clock.at, alert.state, alert.count) for alert in conditions.due()]
        if step == "met":
            met += 1
            alert = conditions.holds(full())
        else:
            alert = conditions.over("disk_full", "") if step == "over" else None
        told += [(clock.at, alert.state, alert.count)] if alert else []
    holds = [at for at, state, _ in told if state == "holds"]
    assert all(later - earlier >= WINDOW for earlier, later in itertools.pairwise(holds))
    # Each end of a window tells all that came in it, so that two of them tell the rest.
    for _ in range(2):
        clock.at += WINDOW
        told += [(clock.at, alert.state, alert.count) for alert in conditions.due()]
    if met and not any(count == 1 for _, _, count in told[1:]):
        assert max(count for _, _, count in told) == met
