from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.core.retry_entry import Due
from leveret.retry.schedule import SHORTEST_REFILL, Schedule

HORIZON = 8.0
CAPACITY = 6
#: Rows that one moment brings at most in these tests; more than fit at once, so that some wait for a refill.
KEYS = 20


def due(key: str, due_in: float, failure: int = 1) -> Due:
    return Due(key, failure, due_in, "q")


def popped(schedule: Schedule, now: float, limit: int = 1000) -> list[str]:
    return [row.key for row in schedule.pop_due(now, limit)]


@dataclass
class Model:
    """A store as a plain dict, and a dispatcher that does nothing but ask the schedule; both too simple to be wrong."""

    schedule: Schedule = field(default_factory=lambda: Schedule(horizon=HORIZON, capacity=CAPACITY))
    now: float = 0.0
    #: Key to (when it is due, failure).
    waiting: dict[str, tuple[float, int]] = field(default_factory=dict)
    published: list[tuple[str, int, float, float]] = field(default_factory=list)
    first_look: float | None = None

    def put(self, key: str, delay: float) -> None:
        failure = self.waiting.get(key, (0.0, 0))[1] + 1
        self.waiting[key] = (self.now + delay, failure)
        self.schedule.add(due(key, delay, failure), now=self.now)
        self.check()

    def remove(self, key: str) -> None:
        self.waiting.pop(key, None)
        self.schedule.forget(key)
        self.check()

    def refill(self) -> None:
        limit = self.schedule.room
        if limit < CAPACITY // 2:
            self.schedule.refill_later(now=self.now)
            return
        after = self.schedule.refilling() or (self.now - self.schedule.overlooked(self.now), "")
        rows = sorted(
            (when, key, failure)
            for key, (when, failure) in self.waiting.items()
            if after < (when, key) and when <= self.now + HORIZON
        )[:limit]
        self.schedule.refilled(
            [due(key, when - self.now, failure) for when, key, failure in rows],
            now=self.now,
            ended_at=rows[-1][:2] if len(rows) == limit else None,
        )
        if self.first_look is None:
            self.first_look = self.now
        self.check()

    def go_on(self) -> None:
        """What is to be done at this moment."""
        if self.schedule.refill_in(self.now) <= 0:
            self.refill()
        for row in self.schedule.pop_due(self.now, 4):
            when, failure = self.waiting.pop(row.key)
            assert row.failure == failure, "an older failure than the one that waits was published"
            assert when <= self.now, f"{row.key} was published {when - self.now} s early"
            assert row.due_in == when - self.now
            self.published.append((row.key, failure, when, self.now))
        self.check()

    def run(self, until: float) -> None:
        """From one moment at which something is to be done to the next."""
        while True:
            self.go_on()
            waits = [self.schedule.refill_in(self.now)]
            if (next_in := self.schedule.next_in(self.now)) is not None:
                waits.append(next_in)
            step = max(0.0, min(waits))
            if self.now + step > until:
                self.now = until
                return
            self.now += step

    def check(self) -> None:
        """Bounded; and all that is due before `loaded_until` is in, but for what was overdue at the first look."""
        assert len(self.schedule) <= 3 * CAPACITY
        if self.first_look is None:
            return
        for key, (when, _) in self.waiting.items():
            if self.first_look <= when < self.schedule.loaded_until:
                assert key in self.schedule, (
                    f"{key} is due at {when}, loaded until {self.schedule.loaded_until}"
                )


# Quarters of a second are exact as floats.
QUARTERS = st.integers(0, 100).map(lambda number: number / 4)
STEPS = st.lists(
    st.tuples(st.just("put"), st.integers(0, KEYS - 1), QUARTERS)
    | st.tuples(st.just("pass"), st.just(0), QUARTERS)
    | st.tuples(st.just("remove"), st.integers(0, KEYS - 1), st.just(0.0)),
    max_size=60,
)


@given(STEPS)
@example([("pass", 0, 0.25), *(("put", number, 3.0) for number in range(KEYS))])
@example([("pass", 0, 0.25), *(("put", number, 10.0 - number / 4) for number in range(KEYS))])
def test_whatever_comes_and_goes_everything_is_published_once_when_it_is_due_and_never_early(
    steps: list[tuple[str, int, float]],
):
    model = Model()
    model.run(0.0)
    for what, number, seconds in steps:
        if what == "put":
            model.put(f"k{number}", seconds)
        elif what == "remove":
            model.remove(f"k{number}")
        else:
            model.run(model.now + seconds)
    model.run(model.now + 60.0)

    assert model.waiting == {}
    for key, _, when, at in model.published:
        # What did not fit waits for a refill or a few, of which there is one every SHORTEST_REFILL seconds at least.
        assert at - when <= SHORTEST_REFILL * (KEYS / CAPACITY + 2), f"{key} was late by {at - when}"


