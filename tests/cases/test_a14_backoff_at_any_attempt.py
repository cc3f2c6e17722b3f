"""A14: no attempt number makes a backoff overflow: every one yields a delay between 0 and the cap.

Multiplying before clamping ends the chain of retries at the 43rd attempt (a timedelta) or the 1,024th (a float), and
with it the job. Tried: attempts up to 10,000, growing, constant and shrinking delays, the least and the most jitter.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from leveret import Context, Leveret, RetryPolicy, SoftFailure
from leveret.testing import TestLeveret

CAP = 3600.0


class Always:
    """Randomness that always says the same."""

    def __init__(self, value: float) -> None:
        self._value = value

    def random(self) -> float:
        return self._value


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("factor", [0, 0.5, 1, 2, 5, 100, 1e308])
def test_a14_10_000_attempts_of_any_factor_stay_within_0_and_the_cap(factor, jitter):
    policy = RetryPolicy(first_delay=30, factor=factor, jitter=jitter, max_delay=CAP, max_attempts=20_000)
    sources = [None, Always(0.0), Always(1 - 2**-53), random.Random(14)]
    for attempt in range(10_001):
        for source in sources:
            assert 0 <= policy.delay(attempt, random=source) <= CAP, attempt
    assert policy.delay(1) == 30
    assert policy.delay(10_000) == (CAP if factor > 1 else 30 if factor == 1 else policy.delay(5_000))


def test_a14_attempts_count_from_1_and_a_delay_before_any_is_the_first_one():
    assert RetryPolicy().delay(0) == RetryPolicy().delay(1) == 30


async def test_a14_a_message_that_fails_1_100_times_comes_back_1_099_times_and_is_dead_then():
    app = Leveret("shop", retry=RetryPolicy(first_delay=1, factor=2, max_delay=CAP, max_attempts=1_100))
    waits = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        waits.append(t.clock.monotonic())
        raise SoftFailure("503")

    async with TestLeveret(app, jitter=True) as t:
        await t.publish("order.placed", {})
        await t.run_until_idle()
        gaps = [later - earlier for earlier, later in pairwise(waits)]
        assert len(waits) == 1_100
        assert 0 <= min(gaps) <= max(gaps) <= CAP + 1e-6
        [letter] = t.dead()
        assert (letter.attempts, letter.reason) == (1_100, "retries exhausted: 503")
