from __future__ import annotations

import asyncio
import copy
import doctest
import json
import math
import pickle
import unicodedata
from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from decimal import Decimal
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leveret.core import policy as module
from leveret.core.errors import HardFailure, SoftFailure
from leveret.core.policy import GiveUp, RetryAt, RetryPolicy, describe
from leveret.core.seconds import LONGEST

NOW = 1_795_000_000.0
HOUR = 3600.0
TEN_YEARS = 10 * 365 * 86400.0


class Draws:
    """A source that draws the same number every time."""

    def __init__(self, number):
        self.number = number

    def random(self):
        return self.number


LOWEST, MIDDLE, HIGHEST = Draws(0.0), Draws(0.5), Draws(math.nextafter(1.0, 0.0))

durations = st.floats(0, LONGEST)
factors = st.one_of(
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0, 100.0, 1e308, 5e-324]), st.floats(0, allow_infinity=False)
)
attempts = st.one_of(st.integers(1, 50), st.integers(1, 10**6), st.just(2**63 - 1))
sources = st.one_of(
    st.none(), st.sampled_from([LOWEST, MIDDLE, HIGHEST]), st.floats(0, 1, exclude_max=True).map(Draws)
)


@st.composite
def policies(draw):
    longest = draw(durations)
    return RetryPolicy(
        first_delay=draw(st.floats(0, longest)),
        factor=draw(factors),
        jitter=draw(st.floats(0, 1)),
        max_delay=longest,
        max_attempts=draw(st.one_of(st.integers(1, 20), st.integers(1, 2**63 - 1))),
        attempts_cap=draw(st.none() | st.integers(1, 30)),
        max_retry_after=draw(st.none() | durations),
        max_age=draw(st.none() | durations),
    )


@st.composite
def soft_failures(draw):
    asked = draw(st.none() | durations)
    return SoftFailure(
        draw(st.text(max_size=20)),
        retry_after=asked,
        retry_max=draw(st.none() | st.integers(0, 20) | st.just(2**63 - 1)),
        factor=None if asked is None else draw(st.none() | factors),
        jitter=None if asked is None else draw(st.none() | st.floats(0, 1)),
        counted=draw(st.booleans()),
    )


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


# ── What a policy may be ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_defaults_are_the_promised_ones():
    policy = RetryPolicy()
    assert {each.name: getattr(policy, each.name) for each in fields(policy)} == {
        "first_delay": 30.0,
        "factor": 2.0,
        "jitter": 0.5,
        "max_delay": 300.0,
        "max_attempts": 6,
        "attempts_cap": None,
        "max_retry_after": None,
        "max_age": None,
        "retry_on": {},
    }


def test_c12_zero_is_zero_and_not_the_default():
    policy = RetryPolicy(first_delay=0, factor=0, jitter=0, max_delay=0, max_retry_after=0, max_age=0)
    assert (policy.first_delay, policy.factor, policy.jitter, policy.max_delay) == (0, 0, 0, 0)
    assert (policy.max_retry_after, policy.max_age) == (0, 0)
    assert policy.schedule() == [0.0] * 5


@pytest.mark.parametrize("name", ["first_delay", "max_delay", "max_retry_after", "max_age"])
@pytest.mark.parametrize("given", [90, 90.0, Decimal(90), timedelta(minutes=1, seconds=30)])
def test_c12_a_duration_in_any_form_is_kept_as_float_seconds(name, given):
    found = getattr(RetryPolicy(**{name: given}), name)
    assert found == 90.0
    assert type(found) is float


@pytest.mark.parametrize(
    "name", ["first_delay", "max_delay", "max_retry_after", "max_age", "factor", "jitter"]
)
@pytest.mark.parametrize("value", [-5, float("nan"), float("inf"), "30", True, 10**400, Decimal("sNaN")])
def test_c12_a_number_that_cannot_be_meant_is_refused_with_its_name(name, value):
    with pytest.raises(ValueError, match=f"^{name}="):
        RetryPolicy(**{name: value})


@pytest.mark.parametrize("name", ["max_attempts", "attempts_cap"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "6", True, 2**63])
def test_a_number_of_attempts_is_whole_and_at_least_one(name, value):
    with pytest.raises(ValueError, match=f"^{name}="):
        RetryPolicy(**{name: value})


@pytest.mark.parametrize("name", ["first_delay", "factor", "jitter", "max_delay", "max_attempts"])
def test_none_is_no_number(name):
    with pytest.raises(ValueError, match=f"^{name}=None"):
        RetryPolicy(**{name: None})


def test_jitter_is_a_part_of_one():
    with pytest.raises(ValueError, match=r"^jitter=1.5: expected a finite number from 0 to 1"):
        RetryPolicy(jitter=1.5)


