"""`leveret notify` at work: a queue of its own, retries of its own, and nobody told twice (A3)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace

import pytest

from leveret.alarms.notify import Sent
from leveret.alarms.notify_service import BACKOFF, GIVE_UP_AFTER, MOST_QUEUED, NotifyService
from leveret.alarms.people import MOST_A_MINUTE
from leveret.core.alarm import Alarm, alert
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Names
from leveret.runtime.world import DaemonThreads
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker


class Written:
    """Stands in for the notifier: writes down what each address gets."""

    def __init__(self, *addresses: str) -> None:
        self.shown = addresses
        self.got: list[tuple[str, str]] = []
        self.failing: set[str] = set()
        self.tries = 0

    def wants(self, told):
        return told["severity"] == "CRITICAL"

    def send(self, number, told):
        self.tries += 1
        to = self.shown[number]
        if to in self.failing:
            return Sent(to=to, seconds=0.1, why="500")
        self.got.append((to, told["code"]))
        return Sent(to=to, seconds=0.1)


class Scene:
    def __init__(self, *addresses: str) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker()
        self.world = fake_world(0, self.clock)
        self.transport = MemoryTransport(self.broker, world=self.world)
        self.outside = MemoryTransport(self.broker, world=fake_world(1, self.clock))
        self.people = Written(*addresses)

    @contextlib.asynccontextmanager
    async def service(self):
        await self.transport.open()
        if self.outside.state != "connected":
            await self.outside.open()
        service = NotifyService(Names("shop"), self.transport, self.people, world=self.world)
        await service.start()
        try:
            yield service
        finally:
            await service.stop()
            await self.transport.close()
            self.transport = MemoryTransport(self.broker, world=self.world)

    async def emit(self, code: str, **given) -> None:
        made = alert(Alarm(code=code, title="t", **given), state="holds", count=1, first=0.0, last=0.0)
        body = made.body(namespace="shop", host="box")
        await self.outside.send(
            Outgoing(
                "shop.alerts", made.routing_key, body, Properties.build(delivery_mode=1), mandatory=False
            )
        )
        await idle()

    @property
    def left(self) -> tuple[int, int]:
        queue = self.broker.snapshot()["shop.alerts.notify"]
        return queue.ready, queue.unsettled


@pytest.fixture
async def scene():
    scene = Scene("chat", "mail")
    yield scene
    await scene.outside.close()


async def test_every_address_gets_every_alarm_once_and_then_it_is_acked(scene):
    async with scene.service():
        await scene.emit("a")
        await scene.emit("b")
        assert sorted(scene.people.got) == [("chat", "a"), ("chat", "b"), ("mail", "a"), ("mail", "b")]
        assert scene.left == (0, 0)


async def test_messages_of_other_programs_are_carried_whatever_their_key(scene):
    async with scene.service():
        await scene.outside.send(
            Outgoing("shop.alerts", "feed.down", b"{}", Properties.build(), mandatory=False)
        )
        await idle()
        assert ("chat", "feed.down") in scene.people.got


async def test_what_people_do_not_want_is_taken_off_the_queue(scene):
    async with scene.service():
        await scene.emit("retries_late")
        assert (scene.people.got, scene.left) == ([], (0, 0))


async def test_an_address_that_is_down_is_tried_again_and_holds_up_no_other(scene, caplog):
    scene.people.failing = {"mail"}
    async with scene.service():
        await scene.emit("a")
        await scene.emit("b")
        assert scene.people.got == [("chat", "a"), ("chat", "b")]
        assert scene.left == (0, 2)
        await scene.clock.advance(sum(BACKOFF))
        scene.people.failing = set()
        await scene.clock.advance(61)
        assert scene.people.got[2:] == [("mail", "a"), ("mail", "b")]
        assert scene.left == (0, 0)


async def test_an_alarm_that_is_no_news_any_more_is_given_up_for_that_address(scene, caplog):
    scene.people.failing = {"mail"}
    async with scene.service():
        await scene.emit("a")
        await scene.clock.advance(GIVE_UP_AFTER + 1)
        assert scene.left == (0, 0)
        assert "given up" in caplog.text


async def test_what_could_not_be_told_is_back_in_the_queue_after_a_stop_and_told_by_the_next(scene):
    scene.people.failing = {"mail"}
    async with scene.service():
        await scene.emit("a")
    assert scene.left == (1, 0)
    scene.people.failing = set()
    async with scene.service():
        await idle()
        assert ("mail", "a") in scene.people.got


async def test_what_is_being_sent_at_the_end_is_waited_for_and_not_sent_again(scene):
    begun, go_on = threading.Event(), threading.Event()
    plain = scene.people.send

    def slow(number, told):
        begun.set()
        go_on.wait(10)
        return plain(number, told)

    scene.people.send = slow
    scene.world = replace(scene.world, threads=DaemonThreads)
    async with scene.service():
        await scene.emit("a")
        await asyncio.to_thread(begun.wait, 10)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    assert sorted(scene.people.got) == [("chat", "a"), ("mail", "a")]
    assert scene.left == (0, 0)


async def test_alarms_wait_while_nobody_carries_them_and_the_oldest_make_room(scene):
    async with scene.service():
        pass
    for number in range(MOST_QUEUED + 5):
        await scene.outside.send(
            Outgoing("shop.alerts", f"n{number}", b"{}", Properties.build(), mandatory=False)
        )
    assert scene.left == (MOST_QUEUED, 0)


async def test_after_a_lost_connection_nobody_is_told_twice(scene):
    scene.people.failing = {"mail"}
    async with scene.service():
        await scene.emit("a")
        scene.broker.drop_connections()
        await scene.clock.advance(5)
        scene.people.failing = set()
        await scene.clock.advance(120)
        assert sorted(scene.people.got) == [("chat", "a"), ("mail", "a")]
        assert scene.left == (0, 0)


async def test_an_alarm_in_hand_is_told_though_the_broker_has_gone(scene):
    scene.people.failing = {"mail"}
    async with scene.service():
        await scene.emit("a")
        scene.broker.stop()
        scene.people.failing = set()
        await scene.clock.advance(10)
        assert ("mail", "a") in scene.people.got
        scene.broker.start()


async def test_each_address_has_a_rate(scene):
    async with scene.service():
        for number in range(MOST_A_MINUTE + 1):
            await scene.emit(f"c{number}")
        assert len(scene.people.got) == 2 * MOST_A_MINUTE
        await scene.clock.advance(60)
        assert len(scene.people.got) == 2 * (MOST_A_MINUTE + 1)


async def test_a_fault_of_the_notifier_silences_nobody(scene, caplog):
    plain = scene.people.send

    def faulty(number, told):
        if told["code"] == "bad":
            raise RuntimeError("a fault")
        return plain(number, told)

    scene.people.send = faulty
    async with scene.service():
        await scene.emit("bad")
        await scene.emit("good")
        assert ("mail", "good") in scene.people.got
        assert "an alarm could not be told" in caplog.text
