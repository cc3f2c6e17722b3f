"""Emitting from anywhere: at once, without an error, and never by itself (A1)."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.unit.alarms.carried import KeptLine, kept_emitter

from leveret.alarms.conditions import WINDOW
from leveret.alarms.emitter import MOST_WAITING, AlarmEmitter
from leveret.core.alarm import RETRIES_LATE, Alarm
from leveret.core.urls import BrokerUrl
from leveret.runtime.wiring import make_alarms
from leveret.runtime.world import system_world
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def inside(clock):
    """An emitter that carries in the test's loop."""
    emitter, line = kept_emitter(fake_world(0, clock))
    emitter.start()
    yield emitter, line
    await emitter.aclose()
    assert line.closed


@pytest.fixture
def apart():
    """An emitter that carries in a thread of its own."""
    emitter, line = kept_emitter(system_world(), inside=False)
    yield emitter, line
    emitter.close()


async def test_an_alarm_is_carried_once_a_window_with_a_count_and_its_end(inside, clock, caplog):
    emitter, line = inside
    for _ in range(5):
        emitter.emit("disk_full", "no room", {"free": 0}, about="/data")
    await idle()
    assert [parcel.routing_key for parcel in line.parcels] == ["alarm.CRITICAL.disk_full"]
    await clock.advance(WINDOW)
    emitter.resolved("disk_full", "/data")
    emitter.resolved("disk_full", "/data")
    await idle()
    assert line.of("disk_full") == [("holds", 1), ("holds", 5), ("resolved", 5)]
    assert [record.levelname for record in caplog.records if record.name == "leveret.alarms"] == [
        "CRITICAL"
    ] * 2


async def test_leveret_tells_its_own_alarms_through_the_same_door(inside):
    emitter, line = inside
    emitter.emit(Alarm(code=RETRIES_LATE, title="late", about="shop"))
    emitter.emit("feed_stale", "old", severity="WARNING")
    await idle()
    assert [parcel.routing_key for parcel in line.parcels] == [
        "alarm.WARNING.retries_late",
        "alarm.WARNING.feed_stale",
    ]


class Rude(dict):
    def __iter__(self):
        raise RuntimeError("no")

    def __len__(self):
        raise RuntimeError("no")

    def __bool__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "given", [(None, None), (["unhashable"], "t"), ("c", "t", Rude(a=1)), ("c", object(), 7, 8)]
)
async def test_nothing_that_is_emitted_raises(inside, given):
    emitter, line = inside
    emitter.emit(*given)
    emitter.resolved(*given[:1])
    emitter.emit("fine", "goes on")
    await idle()
    assert "fine" in [told["code"] for told in line.told]


async def test_a_log_handler_that_emits_on_each_alarm_triggers_nothing(inside, clock):
    emitter, line = inside

    class Eager(logging.Handler):
        def emit(self, record):
            emitter.emit("log_line", record.getMessage())

    handler = Eager()
    logging.getLogger("leveret.alarms").addHandler(handler)
    try:
        emitter.emit("disk_full", "no room")
        await clock.advance(3 * WINDOW)
    finally:
        logging.getLogger("leveret.alarms").removeHandler(handler)
    assert [told["code"] for told in line.told] == ["disk_full"]


async def test_a_log_handler_that_raises_keeps_no_alarm_from_being_carried(inside, capfd):
    emitter, line = inside

    class Broken(logging.Handler):
        def handle(self, record):
            raise OSError("the disk is full")

    handler = Broken()
    logging.getLogger("leveret.alarms").addHandler(handler)
    try:
        emitter.emit("one", "1")
        await idle()
        emitter.emit("two", "2")
        await idle()
    finally:
        logging.getLogger("leveret.alarms").removeHandler(handler)
    assert [told["code"] for told in line.told] == ["one", "two"]
    assert "the disk is full" in capfd.readouterr().err


async def test_a_fault_of_ours_is_logged_and_alarms_go_on(inside, clock, caplog):
    emitter, line = inside
    plain = line.put

    def faulty(parcel):
        if parcel.routing_key.endswith("bad"):
            raise RuntimeError("a fault of ours")
        plain(parcel)

    line.put = faulty
    emitter.emit("bad", "x")
    await clock.advance(2)
    emitter.emit("good", "x")
    await idle()
    assert [told["code"] for told in line.told] == ["good"]
    assert "a fault of ours" in caplog.text


async def test_what_an_alarm_sets_off_on_the_same_broker_may_raise_alarms_of_its_own(clock):
    world = fake_world(0, clock)
    broker = MemoryBroker()
    broker.declare_exchange("shop.alerts")
    for queue in ("mine", "all"):
        broker.declare_queue(queue)
        broker.bind("shop.alerts", queue, "#")
    transport = MemoryTransport(broker, world=world)
    await transport.open()
    emitter = make_alarms(world, "shop", broker=BrokerUrl(scheme="memory"), transport=transport)
    emitter.start()

    def obey(delivery):
        delivery.ack()
        emitter.emit("set_off", "by an alarm")

    await transport.consume("mine", obey, prefetch=10)
    emitter.emit("first", "x")
    await idle()
    keys = [message.routing_key for message in broker.messages("all")]
    assert keys == ["alarm.CRITICAL.first", "alarm.CRITICAL.set_off"]
    await emitter.aclose()
    await transport.close()


