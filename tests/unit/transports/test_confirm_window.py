from __future__ import annotations

import asyncio
import gc

import pytest

from leveret.transports.confirm_window import ConfirmWindow


class Publishers:
    """Publishers on a window, and the broker that answers them."""

    def __init__(self, room):
        self.room = room
        self.outstanding = 0
        self.published = []
        self.window = ConfirmWindow(lambda: self.room - self.outstanding)

    async def publish(self, name):
        await self.window.enter()
        self.outstanding += 1
        assert self.outstanding <= self.room
        self.published.append(name)

    def answer(self, number):
        self.outstanding -= number
        self.window.opened()


async def turns(number=10):
    for _ in range(number):
        await asyncio.sleep(0)


async def test_as_many_go_out_as_there_is_room_for_and_the_rest_in_the_order_they_came():
    publishers = Publishers(room=3)
    tasks = [asyncio.create_task(publishers.publish(name)) for name in range(10)]
    await turns()
    assert publishers.published == [0, 1, 2]
    publishers.answer(2)
    await turns()
    assert publishers.published == [0, 1, 2, 3, 4]
    while publishers.outstanding:
        publishers.answer(publishers.outstanding)
        await turns()
    assert publishers.published == list(range(10))
    await asyncio.gather(*tasks)


async def test_whoever_comes_through_and_publishes_nothing_leaves_the_place_to_the_next():
    publishers = Publishers(room=1)
    publishers.outstanding = 1
    idle = [asyncio.create_task(publishers.window.enter()) for _ in range(5)]
    publishing = asyncio.create_task(publishers.publish("last"))
    await turns(3)
    publishers.answer(1)
    await asyncio.wait_for(asyncio.gather(*idle, publishing), 5)
    assert publishers.published == ["last"]


async def test_whoever_is_cancelled_while_waiting_or_when_let_through_takes_no_place_along():
    publishers = Publishers(room=1)
    publishers.outstanding = 1
    tasks = [asyncio.create_task(publishers.publish(name)) for name in range(3)]
    await turns()
    tasks[0].cancel()
    publishers.answer(1)
    # Let through, but not yet run.
    tasks[1].cancel()
    await asyncio.wait_for(tasks[2], 5)
    assert publishers.published == [2]
    assert publishers.window.open is False
    publishers.answer(1)
    assert publishers.window.open is True
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_nobody_overtakes_those_who_wait():
    publishers = Publishers(room=1)
    publishers.outstanding = 1
    waiting = asyncio.create_task(publishers.publish("first"))
    await turns()
    publishers.answer(1)
    assert publishers.window.open is False
    late = asyncio.create_task(publishers.publish("late"))
    await waiting
    assert publishers.published == ["first"]
    publishers.answer(1)
    await late


async def test_all_who_wait_can_be_turned_away():
    publishers = Publishers(room=0)
    waiting = [asyncio.create_task(publishers.publish(name)) for name in range(3)]
    await turns()
    waiting[0].cancel()
    publishers.window.fail(lambda: ConnectionError("closed"))
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError, ConnectionError, ConnectionError]
    publishers.room = 1
    await asyncio.wait_for(publishers.publish("afterwards"), 5)


async def test_whoever_is_turned_away_and_cancelled_in_one_moment_is_no_complaint():
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    publishers = Publishers(room=0)
    waiting = asyncio.create_task(publishers.publish("never"))
    await turns()
    publishers.window.fail(lambda: ConnectionError("closed"))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    del waiting
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("room", [0, -5])
async def test_where_there_is_no_room_it_is_closed(room):
    assert Publishers(room).window.open is False
