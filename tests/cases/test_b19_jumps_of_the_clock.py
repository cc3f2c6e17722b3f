"""B19: the wall clock may be set back or forward, and the machine may sleep; nothing hangs, bursts or comes twice.

Time is slept on a monotonic clock that goes on while the machine is suspended. A retry that waits for 10 s comes after
10 s when the wall clock is set back an hour meanwhile, and once when it is set forward an hour. What is not due within
the next minute goes by the store's wall clock: set forward, it is overdue and goes at the rate of what is overdue.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, Message, SoftFailure
from leveret.runtime import world
from leveret.runtime.world import SystemClock

HOUR = 3600.0

stores = pytest.mark.parametrize("store", ["memory", "sqlite"])


@pytest.fixture
def scene(store, tmp_path):
    return Scene(tmp_path / "leveret.db" if store == "sqlite" else None)


def suspend(scene: Scene, seconds: float) -> None:
    """The machine sleeps: both clocks go on, and no timer rings."""
    scene.clock._elapsed += seconds


def failing_once(scene: Scene):
    """An app whose messages wait as long as they say, and when each came back, by the monotonic clock."""
    app = scene.host(Leveret("shop"))
    back: list[float] = []

    @app.worker("order.placed", prefetch=1000)
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=order["wait"])
        back.append(scene.clock.monotonic())

    return app, back


@stores
@pytest.mark.parametrize("jump", [-HOUR, HOUR, -365 * 24 * HOUR, 365 * 24 * HOUR])
async def test_b19_a_retry_within_the_minute_comes_after_its_10_seconds_wherever_the_wall_clock_goes(
    scene, jump
):
    app, back = failing_once(scene)
    async with app.running():
        await app.publish("order.placed", {"wait": 10})
        await scene.advance(3)
        scene.clock.jump(jump)
        await scene.advance(6.9)
        assert back == []
        await scene.advance(0.2)
        assert back == [pytest.approx(10, abs=0.01)]
        await scene.advance(60)
        assert len(back) == 1
        assert await app.counts() == (0, 0, 0, 0)


@stores
async def test_b19_a_clock_that_goes_back_and_forth_brings_each_retry_once(scene):
    app, back = failing_once(scene)
    async with app.running():
        for wait in range(1, 121):
            await app.publish("order.placed", {"wait": wait})
        for jump in (-HOUR, HOUR, HOUR, -HOUR, -10, 10):
            await scene.advance(15)
            scene.clock.jump(jump)
        await scene.advance(60)
        assert len(back) == 120
        assert await app.counts() == (0, 0, 0, 0)


@stores
async def test_b19_what_an_hour_forward_makes_overdue_goes_at_its_rate_and_no_faster(scene):
    app, back = failing_once(scene)
    async with app.running():
        # Beyond the minute that is looked ahead, so that the store's clock decides.
        await app.publish_many(Message("order.placed", {"wait": 600 + number}) for number in range(2_500))
        await scene.advance(1)
        scene.clock.jump(2 * HOUR)
        await scene.advance(100)
        assert len(back) == 2_500
        assert back[-1] - back[0] == pytest.approx(2.5, abs=0.3)
        in_each_tenth = Counter(round(moment - back[0], 6) // 0.1 for moment in back)
        assert max(in_each_tenth.values()) <= 200


@stores
async def test_b19_after_a_suspended_hour_what_fell_due_meanwhile_comes_once(scene):
    app, back = failing_once(scene)
    async with app.running():
        await app.publish("order.placed", {"wait": 10})
        await app.publish("order.placed", {"wait": HOUR + 100})
        await scene.advance(3)
        suspend(scene, HOUR)
        # The lease ran out meanwhile; it is taken again first.
        await scene.advance(10)
        assert len(back) == 1
        await scene.advance(100)
        assert len(back) == 2
        assert back[1] == pytest.approx(HOUR + 100, abs=1)
        assert await app.counts() == (0, 0, 0, 0)


async def test_b19_a_long_timer_of_the_system_notices_that_the_machine_was_suspended(monkeypatch):
    monkeypatch.setattr(world, "LOOK_AGAIN", 0.01)
    clock = SystemClock()
    asleep = 0.0
    monotonic = SystemClock.monotonic
    monkeypatch.setattr(SystemClock, "monotonic", lambda self: monotonic(self) + asleep)
    rung = asyncio.Event()
    timer = clock.call_later(HOUR, rung.set)
    nap = asyncio.create_task(clock.sleep(HOUR))
    await asyncio.sleep(0)
    assert not rung.is_set()
    asleep = HOUR
    await asyncio.wait_for(asyncio.gather(rung.wait(), nap), 5)
    timer.cancel()
