from __future__ import annotations

import asyncio
import contextvars

import pytest

from leveret.testing.fake_clock import FakeClock


async def test_time_stands_still_until_it_is_moved():
    clock = FakeClock(start=100.0)
    before = clock.now(), clock.monotonic()
    await asyncio.sleep(0)
    assert (clock.now(), clock.monotonic()) == before


async def test_advance_moves_both_clocks_and_jump_the_wall_clock_alone():
    clock = FakeClock(start=100.0)
    monotonic = clock.monotonic()
    await clock.advance(5)
    assert (clock.now(), clock.monotonic()) == (105.0, monotonic + 5)
    clock.jump(-3600)
    assert (clock.now(), clock.monotonic()) == (105.0 - 3600, monotonic + 5)


async def test_timers_ring_in_the_order_of_their_time_each_at_its_own():
    clock = FakeClock(start=0.0)
    rung = []
    for seconds in (3.0, 1.0, 2.0, 1.0):
        clock.call_later(seconds, lambda seconds=seconds: rung.append((seconds, clock.now())))
    await clock.advance(2.5)
    assert rung == [(1.0, 1.0), (1.0, 1.0), (2.0, 2.0)]
    await clock.advance(0.5)
    assert rung[3:] == [(3.0, 3.0)]


async def test_what_a_timer_sets_off_happens_at_its_time():
    clock = FakeClock(start=0.0)
    seen = []

    async def nap_twice():
        await clock.sleep(1)
        seen.append(clock.now())
        await clock.sleep(1)
        seen.append(clock.now())

    nap = asyncio.create_task(nap_twice())
    await clock.advance(10)
    await nap
    assert seen == [1.0, 2.0]


async def test_ten_steps_of_a_tenth_are_a_second():
    clock = FakeClock()
    nap = asyncio.create_task(clock.sleep(1.0))
    for _ in range(10):
        await clock.advance(0.1)
    assert nap.done()


async def test_a_cancelled_timer_does_not_ring_even_at_the_last_moment():
    clock = FakeClock()
    rung = []
    second = clock.call_later(1, lambda: rung.append("second"))
    second.cancel()
    timers = []

    def cancel():
        timers[0].cancel()

    clock.call_later(1, cancel)
    timers.append(clock.call_later(1, lambda: rung.append("third")))
    await clock.advance(2)
    assert rung == []


async def test_a_cancelled_sleep_leaves_no_timer_behind():
    clock = FakeClock()
    nap = asyncio.create_task(clock.sleep(5))
    await asyncio.sleep(0)
    assert clock.next_timer == 5
    nap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await nap
    assert clock.next_timer is None


async def test_the_next_timer_is_told_in_seconds_from_now():
    clock = FakeClock()
    assert clock.next_timer is None
    clock.call_later(7, print)
    clock.call_later(3, print)
    await clock.advance(1)
    assert clock.next_timer == 2


async def test_sleep_of_nothing_lets_others_run_and_takes_no_time():
    clock = FakeClock()
    ran = []
    asyncio.get_running_loop().call_soon(ran.append, True)
    await clock.sleep(0)
    assert ran == [True]
    assert clock.next_timer is None


async def test_long_chains_of_work_have_settled_before_time_goes_on():
    clock = FakeClock(start=0.0)
    finished_at = []

    async def long_work():
        await clock.sleep(1)
        for _ in range(500):
            await asyncio.sleep(0)
        finished_at.append(clock.now())

    work = asyncio.create_task(long_work())
    clock.call_later(2, lambda: None)
    await clock.advance(2)
    assert finished_at == [1.0]
    await work


async def test_settle_is_awaited_after_each_step():
    settled_at = []
    clock = FakeClock(start=0.0)

    async def settle():
        settled_at.append(clock.now())

    clock.settle = settle
    clock.call_later(1, lambda: None)
    await clock.advance(2)
    assert settled_at == [0.0, 1.0, 2.0]


async def test_a_task_that_spins_does_not_stop_time():
    clock = FakeClock()
    stop = asyncio.Event()

    async def spin():
        while not stop.is_set():
            await clock.sleep(0)

    spinning = asyncio.create_task(spin())
    clock.call_later(1, stop.set)
    await clock.advance(1)
    await spinning
    assert stop.is_set()


async def test_a_timer_sees_the_context_of_whoever_asked_for_it():
    clock = FakeClock()
    who = contextvars.ContextVar("who", default="nobody")
    seen = []
    token = who.set("asked")
    clock.call_later(1, lambda: seen.append(who.get()))
    who.reset(token)
    await clock.advance(1)
    assert seen == ["asked"]


async def test_time_never_goes_back():
    with pytest.raises(ValueError, match="jump"):
        await FakeClock().advance(-1)
    with pytest.raises(ValueError, match="nan"):
        await FakeClock().advance(float("nan"))


def test_timers_of_a_loop_that_is_gone_ring_nowhere():
    clock = FakeClock()
    rung = []

    async def ask():
        clock.call_later(1, lambda: rung.append(True))

    asyncio.run(ask())
    asyncio.run(clock.advance(2))
    assert rung == []
    assert clock.next_timer is None
