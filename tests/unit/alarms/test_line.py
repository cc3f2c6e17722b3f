"""The way to the alerts exchange, and the one around a broker that does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from leveret.alarms import line as line_module
from leveret.alarms.line import MESSAGE_SECONDS, MOST_WAITING, Line, Parcel
from leveret.core.errors import AccessRefused
from leveret.core.topology import Names
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker


class Heard:
    """People who write down what they are told, or cannot be reached."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.away = False
        self.free_in = 0.0

    async def tell(self, routing_key: str, body: bytes) -> bool:
        if not self.away:
            self.told.append(routing_key)
        return not self.away

    def close(self) -> None: ...


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker():
    broker = MemoryBroker()
    broker.declare_exchange("shop.alerts")
    broker.declare_queue("heard")
    broker.bind("shop.alerts", "heard", "#")
    return broker


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(line_module, "CONNECT_SECONDS", 0.05)
    monkeypatch.setattr(line_module, "ANSWER_SECONDS", 0.05)


@contextlib.asynccontextmanager
async def running(broker, clock, *, people=None, borrowed=False, transport=None):
    line = Line(
        Names("shop"),
        clock=clock,
        transport=transport or (lambda: MemoryTransport(broker, world=fake_world(0, clock))),
        borrowed=borrowed,
        people=people,
    )
    task = asyncio.create_task(line.run())
    try:
        yield line
    finally:
        task.cancel()
        await asyncio.wait([task])
        await line.close()


def alarm(number: int = 0) -> Parcel:
    return Parcel(f"alarm.CRITICAL.c{number}", json.dumps({"code": f"c{number}"}).encode(), is_alarm=True)


def message(number: int = 0) -> Parcel:
    return Parcel(f"feed.{number}", b"{}", is_alarm=False)


def heard(broker) -> list[str]:
    return [message.routing_key for message in broker.messages("heard")]