def test_a_first_delay_above_max_delay_is_refused_with_both_values_and_the_way_out():
    with pytest.raises(ValueError) as caught:
        RetryPolicy(first_delay=timedelta(hours=1))
    assert str(caught.value) == (
        "first_delay=datetime.timedelta(seconds=3600) is above max_delay=300.0, which would cut every wait. "
        "Raise max_delay, or lower first_delay"
    )
    assert RetryPolicy(first_delay=300).schedule() == [300.0] * 5


def test_positional_numbers_are_refused():
    with pytest.raises(TypeError):
        RetryPolicy(30.0)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("retry_on", "words"),
    [
        ([ValueError], "retry_on=[<class 'ValueError'>]: expected a mapping of exception classes"),
        ({"ValueError": GiveUp}, "retry_on={'ValueError': …}: expected an exception class"),
        ({int: GiveUp}, "retry_on={<class 'int'>: …}: expected an exception class"),
        ({ValueError("x"): GiveUp}, "retry_on={ValueError('x'): …}: expected an exception class"),
        ({ValueError: 3}, "retry_on={ValueError: 3}: expected a RetryPolicy or GiveUp"),
        ({ValueError: None}, "retry_on={ValueError: None}: expected a RetryPolicy or GiveUp"),
        ({ValueError: RetryPolicy}, "expected a RetryPolicy or GiveUp"),
        ({HardFailure: RetryPolicy()}, "a hard failure is never retried"),
        ({OSError: RetryPolicy(retry_on={TimeoutError: GiveUp})}, "a policy in retry_on has none of its own"),
    ],
)
def test_a_retry_on_that_cannot_work_is_refused_with_the_class_and_what_it_holds(retry_on, words):
    with pytest.raises(ValueError) as caught:
        RetryPolicy(retry_on=retry_on)
    assert str(caught.value).startswith("retry_on=")
    assert words in str(caught.value)


def test_a_policy_never_changes():
    given = {ValueError: GiveUp}
    policy = RetryPolicy(retry_on=given)
    given[KeyError] = GiveUp
    assert policy.retry_on == {ValueError: GiveUp}
    with pytest.raises(TypeError):
        policy.retry_on[KeyError] = GiveUp  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        policy.max_attempts = 7  # type: ignore[misc]


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(),
        RetryPolicy(first_delay=0.001, max_age=86400),
        RetryPolicy(
            retry_on={TimeoutError: RetryPolicy(max_attempts=2), KeyError: GiveUp, OSError: GiveUp("gone")}
        ),
    ],
)
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, replace, lambda policy: pickle.loads(pickle.dumps(policy))]
)
def test_a_copy_of_a_policy_is_equal_has_the_same_hash_and_is_as_immutable(policy, again):
    found = again(policy)
    assert found == policy
    assert hash(found) == hash(policy)
    with pytest.raises(TypeError):
        found.retry_on[ValueError] = GiveUp


def test_policies_differ_where_a_number_or_a_class_differs():
    assert RetryPolicy() != RetryPolicy(max_attempts=7)
    assert RetryPolicy() != RetryPolicy(retry_on={ValueError: GiveUp})
    assert RetryPolicy() == RetryPolicy(first_delay=timedelta(seconds=30), retry_on={})


# ── Delays ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_c12_the_first_wait_is_the_first_delay_exactly():
    assert RetryPolicy(first_delay=30).delay(1) == 30.0


def test_the_schedule_has_one_wait_fewer_than_attempts():
    assert RetryPolicy().schedule() == [30.0, 60.0, 120.0, 240.0, 300.0]
    assert RetryPolicy(max_attempts=1).schedule() == []
    assert RetryPolicy(first_delay=8, factor=0.5, max_attempts=5).schedule() == [8.0, 4.0, 2.0, 1.0]
    assert RetryPolicy(first_delay=8, factor=0, max_attempts=4).schedule() == [8.0, 0.0, 0.0]
    assert RetryPolicy(first_delay=5, factor=1, max_attempts=4).schedule() == [5.0, 5.0, 5.0]


def test_p6_fractions_of_seconds_and_years_are_exact():
    assert RetryPolicy(first_delay=0.001, factor=2).schedule() == [0.001, 0.002, 0.004, 0.008, 0.016]
    policy = RetryPolicy(first_delay=TEN_YEARS, max_delay=TEN_YEARS)
    assert policy.delay(1) == policy.delay(9) == TEN_YEARS


@pytest.mark.parametrize("wait", [86401.0, 25 * 86400.0, 40 * 86400.0, 4294967.296, 4294967296.0, TEN_YEARS])
def test_a13_a_wait_beyond_32_bits_of_milliseconds_is_exact(wait):
    assert RetryPolicy(first_delay=wait, max_delay=wait).delay(1) == wait
    found = RetryPolicy().decide(1, SoftFailure(retry_after=wait), NOW, random=HIGHEST)
    assert found == RetryAt(delay=wait, attempt=2, reason="SoftFailure")


