"""C18: the delay is kept by the store, at each failure anew; no header that travels can lose or negate it.

One message fails five times with 2 s each: the gaps between its runs are 2 s each.
"""

from __future__ import annotations

import pytest

from leveret import Context, Leveret, RetryPolicy, SoftFailure
from leveret.testing import TestLeveret


@pytest.mark.parametrize(
    ("by", "counted"), [("the failure", True), ("the failure", False), ("the policy", True)]
)
async def test_c18_five_failures_of_2_seconds_make_five_gaps_of_2_seconds(by, counted):
    app = Leveret(
        "shop", retry=RetryPolicy(first_delay=2 if by == "the policy" else 30, factor=1, jitter=0.5)
    )
    runs: list[float] = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs.append(t.clock.monotonic())
        if len(runs) <= 5:
            raise SoftFailure("503", retry_after=2 if by == "the failure" else None, counted=counted)

    # A given retry_after is exact with jitter on, too; the policy's own delays are where it is off.
    async with TestLeveret(app, jitter=by == "the failure") as t:
        await t.publish("order.placed", {})
        await t.run_until_idle()
        assert len(runs) == 6
        assert runs == pytest.approx([0, 2, 4, 6, 8, 10], abs=1e-5)


async def test_c18_a_crash_in_every_gap_changes_none_of_them():
    app = Leveret("shop")
    runs: list[float] = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs.append(t.clock.monotonic())
        if ctx.attempt <= 5:
            raise SoftFailure("503", retry_after=2)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        for _ in range(5):
            await t.advance(seconds=1)
            await t.crash()
            await t.advance(seconds=1)
        assert runs == pytest.approx([0, 2, 4, 6, 8, 10], abs=1e-5)