async def until(condition) -> None:
    """The line waits for brokers in real time, so that turns of the loop alone do not bring it on."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is looked at is plain state, which tells nobody
            await asyncio.sleep(0.005)


async def test_alarms_go_out_in_their_order_transient_and_not_mandatory(broker, clock):
    async with running(broker, clock) as line:
        for number in range(250):
            line.put(alarm(number))
        await line.flush()
        assert heard(broker) == [f"alarm.CRITICAL.c{number}" for number in range(250)]
        [first, *_] = broker.messages("heard")
        assert (first.properties.delivery_mode, first.properties.content_type) == (1, "application/json")
        assert first.mandatory is False


async def test_an_alerts_exchange_that_nobody_declared_is_there_and_nobody_has_to_listen(clock):
    broker = MemoryBroker()
    async with running(broker, clock) as line:
        line.put(alarm())
        await line.flush()
        assert line._told_why == ""
        broker.declare_queue("late")
        broker.bind("shop.alerts", "late", "alarm.CRITICAL.*")


async def test_an_exchange_that_somebody_deletes_is_declared_again(broker, clock):
    async with running(broker, clock) as line:
        line.put(alarm(1))
        await until(lambda: heard(broker) == ["alarm.CRITICAL.c1"])
        broker.delete_exchange("shop.alerts")
        line.put(alarm(2))
        await until(lambda: line._told_why)
        await clock.advance(2)
        broker.bind("shop.alerts", "heard", "#")
        line.put(alarm(3))
        await until(lambda: heard(broker)[-1] == "alarm.CRITICAL.c3")
        await until(lambda: not line._waiting)


async def test_while_the_broker_is_away_people_are_told_and_then_the_broker_again(broker, clock):
    people = Heard()
    async with running(broker, clock, people=people) as line:
        line.put(alarm(1))
        await until(lambda: heard(broker))
        broker.stop()
        line.put(alarm(2))
        await until(lambda: people.told)
        broker.start()
        await clock.advance(60)
        line.put(alarm(3))
        await until(lambda: len(heard(broker)) > 0 and heard(broker)[-1] == "alarm.CRITICAL.c3")
        assert people.told == ["alarm.CRITICAL.c2"]


async def test_a_broker_that_restarts_in_time_has_nobody_woken(broker, clock, monkeypatch):
    monkeypatch.setattr(line_module, "CONNECT_SECONDS", 10)
    people = Heard()
    async with running(broker, clock, people=people) as line:
        line.put(alarm(1))
        await until(lambda: heard(broker))
        broker.stop()
        line.put(alarm(2))
        await idle()
        broker.start()
        await clock.advance(5)
        await until(lambda: heard(broker)[-1:] == ["alarm.CRITICAL.c2"])
        assert people.told == []


async def test_a_broker_that_was_never_there_is_no_reason_to_be_silent(clock):
    people = Heard()

    class Nobody(MemoryTransport):
        async def open(self):
            raise AccessRefused("wrong password")

    broker = MemoryBroker()
    async with running(
        broker, clock, people=people, transport=lambda: Nobody(broker, world=fake_world(0, clock))
    ) as line:
        line.put(alarm(1))
        await until(lambda: people.told == ["alarm.CRITICAL.c1"])


async def test_without_people_alarms_wait_for_the_broker(broker, clock, caplog):
    async with running(broker, clock) as line:
        line.put(alarm(0))
        await until(lambda: heard(broker))
        broker.stop()
        for number in range(1, 4):
            line.put(alarm(number))
        await until(lambda: line._told_why)
        broker.start()
        await clock.advance(60)
        await until(lambda: not line._waiting)
        assert heard(broker)[-3:] == [f"alarm.CRITICAL.c{number}" for number in range(1, 4)]
        warnings = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warnings) == 1


async def test_a_blocked_broker_has_people_told_and_nothing_twice_on_the_exchange(broker, clock):
    people = Heard()
    async with running(broker, clock, people=people) as line:
        line.put(alarm(1))
        await until(lambda: heard(broker))
        broker.block()
        line.put(alarm(2))
        line.put(alarm(3))
        await until(lambda: len(people.told) == 2)
        broker.unblock()
        await clock.advance(60)
        await idle()
        assert min(heard(broker)) == "alarm.CRITICAL.c1"
        assert len(heard(broker)) == len(set(heard(broker)))


async def test_an_answer_that_comes_late_counts_and_nothing_is_sent_twice(broker, clock):
    answers: list[asyncio.Future[None]] = []

    class Slow(MemoryTransport):
        def send(self, message):
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

    async with running(broker, clock, transport=lambda: Slow(broker, world=fake_world(0, clock))) as line:
        line.put(alarm(1))
        await until(lambda: line._told_why)
        await clock.advance(120)
        assert len(answers) == 1
        answers[0].set_result(None)
        await until(lambda: not line._waiting)
        await clock.advance(120)
        assert len(answers) == 1


async def test_people_who_cannot_be_reached_are_tried_again_and_the_rate_is_kept(broker, clock):
    people = Heard()
    people.away = True
    broker.stop()
    async with running(broker, clock, people=people) as line:
        line.put(alarm(1))
        line.put(alarm(2))
        await until(lambda: line._told_why)
        people.away, people.free_in = False, 5.0
        await clock.advance(2)
        await asyncio.sleep(0.1)
        assert people.told == []
        people.free_in = 0.0
        await clock.advance(60)
        await until(lambda: people.told == ["alarm.CRITICAL.c1", "alarm.CRITICAL.c2"])


async def test_what_waits_is_bounded_and_the_oldest_goes(broker, clock):
    broker.stop()
    async with running(broker, clock) as line:
        for number in range(MOST_WAITING + 10):
            line.put(alarm(number))
        assert len(line._waiting) == MOST_WAITING
        assert line._waiting[0].parcel == alarm(10)
        assert line.dropped == 10


async def test_a_storm_of_alarms_is_no_storm_of_connections(broker, clock):
    people = Heard()
    tried: list[float] = []

    class Nobody(MemoryTransport):
        async def open(self):
            tried.append(clock.monotonic())
            raise AccessRefused("wrong password")

    async with running(
        broker, clock, people=people, transport=lambda: Nobody(broker, world=fake_world(0, clock))
    ) as line:
        for number in range(50):
            line.put(alarm(number))
            await until(lambda n=number: len(people.told) == n + 1)
        assert len(tried) == 1
        await clock.advance(1)
        line.put(alarm(50))
        await until(lambda: len(tried) == 2)


async def test_a_message_of_ones_own_is_sent_now_or_dropped(broker, clock):
    broker.stop()
    async with running(broker, clock) as line:
        line.put(message(1))
        line.put(alarm(1))
        await until(lambda: line._told_why)
        await clock.advance(MESSAGE_SECONDS + 30)
        await until(lambda: len(line._waiting) == 1)
        broker.start()
        await clock.advance(60)
        await until(lambda: heard(broker) == ["alarm.CRITICAL.c1"])


async def test_a_message_that_cannot_be_sent_at_all_harms_no_other(broker, clock):
    async with running(broker, clock) as line:
        line.put(Parcel("k" * 300, b"{}", is_alarm=False))
        line.put(Parcel(7, b"{}", is_alarm=False))
        line.put(alarm(1))
        await until(lambda: heard(broker) == ["alarm.CRITICAL.c1"])


async def test_on_a_broker_of_one_process_people_are_told_as_well(broker, clock):
    people = Heard()
    transport = MemoryTransport(broker, world=fake_world(0, clock))
    await transport.open()
    async with running(broker, clock, people=people, borrowed=True, transport=lambda: transport) as line:
        line.put(alarm(1))
        await line.flush()
        assert (heard(broker), people.told) == (["alarm.CRITICAL.c1"], ["alarm.CRITICAL.c1"])
    assert transport.state == "connected"
    await transport.close()


async def test_the_end_is_not_held_up_by_a_broker_that_is_away(broker, clock):
    broker.stop()
    async with running(broker, clock) as line:
        line.put(alarm(1))
        await until(lambda: line._told_why)
        async with asyncio.timeout(2):
            await line.flush()


async def test_with_neither_a_broker_nor_people_nothing_piles_up(clock):
    line = Line(Names("shop"), clock=clock, transport=None)
    line.put(alarm(1))
    await line.flush()
    assert not line._waiting