@pytest.mark.parametrize("factor", [0, 0.5, 1, 2, 5, 100, 1e308])
def test_a14_no_attempt_from_0_to_10000_overflows_or_leaves_0_to_the_cap(factor):
    policy = RetryPolicy(first_delay=30, factor=factor, jitter=0.5, max_delay=HOUR)
    drawn = Random(7)
    for attempt in range(10_001):
        assert 0.0 <= policy.delay(attempt) <= HOUR
        assert 0.0 <= policy.delay(attempt, random=drawn) <= HOUR


@given(policies(), attempts, sources)
@example(RetryPolicy(first_delay=5e-324, factor=10.0, max_delay=300), 321, None)
@example(RetryPolicy(first_delay=5e-324, factor=1e308, max_delay=LONGEST), 3, HIGHEST)
# By its logarithm this one is below the cap, by its product above.
@example(RetryPolicy(first_delay=21.95, factor=7.0, max_delay=1075.5499999999997), 3, None)
def test_a14_any_attempt_and_any_factor_gives_a_delay_within_0_and_max_delay(policy, attempt, random):
    assert 0.0 <= policy.delay(attempt, random=random) <= policy.max_delay


@given(st.floats(1e-3, 1e6), st.floats(0.01, 100), st.integers(1, 40))
def test_a_delay_is_the_first_one_times_the_factor_for_each_attempt_since(first, factor, attempt):
    policy = RetryPolicy(first_delay=first, factor=factor, max_delay=1e9)
    expected = first
    for _ in range(attempt - 1):
        expected *= factor
    assert policy.delay(attempt) == pytest.approx(min(expected, 1e9), rel=1e-9)


def test_a_delay_so_small_that_the_power_alone_fits_no_float_still_grows():
    assert RetryPolicy(first_delay=1e-320, factor=10.0).delay(319) == pytest.approx(0.01, rel=1e-3)
    assert RetryPolicy(first_delay=1e-300, factor=10.0).delay(312) == 300.0


@given(policies(), st.integers(1, 10**5))
def test_delays_only_grow_with_a_factor_of_one_or_more(policy, attempt):
    policy = replace(policy, factor=policy.factor + 1.0)
    assert policy.delay(attempt) <= policy.delay(attempt + 1)


def test_a_delay_before_any_attempt_is_the_first_one():
    assert RetryPolicy(first_delay=30, factor=7).delay(0) == 30


@pytest.mark.parametrize("attempt", [-1, 1.0, True, "1", None])
def test_an_attempt_is_a_whole_number(attempt):
    with pytest.raises(ValueError, match=r"^attempt="):
        RetryPolicy().delay(attempt)


@pytest.mark.parametrize("attempt", [0, -1, 1.0, True, "1", None])
def test_the_attempt_that_failed_is_a_whole_number_from_one(attempt):
    with pytest.raises(ValueError, match=r"^attempt="):
        RetryPolicy().decide(attempt, KeyError("url"), NOW)


def test_jitter_spreads_a_wait_in_both_directions():
    policy = RetryPolicy(first_delay=100, jitter=0.2)
    assert policy.delay(1, random=LOWEST) == 80.0
    assert policy.delay(1, random=MIDDLE) == pytest.approx(100.0)
    assert policy.delay(1, random=HIGHEST) == pytest.approx(120.0)
    assert policy.delay(1) == 100.0


def test_at_the_cap_jitter_only_shortens_so_that_late_attempts_spread():
    policy = RetryPolicy(jitter=0.5, max_delay=300)
    drawn = Random(7)
    waits = [policy.delay(attempt, random=drawn) for attempt in range(10, 2010)]
    assert min(waits) == pytest.approx(150, abs=1)
    assert max(waits) == pytest.approx(300, abs=1)
    assert len({round(wait, 3) for wait in waits}) > 1900


def test_just_below_the_cap_waits_do_not_gather_at_it():
    policy = RetryPolicy(first_delay=290, jitter=0.5, max_delay=300)
    drawn = Random(7)
    waits = [policy.delay(1, random=drawn) for _ in range(1000)]
    assert sum(wait == 300.0 for wait in waits) == 0
    assert min(waits) < 150
    assert max(waits) <= 300.0


def test_without_jitter_randomness_changes_nothing():
    policy = RetryPolicy(jitter=0)
    assert [policy.delay(n, random=Random(7)) for n in range(1, 6)] == policy.schedule()


