"""B22: a message that never succeeds is run as often as its policy says, and never in a hot loop.

A handler that always fails with three retries allowed runs four times. A handler that takes its process down is
started five times. While the store is away no delayed retry is possible, and the message still is not run again and
again: it waits, at most one redelivery a second.
"""

from __future__ import annotations

import asyncio

import pytest

from leveret import Context, HardFailure, Leveret, RetryPolicy, SoftFailure
from leveret.core.errors import StoreUnavailable
from leveret.stores.memory import MemoryStore
from leveret.testing import TestLeveret


@pytest.mark.parametrize("by", ["the policy", "the failure"])
async def test_b22_with_three_retries_a_handler_that_always_fails_runs_four_times(by):
    app = Leveret("shop", retry=RetryPolicy(max_attempts=4 if by == "the policy" else 9))
    runs = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise SoftFailure("503", retry_max=None if by == "the policy" else 3)

    async with TestLeveret(app, jitter=True) as t:
        await t.publish("order.placed", {})
        await t.run_until_idle()
        assert runs == [1, 2, 3, 4]
        [letter] = t.dead("charge")
        assert (letter.ending, letter.attempts, letter.reason) == (
            "retries exhausted",
            4,
            "retries exhausted: 503",
        )


@pytest.mark.parametrize("prefetch", [10, 1])
async def test_b22_a_handler_that_takes_its_process_down_is_started_five_times(prefetch):
    app = Leveret("shop")
    starts = 0
    down = asyncio.Event()

    @app.worker("order.placed", prefetch=prefetch)
    async def charge(ctx: Context) -> None:
        nonlocal starts
        starts += 1
        down.set()
        await t.clock.sleep(1)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        for _ in range(20):
            if t.dead():
                break
            if down.is_set():
                down.clear()
                await t.crash()
            else:
                # Whoever looks for suspects does so by the clock.
                await t.advance(seconds=0.1)
        assert starts == 5
        [letter] = t.dead("charge")
        assert letter.ending == "worker died"
        assert "started 5 times" in letter.reason


async def test_b22_while_the_store_is_away_the_message_is_not_run_again(monkeypatch):
    app = Leveret("shop")
    runs = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs.append(t.clock.monotonic())
        if len(runs) == 1:
            raise SoftFailure("503", retry_after=5)

    async def away(*arguments, **options):
        raise StoreUnavailable("the store is away")

    async with TestLeveret(app) as t:
        taken = []
        t.broker.on_publish.append(lambda message, queues: taken.append(queues))
        with monkeypatch.context() as patch:
            for name in ("put", "upcoming", "take", "asked"):
                patch.setattr(MemoryStore, name, away)
            await t.publish("order.placed", {})
            await t.advance(minutes=5)
            assert len(runs) == 1
            # The envelope is where it was: in its queue, not stored, not acked.
            assert sum(queue.ready + queue.unsettled for queue in t.broker.snapshot().values()) == 1
            assert sum("shop.charge" in queues for queues in taken) == 1
        await t.advance(minutes=1)
        assert len(runs) == 2
        assert t.waiting() == t.dead() == []


async def test_b22_a_refused_dead_letter_is_sent_again_with_growing_pauses_and_its_handler_is_not():
    app = Leveret("shop")
    runs = []

    @app.worker("order.placed")
    async def charge() -> None:
        runs.append(t.clock.monotonic())
        raise HardFailure("410")

    async with TestLeveret(app) as t:
        await app.publish("order.placed", {})
        t.broker.refuse_next(6)
        await t.advance(seconds=60)
        assert t.dead() == []
        await t.advance(seconds=2)
        assert len(t.dead("charge")) == len(runs) == 1
