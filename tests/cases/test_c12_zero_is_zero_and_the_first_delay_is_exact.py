"""C12: 0 means 0, the first failure waits for exactly the base delay, and nothing is shortened in silence.

A default that is chosen by truth makes 0 a half minute; an exponent that starts at -1 halves the first delay; a cap
turns an hour that was asked for into five minutes. What is no duration is refused where it is given.
"""

from __future__ import annotations

import logging
import math
from datetime import timedelta
from decimal import Decimal

import pytest

from leveret import Context, Leveret, RetryPolicy, SoftFailure
from leveret.testing import TestLeveret


def failing_once(error: SoftFailure, policy: RetryPolicy | None = None) -> Leveret:
    app = Leveret("shop", retry=policy or RetryPolicy())

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise error

    return app


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, Decimal(0), timedelta(0)])
@pytest.mark.parametrize("where", ["retry_after", "first_delay"])
async def test_c12_a_delay_of_0_is_now(where, zero):
    policy = RetryPolicy(first_delay=zero) if where == "first_delay" else None
    app = failing_once(SoftFailure("503", retry_after=zero if where == "retry_after" else None), policy)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert [run.outcome for run in t.runs()] == ["soft", "done"]
        assert t.clock.monotonic() == 0


@pytest.mark.parametrize("zero", [0, 0.0, Decimal(0), timedelta(0)])
async def test_c12_a_publish_with_a_delay_of_0_is_handled_now(zero):
    app = Leveret("shop")

    @app.worker("order.placed")
    async def charge() -> None: ...

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {}, delay=zero)
        assert [run.outcome for run in t.runs()] == ["done"]


@pytest.mark.parametrize("by", ["retry_max", "max_attempts"])
async def test_c12_no_retries_means_straight_to_the_dead_letters(by):
    policy = RetryPolicy(max_attempts=1) if by == "max_attempts" else None
    app = failing_once(SoftFailure("503", retry_max=0 if by == "retry_max" else None), policy)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        [letter] = t.dead("charge")
        assert (letter.attempts, letter.reason) == (1, "retries exhausted: 503")
        assert t.waiting() == []


@pytest.mark.parametrize("short", [0.001, Decimal("0.001"), timedelta(milliseconds=1)])
async def test_c12_a_millisecond_is_a_millisecond(short):
    async with TestLeveret(failing_once(SoftFailure("503", retry_after=short))) as t:
        await t.publish("order.placed", {})
        [entry] = t.waiting()
        assert entry.due_in == 0.001
        await t.advance(seconds=0.001)
        assert [run.outcome for run in t.runs()] == ["soft", "done"]


async def test_c12_the_first_failure_waits_for_the_base_delay_itself():
    async with TestLeveret(failing_once(SoftFailure("503"), RetryPolicy(first_delay=30))) as t:
        await t.publish("order.placed", {})
        [entry] = t.waiting()
        assert (entry.attempt, entry.due_in) == (1, 30.0)


@pytest.mark.parametrize(
    "value", [-5, -0.001, math.nan, math.inf, -math.inf, "30", True, None, [], Decimal("NaN")]
)
async def test_c12_what_is_no_duration_is_refused_where_it_is_given(value):
    app = failing_once(SoftFailure("503", retry_after=60))
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        sent = []
        t.broker.on_publish.append(lambda message, queues: sent.append(message))
        if value is not None:
            with pytest.raises(ValueError, match="retry_after="):
                SoftFailure("503", retry_after=value)
            with pytest.raises(ValueError, match="delay="):
                await app.publish("order.placed", {}, delay=value)
            with pytest.raises(ValueError, match="expiration="):
                await app.publish("order.placed", {}, expiration=value)
            with pytest.raises(ValueError, match="timeout="):
                await app.publish("order.placed", {}, timeout=value)
            with pytest.raises(ValueError, match="after="):
                await app.retries.reschedule(worker="charge", after=value)
        with pytest.raises(ValueError, match="first_delay="):
            RetryPolicy(first_delay=value)
        with pytest.raises(ValueError, match="max_delay="):
            RetryPolicy(max_delay=value)
        assert sent == []
        assert [entry.due_in for entry in t.waiting()] == [60]


async def test_c12_the_policys_own_cap_does_not_touch_an_hour_that_was_asked_for():
    app = failing_once(SoftFailure("503", retry_after=3600), RetryPolicy(max_delay=300))
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert [entry.due_in for entry in t.waiting()] == [3600]


async def test_c12_an_hour_that_the_policy_bounds_is_shortened_and_that_is_logged(caplog):
    caplog.set_level(logging.INFO, "leveret")
    app = failing_once(SoftFailure("503", retry_after=3600), RetryPolicy(max_retry_after=300))
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert [entry.due_in for entry in t.waiting()] == [300]
        [line] = [record.getMessage() for record in caplog.records if "again in" in record.getMessage()]
        assert "again in 300 s" in line
        assert "3600 s were asked for" in line
        assert "max_retry_after" in line