# ── Decisions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_any_exception_is_tried_again_after_the_policys_wait():
    found = RetryPolicy().decide(2, KeyError("url"), NOW)
    assert found == RetryAt(delay=60.0, attempt=3, counted=True, reason="KeyError: 'url'")


@pytest.mark.parametrize(
    "error",
    [SystemExit(1), KeyboardInterrupt(), RecursionError("deep"), asyncio.CancelledError(), TimeoutError()],
)
def test_what_is_no_ordinary_exception_is_tried_again_too(error):
    assert RetryPolicy().decide(1, error, NOW).attempt == 2


def test_p6_attempts_count_the_first_run():
    policy = RetryPolicy(max_attempts=6)
    assert [type(policy.decide(n, KeyError("url"), NOW)) for n in range(1, 8)] == [RetryAt] * 5 + [GiveUp] * 2
    assert policy.decide(6, KeyError("url"), NOW) == GiveUp(
        "retries exhausted: KeyError: 'url'", exhausted=True
    )


def test_one_attempt_means_no_retry():
    found = RetryPolicy(max_attempts=1).decide(1, SoftFailure("503"), NOW)
    assert found == GiveUp("retries exhausted: 503", exhausted=True)


def test_a_hard_failure_is_given_up_at_once_with_its_reason():
    found = RetryPolicy().decide(1, HardFailure("cannot charge 0 cents"), NOW)
    assert found == GiveUp("HardFailure: cannot charge 0 cents", hard=True)


def test_no_class_in_retry_on_brings_a_hard_failure_back():
    policy = RetryPolicy(retry_on={Exception: RetryPolicy()})
    assert policy.decide(1, HardFailure("gone"), NOW) == GiveUp("HardFailure: gone", hard=True)


def test_jitter_reaches_the_decision_only_where_there_is_randomness():
    assert RetryPolicy().decide(1, KeyError("url"), NOW, random=LOWEST).delay == 15.0
    assert RetryPolicy().decide(1, KeyError("url"), NOW).delay == 30.0


@pytest.mark.parametrize("random", [None, LOWEST, HIGHEST])
def test_c18_a_retry_after_of_2_seconds_is_2_seconds_at_every_failure(random):
    policy = RetryPolicy(max_attempts=10)
    waits = [policy.decide(n, SoftFailure(retry_after=2), NOW, random=random).delay for n in range(1, 6)]
    assert waits == [2.0] * 5


def test_c12_a_retry_after_of_zero_comes_back_now():
    assert RetryPolicy().decide(1, SoftFailure(retry_after=0), NOW).delay == 0.0
    assert RetryPolicy().decide(1, SoftFailure(retry_after=0.001), NOW).delay == 0.001


def test_c12_max_delay_does_not_shorten_an_hour_that_was_asked_for():
    found = RetryPolicy(max_delay=300).decide(1, SoftFailure(retry_after=3600), NOW, random=LOWEST)
    assert (found.delay, found.shortened_from) == (3600.0, None)


@pytest.mark.parametrize("random", [None, LOWEST, HIGHEST])
def test_c12_a_retry_after_that_is_shortened_says_what_was_asked(random):
    found = RetryPolicy(max_retry_after=300).decide(1, SoftFailure(retry_after=3600), NOW, random=random)
    assert (found.delay, found.shortened_from) == (300.0, 3600.0)


def test_a_retry_after_at_its_bound_is_not_called_shortened():
    found = RetryPolicy(max_retry_after=300).decide(1, SoftFailure(retry_after=300), NOW)
    assert (found.delay, found.shortened_from) == (300.0, None)


def test_a_factor_named_with_retry_after_multiplies_it_for_each_attempt_after_the_first():
    policy = RetryPolicy(max_attempts=9)
    waits = [policy.decide(n, SoftFailure(retry_after=2, factor=3), NOW).delay for n in (1, 2, 3, 4)]
    assert waits == [2.0, 6.0, 18.0, 54.0]


def test_a_factor_beyond_all_bounds_waits_a_thousand_years_at_most():
    policy = RetryPolicy(max_attempts=2**63 - 1)
    assert policy.decide(10**6, SoftFailure(retry_after=2, factor=1e308), NOW).delay == LONGEST
    bounded = replace(policy, max_retry_after=60).decide(10**6, SoftFailure(retry_after=2, factor=100), NOW)
    assert (bounded.delay, bounded.shortened_from) == (60.0, LONGEST)


def test_a_jitter_named_with_retry_after_lengthens_it_and_never_brings_it_early():
    policy = RetryPolicy()
    error = SoftFailure(retry_after=10, jitter=0.5)
    assert policy.decide(1, error, NOW, random=LOWEST).delay == 10.0
    assert policy.decide(1, error, NOW, random=HIGHEST).delay == pytest.approx(15.0)
    assert policy.decide(1, error, NOW).delay == 10.0


