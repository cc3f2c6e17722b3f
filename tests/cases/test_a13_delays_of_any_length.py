"""A13: a delay is kept exactly, however long it is, or refused; it never wraps into an early delivery.

Brokers that delay by themselves count milliseconds in 31 or 32 bits: 25 days or 50 days become "at once". Here a delay
of a day and a second, of 25 and 40 days, of 2**32 milliseconds and of ten years ends at its own millisecond.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from leveret import Context, Leveret, RetryPolicy, SoftFailure
from leveret.testing import TestLeveret

DAY = 86_400
MILLISECOND = 0.001
HOUR = 3600.0

delays = pytest.mark.parametrize(
    "delay",
    [DAY + 1, 25 * DAY, 40 * DAY, 2**31 / 1000, 4294967.296, 10 * 365 * DAY],
    ids=["a day and a second", "25 days", "40 days", "2^31 ms", "2^32 ms", "ten years"],
)


async def pass_time(t: TestLeveret, seconds: float) -> None:
    """Let time pass; years pass in a jump of the wall clock, which leaves out 87,600 hourly looks."""
    if seconds > 100 * DAY:
        t.clock.jump(seconds - 4 * HOUR)
        seconds = 4 * HOUR
    await t.advance(seconds=seconds)


@delays
@pytest.mark.parametrize("kind", ["retry", "publish", "policy"])
async def test_a13_a_delay_ends_at_its_own_millisecond_and_not_before(delay, kind):
    app = Leveret("shop")
    ran = []

    @app.worker(
        "order.placed", retry=RetryPolicy(first_delay=delay, max_delay=delay) if kind == "policy" else None
    )
    async def charge(ctx: Context) -> None:
        ran.append(ctx.attempt)
        if kind != "publish" and ctx.attempt == 1:
            raise SoftFailure("later", retry_after=delay if kind == "retry" else None)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {}, delay=delay if kind == "publish" else None)
        before = [] if kind == "publish" else [1]
        [entry] = t.waiting()
        assert entry.due_in == pytest.approx(delay, abs=1e-6)
        await pass_time(t, delay - MILLISECOND)
        assert ran == before
        await t.advance(seconds=MILLISECOND)
        assert ran == ([1] if kind == "publish" else [1, 2])


async def test_a13_a_delay_of_40_days_goes_on_through_restarts():
    app = Leveret("shop")
    ran = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise SoftFailure("later", retry_after=40 * DAY)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        for _ in range(4):
            await t.advance(days=9)
            await t.crash()
        await t.advance(days=4, seconds=-1)
        assert ran == [1]
        await t.advance(seconds=1)
        assert ran == [1, 2]


@pytest.mark.parametrize("delay", [2**63, float(2**63), Decimal(2**63), timedelta.max, 10**400])
async def test_a13_what_nobody_can_mean_is_refused_before_anything_is_sent(delay):
    app = Leveret("shop")

    @app.worker("order.placed")
    async def charge() -> None: ...

    async with TestLeveret(app) as t:
        sent = []
        t.broker.on_publish.append(lambda message, queues: sent.append(message))
        with pytest.raises(ValueError, match=r"delay=.*: expected at most a thousand years"):
            await app.publish("order.placed", {}, delay=delay)
        with pytest.raises(ValueError, match=r"retry_after=.*: expected at most a thousand years"):
            SoftFailure("later", retry_after=delay)
        with pytest.raises(ValueError, match=r"first_delay=.*: expected at most a thousand years"):
            RetryPolicy(first_delay=delay, max_delay=delay)
        assert (sent, t.waiting()) == ([], [])