def test_a_burst_from_many_threads_is_one_alarm_with_its_count(apart):
    emitter, line = apart
    emitter.emit("storm", "first")

    def burst() -> None:
        for _ in range(1000):
            emitter.emit("storm", "again")

    threads = [threading.Thread(target=burst) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emitter.resolved("storm")
    emitter.close()
    assert line.of("storm") == [("holds", 1), ("resolved", 8001)]
    assert not any(thread.name == "leveret-alarms" for thread in threading.enumerate())


def test_no_thread_runs_before_the_first_alarm(apart):
    emitter, _ = apart
    emitter.resolved("nothing")
    assert not any(thread.name == "leveret-alarms" for thread in threading.enumerate())


def test_emitting_takes_no_time_while_the_line_hangs():
    class Hanging(KeptLine):
        def put(self, parcel):
            super().put(parcel)
            held.wait(10)

    held = threading.Event()
    line = Hanging()
    emitter = AlarmEmitter("shop", world=system_world(), line=lambda: line)
    try:
        began = time.perf_counter()
        for number in range(2 * MOST_WAITING):
            emitter.emit("storm", "x", about=str(number))
            emitter.publish("k", b"{}")
        assert time.perf_counter() - began < 2
        assert len(emitter._alerts) <= MOST_WAITING
        assert len(emitter._messages) <= MOST_WAITING
        assert emitter.dropped > 0
    finally:
        held.set()
        emitter.close()


async def test_a_message_of_ones_own_is_neither_counted_nor_folded(inside):
    emitter, line = inside
    emitter.publish("feed.down", b'{"feed": "eurex"}')
    emitter.publish("feed.down", b'{"feed": "eurex"}')
    await idle()
    assert [(parcel.routing_key, parcel.is_alarm) for parcel in line.parcels] == [("feed.down", False)] * 2


def test_a_callback_is_called_on_a_thread_of_its_own_and_may_do_what_it_likes(apart, caplog):
    emitter, line = apart
    heard: list[tuple[object, ...]] = []
    done = threading.Event()

    def callback(code, title, fields):
        heard.append((code, title, fields, threading.current_thread().name))
        # It would be told of its own doing for ever.
        emitter.emit("from_the_callback", "ignored")
        if code == "last":
            done.set()
        raise RuntimeError("whatever")

    emitter.listen(callback)
    emitter.emit("disk_full", "no room", {"free": 0})
    emitter.emit("disk_full", "no room", {"free": 0})
    emitter.resolved("disk_full")
    emitter.emit("last", "bye")
    assert done.wait(5)
    emitter.close()
    assert [each[:3] for each in heard] == [("disk_full", "no room", {"free": 0}), ("last", "bye", {})]
    assert heard[0][3].startswith("leveret-alarm-callback")
    assert "from_the_callback" not in [told["code"] for told in line.told]
    assert "the alarm callback raised" in caplog.text


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration])
def test_a_callback_may_raise_whatever_there_is_and_the_next_alarm_is_carried(apart, caplog, raised):
    emitter, line = apart
    heard, done = [], threading.Event()

    def callback(code, title, fields):
        heard.append(code)
        if code == "two":
            done.set()
        raise raised("the callback's own")

    emitter.listen(callback)
    emitter.emit("one", "1")
    emitter.emit("two", "2")
    assert done.wait(5)
    emitter.emit("three", "3")
    emitter.close()
    assert [told["code"] for told in line.told] == ["one", "two", "three"]
    assert heard[:2] == ["one", "two"]
    assert "the alarm callback raised on one" in caplog.text


def test_an_alarm_that_gets_no_thread_is_carried_once_there_is_one(apart, monkeypatch):
    emitter, line = apart

    def none_left(_thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        emitter.emit("one", "1")
    emitter.emit("two", "2")
    emitter.close()
    assert [told["code"] for told in line.told] == ["one", "two"]


def test_a_callback_that_hangs_holds_up_neither_alarms_nor_the_end(apart):
    emitter, line = apart
    held = threading.Event()
    emitter.listen(lambda *_: held.wait(10))
    emitter.emit("one", "1")
    emitter.emit("two", "2")
    began = time.perf_counter()
    emitter.close()
    assert time.perf_counter() - began < 2
    assert [told["code"] for told in line.told] == ["one", "two"]
    held.set()


def test_a_signal_in_the_middle_of_an_emit_may_emit_as_well(apart):
    emitter, line = apart
    plain = emitter._conditions.holds

    def interrupted(alarm):
        if alarm.code == "outer":
            os.kill(os.getpid(), signal.SIGUSR1)
        return plain(alarm)

    before = signal.signal(signal.SIGUSR1, lambda *_: emitter.emit("inner", "from a signal"))
    emitter._conditions.holds = interrupted
    try:
        emitter.emit("outer", "interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
    emitter.close()
    assert {told["code"] for told in line.told} == {"outer", "inner"}


def test_after_close_nothing_is_carried_and_nothing_raises(apart):
    emitter, line = apart
    emitter.close()
    emitter.close()
    emitter.emit("late", "too late")
    assert line.parcels == []


def _in_the_child(emitter: AlarmEmitter, line: KeptLine, answers: multiprocessing.Queue) -> None:
    line.parcels.clear()
    emitter.emit("disk_full", "in the child")
    emitter.close()
    answers.put([(told["code"], told["title"]) for told in line.told])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_has_alarms_of_its_own(apart):
    emitter, line = apart
    emitter.emit("disk_full", "in the parent")
    lock = emitter._lock
    # A fork while another thread is in the middle of an emit.
    holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holding.set()
            let_go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_the_child, args=(emitter, line, answers))
    child.start()
    try:
        assert answers.get(timeout=10) == [("disk_full", "in the child")]
    finally:
        let_go.set()
        thread.join()
        child.join()
    emitter.close()
    assert [told["title"] for told in line.told] == ["in the parent"]


SCRIPT = """
from leveret.runtime.wiring import make_alarms
from leveret.runtime.world import system_world
make_alarms(system_world(), "shop").emit("last_words", "at the very end")
"""


def test_an_alarm_right_before_the_end_of_the_process_is_still_told():
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=True
    )
    assert "last_words" in ended.stderr