def test_a_jitter_named_with_retry_after_does_not_lengthen_it_beyond_the_bound():
    found = RetryPolicy(max_retry_after=100).decide(
        1, SoftFailure(retry_after=90, jitter=0.5), NOW, random=HIGHEST
    )
    assert (found.delay, found.shortened_from) == (pytest.approx(100.0), None)


def test_a_jitter_named_with_a_shortened_retry_after_spreads_below_the_bound():
    policy = RetryPolicy(max_retry_after=100)
    error = SoftFailure(retry_after=3600, jitter=0.5)
    assert policy.decide(1, error, NOW, random=LOWEST).delay == 50.0
    assert policy.decide(1, error, NOW, random=HIGHEST).delay == pytest.approx(100.0)
    assert policy.decide(1, error, NOW).delay == 100.0


def test_c10_a_retry_max_of_3_makes_4_runs_in_all():
    found, runs, allowed = None, 0, None
    while not isinstance(found, GiveUp):
        runs += 1
        found = RetryPolicy().decide(runs, SoftFailure("503", retry_max=3), NOW, attempts_allowed=allowed)
        allowed = getattr(found, "attempts_allowed", None)
    assert runs == 4
    assert found == GiveUp("retries exhausted: 503", exhausted=True)


def test_an_allowance_holds_at_later_failures_that_name_none():
    first = RetryPolicy(max_attempts=2).decide(1, SoftFailure(retry_max=4), NOW)
    assert first.attempts_allowed == 5
    later = RetryPolicy(max_attempts=2).decide(
        4, KeyError("url"), NOW, attempts_allowed=first.attempts_allowed
    )
    assert (later.attempt, later.attempts_allowed) == (5, 5)
    last = RetryPolicy(max_attempts=2).decide(5, KeyError("url"), NOW, attempts_allowed=5)
    assert last == GiveUp("retries exhausted: KeyError: 'url'", exhausted=True)


def test_a_later_retry_max_replaces_an_earlier_one():
    found = RetryPolicy().decide(2, SoftFailure(retry_max=2), NOW, attempts_allowed=9)
    assert found.attempts_allowed == 3


@pytest.mark.parametrize("counted", [True, False])
def test_c12_a_retry_max_of_zero_is_dead_now(counted):
    found = RetryPolicy().decide(1, SoftFailure("503", retry_max=0, counted=counted), NOW)
    assert found == GiveUp("retries exhausted: 503", exhausted=True)


@pytest.mark.parametrize(
    ("policy", "cap"),
    [
        (RetryPolicy(), 11),
        (RetryPolicy(max_attempts=40), 40),
        (RetryPolicy(attempts_cap=20), 20),
        (RetryPolicy(attempts_cap=3), 3),
    ],
)
def test_a_failure_may_ask_for_as_many_runs_as_the_cap_and_no_more(policy, cap):
    assert policy.cap == cap
    assert policy.decide(1, SoftFailure(retry_max=10**9), NOW).attempts_allowed == cap
    assert isinstance(policy.decide(cap - 1, SoftFailure(retry_max=10**9), NOW), RetryAt)
    assert isinstance(policy.decide(cap, SoftFailure(retry_max=10**9), NOW), GiveUp)
    assert isinstance(policy.decide(cap, KeyError("url"), NOW, attempts_allowed=10**9), GiveUp)


@pytest.mark.parametrize("allowed", [0, -1, -(2**63)])
def test_an_allowance_that_a_stranger_wrote_too_low_ends_the_message_in_the_dead_letters(allowed):
    found = RetryPolicy().decide(1, KeyError("url"), NOW, attempts_allowed=allowed)
    assert found == GiveUp("retries exhausted: KeyError: 'url'", exhausted=True)


def test_a_try_that_is_not_counted_spends_no_attempt_and_no_backoff():
    found = RetryPolicy().decide(3, SoftFailure("429", retry_after=7, counted=False), NOW, random=LOWEST)
    assert found == RetryAt(delay=7.0, attempt=3, counted=False, reason="429")
    assert RetryPolicy().decide(3, SoftFailure("503"), NOW).delay == 120.0


def test_a_try_that_is_not_counted_repeats_even_the_last_run():
    found = RetryPolicy(max_attempts=1).decide(1, SoftFailure(counted=False), NOW)
    assert (found.attempt, found.counted) == (1, False)


def test_a_run_beyond_the_last_is_given_up_counted_or_not():
    found = RetryPolicy().decide(5, SoftFailure("429", retry_max=2, counted=False), NOW)
    assert found == GiveUp("retries exhausted: 429", exhausted=True)


