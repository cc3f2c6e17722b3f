"""C05: a crash between "confirmed" and "released" leaves one extra copy at most, and never none.

There are two such places: the republished retry is confirmed and its row not yet deleted; the envelope is confirmed and
the original not yet acked. Copies bear one message id, one retry id and one attempt, and the store counts one attempt,
not two. (Real kills at every hand-over point are tried by the torture tests.)
"""

from __future__ import annotations

import asyncio

import pytest

from leveret import Context, Leveret, RetryPolicy, SoftFailure
from leveret.core import handover
from leveret.testing import TestLeveret


def stop_at(t: TestLeveret, point: str) -> None:
    """Nothing goes on from *point*, the first time it is reached."""

    async def hang(here: str, message_id: str | None) -> None:
        if here == point and t.handover is not None:
            t.handover = None
            await asyncio.get_running_loop().create_future()

    t.handover = hang


@pytest.fixture
def runs():
    return []


@pytest.fixture
def app(runs):
    app = Leveret("shop", retry=RetryPolicy(first_delay=10, factor=1, max_attempts=4))

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs.append((ctx.message_id, ctx.retry_id, ctx.attempt))
        raise SoftFailure("503")

    return app


async def test_c05_between_republish_and_delete_a_crash_brings_the_retry_once_more_under_the_same_ids(
    app, runs
):
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {})
        stop_at(t, handover.REPUBLISH_CONFIRMED)
        await t.advance(seconds=10)
        assert t.handover is None
        await t.crash()
        second = [run for run in runs if run[2] == 2]
        assert 1 <= len(second) <= 2
        assert {run[:2] for run in runs} == {(id, t.waiting()[0].retry_id)}
        # Both copies have failed: that is one failure of one attempt.
        [entry] = t.waiting("charge")
        assert (entry.attempt, entry.failure) == (2, 2)
        await t.run_until_idle()
        assert [run[2] for run in runs if run[2] > 2] == [3, 4]
        [letter] = t.dead("charge")
        assert (letter.message_id, letter.attempts) == (id, 4)


async def test_c05_between_envelope_and_ack_a_crash_runs_the_attempt_once_more_and_counts_it_once(app, runs):
    async with TestLeveret(app) as t:
        stop_at(t, handover.ENVELOPE_CONFIRMED)
        id = await t.publish("order.placed", {})
        assert t.handover is None
        await t.advance(seconds=3)
        await t.crash()
        first = [run for run in runs if run[2] == 1]
        assert 1 <= len(first) <= 2
        # The copy's failure is the one that is stored already, and does not move it.
        [entry] = t.waiting("charge")
        assert (entry.attempt, entry.failure, entry.due_in) == (1, 1, 7)
        await t.run_until_idle()
        assert [run[2] for run in runs if run[2] > 1] == [2, 3, 4]
        assert {run[0] for run in runs} == {id}
        assert len({run[1] for run in runs}) == 1
        [letter] = t.dead("charge")
        assert letter.attempts == 4


@pytest.mark.parametrize("point", [handover.STORED, handover.RETRY_RECEIVED, handover.TAKEN_WHEN_DUE])
async def test_c05_elsewhere_in_the_retry_worker_a_crash_makes_no_copy_at_all(app, runs, point):
    async with TestLeveret(app) as t:
        stop_at(t, point)
        await t.publish("order.placed", {})
        await t.advance(seconds=10)
        assert t.handover is None
        await t.crash()
        await t.run_until_idle()
        assert [run[2] for run in runs] == [1, 2, 3, 4]
