"""Alarms on a broker that works, one that takes nothing, and one that is gone (A1, A2)."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time

import pytest
from tests.rabbitmq_scene import until
from tests.webhook import Webhook

from leveret import Leveret
from leveret.alarms import line as line_module

# Of a library that Apprise loads.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


class Listener:
    """A queue on the alerts exchange, beside leveret."""

    def __init__(self, place, key: str = "alarm.#") -> None:
        self._channel = place.broker.channel()
        exchange = f"{place.namespace}.alerts"
        self._channel.exchange_declare(exchange, "topic", durable=True)
        self._queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(self._queue, exchange, key)
        self.heard: list[tuple[str, dict]] = []
        self.modes: list[int] = []

    def look(self) -> list[tuple[str, dict]]:
        while True:
            method, properties, body = self._channel.basic_get(self._queue, auto_ack=True)
            if method is None:
                return self.heard
            self.heard.append((method.routing_key, json.loads(body)))
            self.modes.append(properties.delivery_mode)

    async def until(self, number: int) -> list[tuple[str, dict]]:
        await until(lambda: len(self.look()) >= number)
        return self.heard


@pytest.fixture
def webhook(monkeypatch):
    with Webhook() as webhook:
        monkeypatch.setenv("LEVERET_NOTIFY__URLS", webhook.url)
        yield webhook


@pytest.fixture
def impatient(monkeypatch):
    """Turns to people soon, where the wait is not what the test is about."""
    monkeypatch.setattr(line_module, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(line_module, "ANSWER_SECONDS", 0.3)


async def usual_emit(app: Leveret, seconds: float) -> float:
    """What 99 of 100 take at most, while the loop goes on; the last one may have waited for another process."""
    took: list[float] = []
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        began = time.perf_counter()
        app.alarms.emit("feed_stale", "no prices", {"n": number}, about=str(number % 5))
        app.alarms.publish("feed.down", b"{}")
        took.append(time.perf_counter() - began)
        number += 1
        if number % 50 == 0:
            await asyncio.sleep(0.001)
    return sorted(took)[len(took) * 99 // 100]


async def test_an_alarm_from_any_thread_is_on_the_alerts_exchange_with_its_key_and_once(place):
    listener = Listener(place)
    async with place.app() as app:
        threads = [
            threading.Thread(target=app.alarms.emit, args=("disk_full", "no room", {"free": 0}))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        app.alarms.emit("disk_filling", "10 % left", severity="WARNING")
        for thread in threads:
            thread.join()
        app.alarms.resolved("disk_full")
        heard = await listener.until(3)
    assert sorted(key for key, _ in heard) == [
        "alarm.CRITICAL.disk_full", "alarm.CRITICAL.disk_full", "alarm.WARNING.disk_filling",
    ]  # fmt: skip
    held, resolved = (body for key, body in heard if key.endswith("disk_full"))
    assert (held["state"], held["count"], held["fields"]) == ("holds", 1, {"free": 0})
    assert (resolved["state"], resolved["count"], resolved["namespace"]) == ("resolved", 20, place.namespace)
    # The broker need not write alarms to disk.
    assert set(listener.modes) == {1}


async def test_an_alarm_right_before_the_end_is_still_there(place):
    listener = Listener(place)
    async with place.app() as app:
        app.alarms.emit("last_words", "good-bye")
    assert [key for key, _ in await listener.until(1)] == ["alarm.CRITICAL.last_words"]


FORKS = """
import os, sys, time
from leveret.core.urls import parse_broker
from leveret.runtime.wiring import make_alarms
from leveret.runtime.world import system_world

alarms = make_alarms(system_world(), sys.argv[1], broker=parse_broker(sys.argv[2], "the test"))
alarms.emit("before", "in the parent")
while alarms._line is None or alarms._line._waiting or not alarms._line._declared:
    time.sleep(0.01)
child = os.fork()
if child == 0:
    alarms.emit("inside", "in the child")
    alarms.close()
    os._exit(0)
os.waitpid(child, 0)
alarms.emit("after", "in the parent again")
"""


async def test_before_and_after_a_fork_parent_and_child_tell_their_alarms_and_disturb_each_other_in_nothing(
    place,
):
    listener = Listener(place)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKS, place.namespace, place.url(), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    heard = [key.rpartition(".")[2] for key, _ in await listener.until(3)]
    assert heard == ["before", "inside", "after"]
    # One connection each, which nobody lost: the parent's went on.
    assert (process.returncode, b"cannot be published" in said) == (0, False)


async def test_nobody_needs_to_listen_and_an_app_without_alarms_has_no_connection_for_them(place):
    async with place.app() as app:
        before = place.broker.proxy.accepted
        await app.counts()
        assert place.broker.proxy.accepted == before
        app.alarms.emit("disk_full", "no room")
        await until(lambda: place.broker.proxy.accepted > before)


async def test_a_blocked_broker_delays_nothing_and_people_are_told_past_it(place, webhook, impatient):
    listener = Listener(place, "#")
    async with place.app().running() as app:
        app.alarms.emit("before", "all is well")
        await listener.until(1)
        await place.broker.block()
        try:
            with pytest.raises(Exception, match="no answer"):
                await app.publish("order.placed", {}, timeout=0.5, mandatory=False)
            assert await usual_emit(app, 0.3) < 0.01
            titles = await asyncio.to_thread(webhook.wait_for, 6)
            assert any("connection_blocked holds" in title for title in titles)
            assert sum("feed_stale holds" in title for title in titles) >= 4
        finally:
            await place.broker.unblock()
        # Through the broker again, once that has answered what it held; until then people are told.
        async with asyncio.timeout(30):
            for number in itertools.count():
                app.alarms.emit("after", "all is well again", about=str(number))
                if any(key == "alarm.CRITICAL.after" for key, _ in listener.look()):
                    break
                await asyncio.sleep(0.1)
    # What people were told directly does not come a second time.
    keys = [(key, body["about"], body["state"]) for key, body in listener.heard if key.startswith("alarm.")]
    assert len(keys) == len(set(keys))


async def test_a_line_that_swallows_everything_delays_nothing_and_people_are_told(place, webhook, impatient):
    async with place.app() as app:
        app.alarms.emit("before", "all is well")
        await asyncio.sleep(0.2)
        place.broker.proxy.swallow()
        assert await usual_emit(app, 0.3) < 0.01
        titles = await asyncio.to_thread(webhook.wait_for, 5)
        assert sum("feed_stale" in title for title in titles) >= 5
        place.broker.proxy.cut()
        began = time.perf_counter()
    assert time.perf_counter() - began < 15


async def test_while_the_broker_is_gone_people_hear_it_and_later_the_exchange_does(
    place, webhook, impatient, reconnects_soon
):
    listener = Listener(place)
    app = place.app()

    @app.worker("order.placed")
    async def charge(order: dict) -> None: ...

    async with app.running():
        app.alarms.emit("before", "all is well")
        await listener.until(1)
        place.broker.close()
        await place.broker.stop()
        try:
            assert await usual_emit(app, 0.2) < 0.01
            await asyncio.to_thread(webhook.wait_for, 5)
        finally:
            await place.broker.start()
        listener = Listener(place)
        await until(lambda: app._open.parts.transport.state == "connected")
        app.alarms.emit("after", "all is well again")
        await until(lambda: any(key.endswith(".after") for key, _ in listener.look()))
    assert not any("after" in title for title in webhook.titles)