@pytest.mark.parametrize(
    "asked", [{}, {"retry_after": 0}, {"retry_after": 0.5}, {"retry_after": 1, "jitter": 0}]
)
def test_a_try_that_is_not_counted_waits_at_least_a_second(asked):
    policy = RetryPolicy(first_delay=0, max_delay=0)
    assert policy.decide(1, SoftFailure(**asked, counted=False), NOW, random=LOWEST).delay == 1.0


@pytest.mark.parametrize("random", [None, LOWEST, HIGHEST])
def test_no_bound_brings_a_try_that_is_not_counted_under_a_second(random):
    error = SoftFailure(retry_after=9, jitter=1, counted=False)
    found = RetryPolicy(max_retry_after=0.2).decide(1, error, NOW, random=random)
    assert (found.delay, found.shortened_from) == (1.0, 9.0)


def test_a_message_is_given_up_where_its_next_run_would_begin_after_max_age():
    policy = RetryPolicy(max_age=HOUR)
    assert isinstance(policy.decide(1, KeyError("url"), NOW, first_failed_at=NOW - HOUR + 30), RetryAt)
    found = policy.decide(1, KeyError("url"), NOW, first_failed_at=NOW - HOUR + 29)
    assert found == GiveUp("older than max_age 3600 s: KeyError: 'url'", exhausted=True)


def test_max_age_counts_from_now_at_the_first_failure():
    policy = RetryPolicy(max_age=0.1, first_delay=0.1)
    assert policy.decide(1, KeyError("url"), NOW).delay == 0.1
    assert isinstance(policy.decide(2, KeyError("url"), NOW), GiveUp)


@pytest.mark.parametrize(
    "error", [SoftFailure(retry_after=7200), SoftFailure(retry_after=7200, counted=False)]
)
def test_max_age_bounds_what_a_failure_asks_for_counted_or_not(error):
    found = RetryPolicy(max_age=HOUR).decide(1, error, NOW, first_failed_at=NOW)
    assert found == GiveUp("older than max_age 3600 s: SoftFailure", exhausted=True)


def test_polling_ends_at_max_age():
    policy, now = RetryPolicy(max_age=10), NOW
    while isinstance(
        found := policy.decide(1, SoftFailure(counted=False), now, first_failed_at=NOW), RetryAt
    ):
        now += found.delay
    assert now == NOW + 10


def test_a_clock_that_went_back_makes_no_message_old():
    assert isinstance(
        RetryPolicy(max_age=60).decide(1, KeyError("url"), NOW, first_failed_at=NOW + HOUR), RetryAt
    )


# ── retry_on ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_most_specific_class_in_retry_on_wins():
    policy = RetryPolicy(
        retry_on={
            Exception: RetryPolicy(first_delay=1),
            OSError: RetryPolicy(first_delay=2),
            ConnectionError: RetryPolicy(first_delay=3),
        }
    )
    waits = [policy.decide(1, error, NOW).delay for error in (KeyError(), OSError(), ConnectionResetError())]
    assert waits == [1.0, 2.0, 3.0]
    assert policy.decide(1, SystemExit(), NOW).delay == 30.0


def test_of_two_parents_in_retry_on_the_one_named_first_wins():
    class Late(TimeoutError, LookupError):
        pass

    policy = RetryPolicy(retry_on={LookupError: GiveUp, TimeoutError: RetryPolicy(first_delay=5)})
    assert policy.decide(1, Late(), NOW).delay == 5.0


def test_give_up_in_retry_on_makes_an_error_hard():
    policy = RetryPolicy(retry_on={ValueError: GiveUp, KeyError: GiveUp("the order is broken")})
    assert policy.decide(1, ValueError("no"), NOW) == GiveUp("ValueError: no", hard=True)
    found = policy.decide(1, KeyError("url"), NOW)
    assert found == GiveUp("the order is broken: KeyError: 'url'", hard=True)
    assert isinstance(policy.decide(1, OSError(), NOW), RetryAt)


def test_a_policy_in_retry_on_brings_its_own_number_of_attempts():
    policy = RetryPolicy(
        retry_on={TimeoutError: RetryPolicy(max_attempts=2), OSError: RetryPolicy(max_attempts=9)}
    )
    assert isinstance(policy.decide(1, TimeoutError(), NOW), RetryAt)
    assert isinstance(policy.decide(2, TimeoutError(), NOW), GiveUp)
    assert isinstance(policy.decide(8, OSError(), NOW), RetryAt)
    assert isinstance(policy.decide(6, KeyError(), NOW), GiveUp)