@given(st.dictionaries(st.integers(0, 50), QUARTERS, max_size=40))
def test_what_waited_before_the_start_is_published_on_time_unless_it_was_overdue_then(
    delays: dict[int, float],
):
    model = Model()
    model.now = 5.0
    model.waiting = {f"k{number}": (when, 1) for number, when in delays.items()}
    model.run(60.0)
    assert {key for key, (when, _) in model.waiting.items() if when >= 5.0} == set()
    assert {key for key, *_ in model.published} == {
        f"k{number}" for number, when in delays.items() if when >= 5.0
    }


def test_rows_come_out_the_longest_due_first_and_no_more_than_asked_for():
    schedule = Schedule()
    schedule.refilled([due("b", 2), due("a", 1), due("c", 3), due("d", 4)], now=0.0)
    assert popped(schedule, 3.0, limit=2) == ["a", "b"]
    assert popped(schedule, 3.0, limit=2) == ["c"]
    assert popped(schedule, 3.999) == []
    assert popped(schedule, 4.0) == ["d"]


def test_a_row_tells_how_long_it_is_overdue_and_which_failure_it_carries():
    schedule = Schedule()
    schedule.refilled([due("a", 1.0, failure=7)], now=10.0)
    assert schedule.pop_due(13.0, 10) == [Due("a", 7, -2.0, "q")]


def test_a_time_that_is_changed_replaces_the_older_one_in_either_direction():
    schedule = Schedule()
    schedule.refilled([due("a", 1), due("b", 5)], now=0.0)
    assert schedule.add(due("a", 4), now=0.0)
    assert schedule.add(due("b", 2), now=0.0)
    assert popped(schedule, 3.0) == ["b"]
    assert popped(schedule, 10.0) == ["a"]


def test_a_time_that_is_moved_beyond_the_horizon_is_left_to_the_store():
    schedule = Schedule(horizon=HORIZON)
    schedule.refilled([due("a", 1)], now=0.0)
    assert not schedule.add(due("a", HORIZON + 1), now=0.0)
    assert "a" not in schedule
    assert popped(schedule, 100.0) == []


def test_an_earlier_failure_takes_the_place_of_no_later_one():
    schedule = Schedule(horizon=HORIZON)
    schedule.refilled([], now=0.0)
    schedule.add(due("a", 4, failure=2), now=0.0)
    schedule.add(due("a", 1, failure=1), now=0.0)
    schedule.add(due("a", HORIZON + 1, failure=1), now=0.0)
    assert schedule.pop_due(3.0, 10) == []
    assert [(row.key, row.failure) for row in schedule.pop_due(4.0, 10)] == [("a", 2)]


def test_before_the_first_look_a_look_is_due_at_once_and_goes_back_to_nothing():
    schedule = Schedule()
    assert schedule.next_in(0.0) is None
    assert schedule.refill_in(0.0) <= 0
    assert schedule.overlooked(0.0) == 0.0


def test_a_row_that_is_forgotten_does_not_come_out():
    schedule = Schedule()
    schedule.refilled([due("a", 1), due("b", 2)], now=0.0)
    schedule.forget("a")
    schedule.forget("never there")
    assert schedule.next_in(0.0) == 2.0
    assert popped(schedule, 5.0) == ["b"]


def test_a_refill_does_not_move_what_is_in_here_already():
    schedule = Schedule()
    schedule.refilled([due("a", 10)], now=0.0)
    # The wall clock jumped: the store now says that it is due in an hour. What is loaded keeps its monotonic time.
    schedule.refilled([due("a", 3600)], now=1.0)
    assert schedule.next_in(1.0) == 9.0


def test_the_next_refill_comes_when_half_of_what_is_loaded_has_passed_and_never_at_once():
    schedule = Schedule(horizon=60.0, capacity=2)
    schedule.refilled([], now=100.0)
    assert (schedule.loaded_until, schedule.refill_in(100.0)) == (160.0, 30.0)
    schedule.refilled([due("a", 4), due("b", 10)], now=100.0, ended_at=(10.0, "b"))
    assert (schedule.loaded_until, schedule.refill_in(100.0)) == (110.0, 5.0)
    schedule.refilled([due("c", 0), due("d", 0)], now=110.0, ended_at=(20.0, "d"))
    assert schedule.refill_in(110.0) == pytest.approx(SHORTEST_REFILL)


