"""The loop of the simulator: what a kill, a stop and the order of things mean on it."""

from __future__ import annotations

import asyncio
import random

import pytest

from leveret.simulate.loop import Body, Nothing, VirtualClock, VirtualLoop
from leveret.simulate.run import quietly


@pytest.fixture
def loop():
    with quietly():
        loop = VirtualLoop(random.Random(1))
        yield loop
        loop.close()


def test_a_year_passes_at_once(loop: VirtualLoop):
    async def sleep() -> float:
        clock = VirtualClock(loop, start=1000.0)
        await clock.sleep(86400 * 365)
        return clock.now()

    assert loop.run_until_complete(sleep()) == 1000.0 + 86400 * 365


def test_nothing_of_a_dead_process_runs_any_more_not_even_a_finally(loop: VirtualLoop):
    seen: list[str] = []

    async def work() -> None:
        try:
            seen.append("began")
            await asyncio.sleep(10)
            seen.append("went on")
        finally:
            seen.append("cleaned up")

    async def kill() -> None:
        body = Body("victim")
        loop.start(body, work())
        await asyncio.sleep(1)
        body.alive = False
        await asyncio.sleep(60)

    loop.run_until_complete(kill())
    assert seen == ["began"]


def test_a_stopped_process_does_what_it_missed_once_it_goes_on_and_in_its_order(loop: VirtualLoop):
    seen: list[tuple[str, float]] = []

    async def tick(name: str, after: float) -> None:
        await asyncio.sleep(after)
        seen.append((name, loop.time()))

    async def stop() -> None:
        body = Body("holder")
        loop.start(body, tick("first", 2))
        loop.start(body, tick("second", 3))
        await asyncio.sleep(1)
        body.stopped = True
        await asyncio.sleep(9)
        assert seen == []
        loop.go_on(body)
        await asyncio.sleep(1)

    loop.run_until_complete(stop())
    assert seen == [("first", 10.0), ("second", 10.0)]


def test_within_a_process_calls_keep_their_order_and_among_processes_it_is_drawn():
    def orders(seed: int) -> list[str]:
        loop = VirtualLoop(random.Random(seed))
        seen: list[str] = []

        async def calls(name: str) -> None:
            for number in range(2):
                loop.call_soon(seen.append, f"{name}{number}")

        async def all_of_them() -> None:
            for name in "abc":
                loop.start(Body(name), calls(name))
            await asyncio.sleep(1)

        loop.run_until_complete(all_of_them())
        loop.close()
        return seen

    drawn = {tuple(orders(seed)) for seed in range(20)}
    assert len(drawn) > 1
    for seen in drawn:
        assert all(seen.index(f"{name}0") < seen.index(f"{name}1") for name in "abc")
    assert orders(3) == orders(3)


def test_a_wait_that_nothing_can_end_is_told_instead_of_hanging(loop: VirtualLoop):
    async def wait() -> None:
        await loop.create_future()

    with pytest.raises(Nothing):
        loop.run_until_complete(wait())


def test_a_process_that_ends_with_an_error_is_complained_of(loop: VirtualLoop):
    async def break_down() -> None:
        raise KeyError("shelf")

    async def look() -> None:
        loop.start(Body("broken"), break_down()).add_done_callback(loop.look_at)
        await asyncio.sleep(1)

    loop.run_until_complete(look())
    assert loop.complaints == ["a process ended with KeyError('shelf')"]


def test_a_wall_clock_jumps_and_the_monotonic_one_does_not(loop: VirtualLoop):
    clock = VirtualClock(loop, start=100.0)
    clock.jump(-40)
    assert (clock.now(), clock.monotonic()) == (60.0, 0.0)