def test_a_soft_failure_of_the_users_own_is_looked_up_in_retry_on_and_keeps_its_retry_after():
    class Busy(SoftFailure):
        pass

    policy = RetryPolicy(retry_on={Busy: RetryPolicy(first_delay=5, max_attempts=2, max_retry_after=60)})
    assert policy.decide(1, Busy("cards"), NOW).delay == 5.0
    found = policy.decide(1, Busy("cards", retry_after=90), NOW)
    assert (found.delay, found.shortened_from) == (60.0, 90.0)
    assert policy.decide(2, Busy("cards"), NOW) == GiveUp("retries exhausted: cards", exhausted=True)
    assert policy.decide(1, SoftFailure("other"), NOW).delay == 30.0


def test_a_policy_in_retry_on_keeps_the_bounds_that_it_does_not_name():
    outer = RetryPolicy(
        max_age=100, max_retry_after=50, retry_on={OSError: RetryPolicy(), KeyError: RetryPolicy(max_age=500)}
    )
    assert isinstance(outer.decide(1, OSError(), NOW, first_failed_at=NOW - 80), GiveUp)
    assert isinstance(outer.decide(1, KeyError(), NOW, first_failed_at=NOW - 80), RetryAt)

    class Busy(SoftFailure, OSError):
        pass

    assert outer.decide(1, Busy(retry_after=90), NOW).shortened_from == 90.0


@given(
    policies(),
    attempts,
    soft_failures(),
    st.floats(-1e9, 1e9),
    st.none() | st.integers(-5, 2**63 - 1),
    sources,
)
def test_p6_whatever_is_asked_the_decision_keeps_every_bound(policy, attempt, error, age, allowed, random):
    found = policy.decide(
        attempt, error, NOW, first_failed_at=NOW - age, attempts_allowed=allowed, random=random
    )
    if isinstance(found, GiveUp):
        assert found.exhausted
        assert found.reason
        return
    assert found.delay >= (0.0 if error.counted else 1.0)
    assert found.attempt == attempt + error.counted
    assert found.counted is error.counted
    assert error.retry_max != 0
    runs = policy.max_attempts if found.attempts_allowed is None else found.attempts_allowed
    assert found.attempt <= runs
    assert runs <= policy.cap or runs == policy.max_attempts
    if policy.max_age is not None:
        assert NOW - (NOW - age) + found.delay <= policy.max_age
    if error.retry_after is None and error.counted:
        assert found.delay <= policy.max_delay
    if error.retry_after is not None and policy.max_retry_after is not None:
        assert found.delay <= max(policy.max_retry_after, 0.0 if error.counted else 1.0)
    # Never early, unless the policy shortened it and the decision says so.
    if error.retry_after is not None and error.factor is None and found.shortened_from is None:
        assert found.delay >= error.retry_after
    if found.shortened_from is not None:
        assert found.delay < found.shortened_from


# ── In words, and on the road ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (RetryPolicy(), "6 tries: 30 s, 60 s, 120 s, 240 s, 300 s ± 50 %"),
        (RetryPolicy(jitter=0), "6 tries: 30 s, 60 s, 120 s, 240 s, 300 s"),
        (RetryPolicy(max_attempts=1), "1 try"),
        (RetryPolicy(max_attempts=2, jitter=0.07), "2 tries: 30 s ± 7 %"),
        (RetryPolicy(first_delay=0.2, max_attempts=5), "5 tries: 0.2 s, 0.4 s, 0.8 s, 1.6 s ± 50 %"),
        (RetryPolicy(first_delay=0.1, factor=3, max_attempts=4, jitter=0), "4 tries: 0.1 s, 0.3 s, 0.9 s"),
        (RetryPolicy(first_delay=0, jitter=0, max_attempts=3), "3 tries: 0 s, 0 s"),
        (
            RetryPolicy(first_delay=TEN_YEARS, max_delay=TEN_YEARS, max_attempts=2, jitter=0),
            "2 tries: 315360000 s",
        ),
        (RetryPolicy(max_attempts=20), "20 tries: 30 s, 60 s, 120 s, 240 s, then 300 s each ± 50 %"),
        (RetryPolicy(max_attempts=20, factor=1), "20 tries: 30 s each ± 50 %"),
        (
            RetryPolicy(max_attempts=2**63 - 1, first_delay=1, max_delay=86400, jitter=0),
            "9223372036854775807 tries: 1 s, 2 s, 4 s, 8 s, … 86400 s",
        ),
    ],
)
def test_a_policy_says_its_tries_and_waits_in_one_line(policy, words):
    assert str(policy) == words


@given(policies())
def test_any_policy_says_itself_in_one_short_line(policy):
    assert len(str(policy)) < 300
    assert "\n" not in str(policy)


@given(policies())
def test_the_numbers_of_a_policy_survive_the_road(policy):
    text = policy.to_header()
    assert RetryPolicy.from_header(text) == policy
    assert len(text.encode()) < 300


