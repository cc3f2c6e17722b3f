from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from leveret.pipeline.deadlines import Deadlines
from leveret.testing.fake_clock import FakeClock, FakeTimer


class CountingClock(FakeClock):
    """A fake clock that knows how many timers were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = 0

    def call_later(self, seconds: float, callback: Callable[[], object]) -> FakeTimer:
        self.timers += 1
        return super().call_later(seconds, callback)


def waiting() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def test_an_answer_that_comes_in_time_is_met_and_leaves_no_timer():
    clock = CountingClock()
    answer = waiting()
    met = asyncio.create_task(Deadlines(clock).met(answer, 10.0))
    await clock.advance(9.9)
    answer.set_result(None)
    assert await met is True
    assert clock.next_timer is None


async def test_an_answer_that_was_there_before_needs_no_timer():
    clock = CountingClock()
    answer = waiting()
    answer.set_result(None)
    assert await Deadlines(clock).met(answer, 10.0) is True
    assert clock.timers == 0


async def test_a_late_answer_is_cancelled_when_its_time_is_over_and_not_before():
    clock = CountingClock()
    answer = waiting()
    met = asyncio.create_task(Deadlines(clock).met(answer, 10.0))
    await clock.advance(9.999)
    assert not met.done()
    await clock.advance(0.001)
    assert await met is False
    assert answer.cancelled()


async def test_answers_that_are_given_as_long_share_one_timer():
    clock = CountingClock()
    deadlines = Deadlines(clock)
    answers = [waiting() for _ in range(100)]
    met = [asyncio.create_task(deadlines.met(answer, 10.0)) for answer in answers]
    await clock.advance(1.0)
    for answer in answers:
        answer.set_result(None)
    assert all([await each for each in met])
    assert clock.timers == 1
    assert clock.next_timer is None


async def test_each_ends_at_its_own_time_though_the_timer_was_set_for_another():
    clock = CountingClock()
    deadlines = Deadlines(clock)
    ended: dict[str, float] = {}

    async def wait(name: str, answer: asyncio.Future[None], limit: float) -> None:
        assert await deadlines.met(answer, limit) is (name == "answered")
        ended[name] = clock.monotonic()

    early = waiting()
    tasks = [asyncio.create_task(wait("answered", early, 10.0))]
    await clock.advance(3.0)
    tasks.append(asyncio.create_task(wait("from 3", waiting(), 10.0)))
    tasks.append(asyncio.create_task(wait("impatient", waiting(), 0.5)))
    await clock.advance(4.0)
    tasks.append(asyncio.create_task(wait("from 7", waiting(), 10.0)))
    early.set_result(None)
    await clock.advance(60.0)
    await asyncio.gather(*tasks)
    assert ended == pytest.approx({"answered": 7.0, "impatient": 3.5, "from 3": 13.0, "from 7": 17.0})


async def test_what_an_answer_raises_reaches_its_caller():
    clock = CountingClock()
    answer = waiting()
    met = asyncio.create_task(Deadlines(clock).met(answer, 10.0))
    await clock.advance(1.0)
    answer.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await met
    assert clock.next_timer is None


async def test_a_caller_who_is_cancelled_is_not_told_that_it_was_late():
    clock = CountingClock()
    deadlines = Deadlines(clock)
    neighbour = waiting()
    cancelled = asyncio.create_task(deadlines.met(waiting(), 10.0))
    other = asyncio.create_task(deadlines.met(neighbour, 10.0))
    await clock.advance(1.0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert not neighbour.done()
    neighbour.set_result(None)
    assert await other is True


async def test_a_bound_answer_is_cancelled_when_it_is_late_and_not_once_it_is_released():
    clock = CountingClock()
    deadlines = Deadlines(clock)
    late, early = waiting(), waiting()
    deadlines.bound(late, 10.0)
    deadlines.bound(early, 10.0)
    deadlines.release(early, 10.0)
    await clock.advance(9.9)
    assert not late.done()
    await clock.advance(0.1)
    deadlines.release(late, 10.0)
    assert (late.cancelled(), early.done()) == (True, False)
    assert clock.next_timer is None
    assert clock.timers == 1