def test_a_refill_that_is_late_goes_back_to_where_the_last_one_ended():
    schedule = Schedule(horizon=10.0)
    schedule.refilled([], now=0.0)
    assert schedule.overlooked(5.0) == 0.0
    assert schedule.overlooked(25.0) == 15.0


def test_a_store_that_answers_slowly_makes_no_row_go_early():
    schedule = Schedule(horizon=10.0)
    # Asked at 100, answered at 103: the 4 s that the store counted may have begun at any moment in between.
    schedule.refilled([due("a", 4)], now=103.0, asked_at=100.0)
    assert popped(schedule, 106.9) == []
    assert popped(schedule, 107.0) == ["a"]
    assert schedule.loaded_until == 110.0


def test_where_more_rows_come_than_it_keeps_the_latest_are_left_to_the_store():
    schedule = Schedule(horizon=1000.0, capacity=100)
    schedule.refilled([], now=0.0)
    for number in range(1000):
        schedule.add(due(f"k{number}", number / 2), now=0.0)
    assert len(schedule) <= 200
    assert "k0" in schedule
    assert schedule.loaded_until < 120.0
    assert all(f"k{number}" in schedule for number in range(1000) if number / 2 < schedule.loaded_until)
    assert schedule.refill_in(0.0) <= schedule.loaded_until
    assert len(schedule._heap) <= 400


def test_what_is_written_while_the_store_is_asked_is_not_overlooked():
    schedule = Schedule(horizon=HORIZON)
    schedule.refilling()
    # The store had looked already when these were written.
    schedule.add(due("a", 2), now=0.0)
    assert not schedule.add(due("late", HORIZON + 5), now=0.0)
    schedule.refilled([due("b", 1)], now=0.5, asked_at=0.0)
    assert popped(schedule, 4.0) == ["b", "a"]
    assert popped(schedule, 100.0) == []


def test_of_what_is_written_while_the_store_is_asked_the_later_failure_counts():
    schedule = Schedule(horizon=HORIZON)
    schedule.refilling()
    schedule.add(due("a", 3, failure=2), now=0.0)
    schedule.refilled([due("a", 1, failure=1)], now=0.5, asked_at=0.0)
    assert schedule.pop_due(2.0, 10) == []
    assert [(row.key, row.failure) for row in schedule.pop_due(3.0, 10)] == [("a", 2)]


def test_a_refill_brings_a_later_failure_of_what_is_in_here():
    schedule = Schedule(horizon=HORIZON)
    schedule.refilled([due("a", 2, failure=1)], now=0.0)
    schedule.refilled([due("a", 5, failure=2)], now=1.0)
    assert [(row.key, row.failure) for row in schedule.pop_due(7.0, 10)] == [("a", 2)]


def test_what_is_just_written_need_not_wait_until_a_burst_before_it_is_loaded():
    schedule = Schedule(horizon=HORIZON, capacity=2)
    schedule.refilled([due("a", 1), due("b", 1)], now=0.0, ended_at=(1.0, "b"))
    assert schedule.add(due("fresh", 3), now=0.0)
    assert (schedule.loaded_until, schedule.room) == (1.0, 0)
    assert popped(schedule, 2.0) == ["a", "b"]
    assert schedule.room == 2
    assert schedule.refilling() == (1.0, "b")
    schedule.refilled([due("c", -1), due("d", -1)], now=2.0, ended_at=(1.0, "d"))
    assert popped(schedule, 3.0) == ["c", "d", "fresh"]


def test_what_is_left_to_the_store_while_it_is_asked_is_asked_for_again():
    schedule = Schedule(horizon=HORIZON, capacity=2)
    assert schedule.refilling() is None
    # The store had looked already when these were written.
    for number in range(5):
        schedule.add(due(f"k{number}", 1 + number), now=0.0)
    assert "k4" not in schedule
    schedule.refilled([], now=0.5, asked_at=0.0)
    assert schedule.loaded_until <= 4.0
    assert schedule.refilling() is None


def test_a_part_that_the_store_names_at_once_goes_after_the_one_that_it_took_long_to_name():
    schedule = Schedule(horizon=HORIZON, capacity=2)
    schedule.refilled([due("a", 1), due("b", 2)], asked_at=0.0, now=0.5, ended_at=(2.0, "b"))
    schedule.refilling()
    schedule.refilled([due("c", 1.1), due("d", 1.2)], now=1.0, ended_at=(2.2, "d"))
    assert popped(schedule, 2.45) == ["a"]
    assert popped(schedule, 2.5) == ["b", "c", "d"]
