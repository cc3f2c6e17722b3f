"""Threads that publish while line and broker fail: in time, never "ok" and gone (T1 to T4)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter

import pytest
from tests.rabbitmq_scene import until
from tests.sync_scene import SyncScene

from leveret.sync import RabbitMQTransport, TransportHealth, TransportUnavailableError


@pytest.fixture
async def scene(broker):
    async with SyncScene(broker) as scene:
        yield scene


async def test_of_64_threads_that_publish_while_the_broker_restarts_nothing_confirmed_is_missing(scene):
    transport = scene.transport(timeout=10)
    queue = scene.queue("all")
    confirmed, raised, not_there = [], [], []
    half = threading.Event()

    def publish(thread: int) -> None:
        for number in range(1000):
            try:
                transport.publish_event("order.placed", {"n": thread * 1000 + number})
            except TransportUnavailableError as error:
                raised.append(thread * 1000 + number)
                if "The broker does not have it" in str(error):
                    not_there.append(thread * 1000 + number)
            else:
                confirmed.append(thread * 1000 + number)
            if len(confirmed) == 20_000:
                half.set()

    publishing = asyncio.ensure_future(scene.threads(64, publish))
    await asyncio.to_thread(half.wait, 60)
    await scene.broker.stop()
    await scene.broker.start()
    await publishing

    assert len(confirmed) + len(raised) == 64_000
    there = Counter(payload["n"] for _, payload in scene.take(queue))
    assert not set(confirmed) - set(there)
    # What was told as not sent was not.
    assert not set(not_there) & set(there)
    assert len(confirmed) > 60_000


async def test_an_event_on_a_half_open_connection_arrives_over_a_new_one(scene):
    transport = scene.transport(timeout=1)
    queue = scene.queue("all")
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 0})
    scene.broker.proxy.half_open()
    since = time.monotonic()

    def publish(thread: int) -> None:
        transport.publish_event("a.b", {"n": 1 + thread})

    before = scene.broker.proxy.accepted
    await scene.threads(16, publish)

    assert time.monotonic() - since < 3
    assert {payload["n"] for _, payload in scene.take(queue)} == set(range(17))
    # One attempt was shared by all.
    assert scene.broker.proxy.accepted == before + 1
    # And what comes next goes over the new one at once.
    since = time.monotonic()
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 99})
    assert time.monotonic() - since < 0.4
    scene.broker.proxy.hand_on()


async def test_what_others_have_outstanding_stays_on_the_old_connection_and_is_confirmed_there(scene):
    transport = scene.transport(timeout=2)
    queue = scene.queue("all")
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 0})
    before = scene.broker.proxy.accepted
    scene.broker.proxy.hold_back()
    first = asyncio.ensure_future(asyncio.to_thread(transport.publish_event, "a.b", {"n": 1}))
    await asyncio.sleep(0.7)
    other = asyncio.ensure_future(asyncio.to_thread(transport.publish_event, "a.b", {"n": 2}))
    # The first one has made a new connection for itself; the other one's half of the time is not over.
    await first
    assert transport._line.renewals == 1
    assert not other.done()
    scene.broker.proxy.hand_on()
    await other

    assert scene.broker.proxy.accepted == before + 1
    await until(lambda: scene.count(queue)[0] == 4)
    there = Counter((payload["n"], properties.message_id) for properties, payload in scene.take(queue))
    # A second copy of the one that was in doubt, under the same id, and of no other.
    assert sorted((n, copies) for (n, _), copies in there.items()) == [(0, 1), (1, 2), (2, 1)]


async def test_where_nothing_comes_through_it_is_unknown_in_time_and_works_again_afterwards(scene):
    transport = scene.transport(timeout=0.6)
    queue = scene.queue("all")
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 0})
    scene.broker.proxy.swallow()

    for number in (1, 2):
        since = time.monotonic()
        with pytest.raises(TransportUnavailableError, match=r"a\.b.*Unknown whether it arrived"):
            await asyncio.to_thread(transport.publish_event, "a.b", {"n": number})
        assert time.monotonic() - since < 2.9
    await until(lambda: scene.alarms)
    code, fields = scene.alarms[0]
    assert code == "publish_unavailable_after_reconnect"
    assert fields["routing_key"] == "a.b"
    scene.broker.proxy.hand_on()
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 3})

    assert 3 in {payload["n"] for _, payload in scene.take(queue)}


async def test_a_connection_that_was_cut_is_replaced_without_waiting_for_the_next_reconnect(scene):
    transport = scene.transport(timeout=0.8)
    queue = scene.queue("all")
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 0})

    for number in range(1, 6):
        await scene.broker.drop_connections()
        await asyncio.to_thread(transport.publish_event, "a.b", {"n": number})

    assert {payload["n"] for _, payload in scene.take(queue)} == set(range(6))


async def test_unroutable_is_one_dead_letter_and_with_the_queue_gone_an_alarm(scene, caplog):
    transport = scene.transport(timeout=2)
    await asyncio.to_thread(transport.declare_topology)
    await asyncio.to_thread(transport.publish_event, "nobody.listens", {"id": 7})
    dead = scene.name("events.dlq")

    [(properties, letter)] = scene.take(dead)
    assert letter == {"reason": "unroutable", "original_routing_key": "nobody.listens", "payload": {"id": 7}}
    assert properties.delivery_mode == 2
    await scene.broker.delete_queue(dead)
    caplog.set_level(logging.ERROR)
    with pytest.raises(TransportUnavailableError, match=r"nobody takes \"nobody\.listens\""):
        await asyncio.to_thread(transport.publish_event, "nobody.listens", {"id": 8})
    await until(lambda: scene.alarms)
    assert scene.alarms[0][0] == "dlq_publish_failed"
    assert any(getattr(each, "action", "") == "dead_letter_failed" for each in caplog.records)


async def test_a_blocked_broker_is_told_no_new_connection_is_opened_and_close_is_bounded(scene):
    transport, other = scene.transport(timeout=0.5), scene.transport(timeout=0.5)
    queue = scene.queue("all")
    for each in (transport, other):
        await asyncio.to_thread(each.publish_event, "a.b", {"n": 0})
    await scene.broker.block()
    try:
        # A broker tells a connection that it is blocked once something is published on it.
        for each in (transport, other):
            with pytest.raises(TransportUnavailableError):
                await asyncio.to_thread(each.publish_event, "a.b", {"n": 1})
        since = time.monotonic()
        with pytest.raises(TransportUnavailableError, match="blocked by an alarm of the broker"):
            await asyncio.to_thread(transport.publish_event, "a.b", {"n": 2})
        assert time.monotonic() - since < 1
        assert transport._line.renewals == 0
        assert transport.health() is TransportHealth.CONNECTED
        since = time.monotonic()
        await asyncio.to_thread(transport.publish_alarm_event, "alarm.X.y", {})
        assert time.monotonic() - since < 0.2
        since = time.monotonic()
        await asyncio.to_thread(other.close)
        assert time.monotonic() - since < 9
    finally:
        await scene.broker.unblock()
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 3})

    arrived = {payload["n"] for _, payload in scene.take(queue)}
    assert 3 in arrived
    assert 2 not in arrived


async def test_a_wrong_password_is_told_at_once_with_the_brokers_words(scene):
    wrong = RabbitMQTransport(
        f"amqp://guest:wr0ng@127.0.0.1:{scene.broker.proxy.port}", namespace=scene.namespace
    )
    since = time.monotonic()
    with pytest.raises(TransportUnavailableError, match="ACCESS_REFUSED") as caught:
        await asyncio.to_thread(wrong.publish_event, "a.b", {})
    assert time.monotonic() - since < 2
    assert "wr0ng" not in str(caught.value)
    await asyncio.to_thread(wrong.close)
