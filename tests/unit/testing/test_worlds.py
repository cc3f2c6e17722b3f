from __future__ import annotations

import uuid

import pytest

from leveret.testing.fake_clock import FakeClock
from leveret.testing.worlds import fake_world


def test_the_same_seed_makes_the_same_world():
    one, same, other = fake_world(1), fake_world(1), fake_world(2)
    assert [one.new_id() for _ in range(3)] == [same.new_id() for _ in range(3)]
    assert one.random.random() == same.random.random()
    assert one.new_id() != other.new_id()


def test_one_more_random_number_changes_no_id():
    one, same = fake_world(1), fake_world(1)
    one.random.random()
    assert one.new_id() == same.new_id()


def test_an_id_is_a_uuid():
    assert uuid.UUID(fake_world().new_id()).version == 4


def test_a_world_has_the_clock_it_was_given():
    clock = FakeClock()
    assert fake_world(clock=clock).clock is clock
    assert isinstance(fake_world().clock, FakeClock)


async def test_threads_run_a_call_at_once_and_hand_on_what_it_gives():
    threads = fake_world().threads(4, "handlers")
    ran = []
    answer = threads.run(lambda: ran.append(True) or "done")
    assert ran == [True]
    assert await answer == "done"


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), RecursionError()])
async def test_threads_hand_on_what_a_call_raises(raised):
    def call():
        raise raised

    answer = fake_world().threads(1, "handlers").run(call)
    with pytest.raises(type(raised)) as caught:
        await answer
    assert caught.value is raised


async def test_a_call_that_raises_stop_iteration_is_no_end_of_its_caller():
    with pytest.raises(RuntimeError, match="StopIteration"):
        await fake_world().threads(1, "handlers").run(lambda: next(iter(())))


async def test_closed_threads_take_no_more_calls():
    threads = fake_world().threads(1, "handlers")
    threads.close()
    with pytest.raises(RuntimeError, match="closed"):
        threads.run(print)