def test_a_header_is_compact_and_leaves_retry_on_to_the_code():
    policy = RetryPolicy(max_age=60, retry_on={ValueError: GiveUp})
    text = policy.to_header()
    assert text == (
        '{"first_delay":30.0,"factor":2.0,"jitter":0.5,"max_delay":300.0,"max_attempts":6,"max_age":60.0}'
    )
    assert RetryPolicy.from_header(text) == replace(policy, retry_on={})
    assert RetryPolicy.from_header(text, retry_on={KeyError: GiveUp}) == replace(
        policy, retry_on={KeyError: GiveUp}
    )


def test_a_header_of_a_later_version_is_read_for_what_is_known():
    numbers = json.loads(RetryPolicy(max_attempts=3).to_header())
    assert RetryPolicy.from_header(json.dumps(numbers | {"moon": "full"})) == RetryPolicy(max_attempts=3)


GOOD = json.loads(RetryPolicy().to_header())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "null",
        "[]",
        "{}",
        "6",
        '"first_delay"',
        "[" * 100_000,
        "9" * 5000,
        "\x00",
        "\ud800",
        *(json.dumps({name: value for name, value in GOOD.items() if name != left_out}) for left_out in GOOD),
        *(
            json.dumps(GOOD | {name: bad})
            for name in GOOD
            for bad in (-1, None, "30", True, [], float("nan"))
        ),
        json.dumps(GOOD | {"max_age": -1}),
        json.dumps(GOOD | {"attempts_cap": 0}),
        json.dumps(GOOD | {"first_delay": 301}),
        json.dumps(GOOD | {"max_attempts": 10**30}),
    ],
    ids=lambda text: ascii(text[:60]),
)
def test_a_header_that_no_policy_wrote_is_none(text):
    assert RetryPolicy.from_header(text) is None


@given(
    st.text() | st.dictionaries(st.sampled_from(sorted(GOOD)), st.integers() | st.floats()).map(json.dumps)
)
def test_no_header_text_raises(text):
    found = RetryPolicy.from_header(text)
    assert found is None or isinstance(found, RetryPolicy)


def test_a_wrong_retry_on_is_told_and_not_taken_for_a_wrong_header():
    with pytest.raises(ValueError, match=r"^retry_on="):
        RetryPolicy.from_header(RetryPolicy().to_header(), retry_on={ValueError: 3})


# ── describe ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Exits(Exception):
    def __str__(self):
        raise SystemExit("no words")


class Untextual(Exception):
    def __str__(self):
        return 7  # noqa: PLE0307  that is what is wrong with it


class Gone(HardFailure):
    pass


class Busy(SoftFailure):
    def __init__(self, service):
        self.service = service


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("url"), "KeyError: 'url'"),
        (ValueError(), "ValueError"),
        (ValueError("  \n"), "ValueError"),
        (OSError(2, "No such file"), "FileNotFoundError: [Errno 2] No such file"),
        (SoftFailure("the card service answered 503"), "the card service answered 503"),
        (SoftFailure(), "SoftFailure"),
        (Busy("cards"), "cards"),
        (HardFailure("410 gone"), "HardFailure: 410 gone"),
        (HardFailure(), "HardFailure"),
        (Gone("410"), "Gone: 410"),
        (SystemExit(1), "SystemExit: 1"),
        (Unspeakable(), "Unspeakable"),
        (Exits(), "Exits"),
        (Untextual(), "Untextual"),
        (ValueError("two\nlines\r\tand"), r"ValueError: two\nlines\r\tand"),
        (ValueError("a\x00b\x1b[31m\x85\x7f"), r"ValueError: a\x00b\x1b[31m\x85\x7f"),
        (ValueError("\u2028 \u202e \u2066 \ud800"), r"ValueError: \u2028 \u202e \u2066 \ud800"),
        (ValueError("größer als 5 €"), "ValueError: größer als 5 €"),
        (ExceptionGroup("many", [KeyError("a"), KeyError("b")]), "ExceptionGroup: many (2 sub-exceptions)"),
    ],
)
def test_an_error_is_told_in_one_line(error, words):
    assert describe(error) == words


def test_a_text_of_megabytes_is_told_by_its_beginning():
    line = describe(ValueError("x" * 10_000_000))
    assert len(line) == 500
    assert line.startswith("ValueError: xxx")
    assert line.endswith("x…")
    assert describe(SoftFailure("y" * 500)) == "y" * 500


@given(st.text(), st.sampled_from([ValueError, SoftFailure, HardFailure, SystemExit, KeyError]))
def test_any_error_is_one_line_of_utf8_with_at_most_500_characters(text, kind):
    line = describe(kind(text * 30))
    assert 0 < len(line) <= 500
    assert line.splitlines() == [line]
    assert {unicodedata.category(letter) for letter in line} & {"Cc", "Cs", "Zl", "Zp"} == set()
