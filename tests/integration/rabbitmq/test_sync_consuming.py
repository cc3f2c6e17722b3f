"""Threads that consume while line and broker fail: they come back by themselves, and leave when asked to (T6 to T8)."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest
from tests.rabbitmq_scene import until
from tests.sync_scene import SyncScene

from leveret import Leveret
from leveret.sync import RpcResponse, TransportHealth


@pytest.fixture
async def scene(broker):
    async with SyncScene(broker) as scene:
        yield scene


async def test_consumers_are_back_within_35_s_after_the_broker_restarted_and_lose_nothing(scene):
    transport = scene.transport(timeout=10)
    events, asked = set(), set()
    queue, intents = scene.name("momentum"), scene.name("intent.req")

    def answer(request):
        asked.add(request.correlation_id)
        return RpcResponse({"id": request.payload["id"]})

    scene.loop(transport.consume_events_forever, queue, "price.*", lambda _, event: events.add(event["n"]))
    scene.loop(transport.consume_rpc_forever, intents, answer)
    await scene.consumed(queue)
    await scene.consumed(intents)
    await asyncio.to_thread(transport.publish_events, [("price.a", {"n": number}) for number in range(100)])
    await scene.broker.stop()
    await scene.broker.start()
    since = time.monotonic()
    await scene.consumed(queue)
    await scene.consumed(intents)
    assert time.monotonic() - since < 35

    await asyncio.to_thread(
        transport.publish_events, [("price.a", {"n": number}) for number in range(100, 200)]
    )
    await until(lambda: events == set(range(200)))
    answered = await asyncio.to_thread(
        lambda: transport.call_rpc(intents, {"id": 7}, correlation_id="after", timeout=10)
    )
    assert answered == {"id": 7}
    assert asked == {"after"}
    assert transport.health() is TransportHealth.CONNECTED


async def test_after_50_forced_reconnects_there_is_one_consumer_as_before(scene, reconnects_soon):
    transport = scene.transport(timeout=5)
    queue = scene.name("momentum")
    events = set()
    scene.loop(transport.consume_events_forever, queue, "price.*", lambda _, event: events.add(event["n"]))
    await scene.consumed(queue)
    for number in range(50):
        # Both connections, and the one for alarms where there is one.
        await until(lambda: scene.broker.proxy.connections >= 2)
        await scene.broker.drop_connections()
        if not number % 10:
            await asyncio.to_thread(transport.publish_event, "price.a", {"n": number})

    await until(lambda: events == {0, 10, 20, 30, 40})
    await scene.consumed(queue)


async def test_a_handler_that_blocks_for_three_heartbeats_keeps_its_connection(scene):
    # RabbitMQ takes no heartbeat under a second seriously: it cuts after two that are missing.
    transport = scene.transport(query="?heartbeat=1", timeout=5)
    queue = scene.name("momentum")
    runs, ended = [], threading.Event()

    def handle(_, event):
        runs.append(event["n"])
        time.sleep(3.2)
        ended.set()

    stop, thread = scene.loop(transport.consume_events_forever, queue, "#", handle)
    await scene.consumed(queue)
    await asyncio.to_thread(transport.publish_event, "a.b", {"n": 1})
    before = scene.broker.proxy.accepted
    assert await asyncio.to_thread(ended.wait, 10)
    since = time.monotonic()
    stop.set()
    await asyncio.to_thread(thread.join, 5)

    assert time.monotonic() - since < 0.5
    assert scene.broker.proxy.accepted == before
    assert runs == [1]
    await until(lambda: scene.count(queue) == (0, 0))


async def test_a_loop_ends_within_half_a_second_of_stop_though_nothing_comes_through(scene):
    transport = scene.transport(timeout=1)
    queue = scene.name("momentum")
    stop, thread = scene.loop(transport.consume_events_forever, queue, "#", lambda *_: None)
    await scene.consumed(queue)
    scene.broker.proxy.half_open()
    since = time.monotonic()
    stop.set()
    await asyncio.to_thread(thread.join, 5)

    assert time.monotonic() - since < 0.6
    scene.broker.proxy.hand_on()
    await scene.broker.drop_connections()


async def test_an_intent_queue_without_single_active_consumer_is_used_with_a_warning(scene, caplog):
    intents = scene.name("intent.req")
    await scene.broker.declare_queue(intents, {"x-dead-letter-exchange": scene.name("events.dlq")})
    transport = scene.transport(timeout=5)
    caplog.set_level(logging.WARNING)
    scene.loop(transport.consume_rpc_forever, intents, lambda request: RpcResponse(request.payload))
    await scene.consumed(intents)

    assert await asyncio.to_thread(
        lambda: transport.call_rpc(intents, {"id": 7}, correlation_id="c", timeout=5)
    ) == {"id": 7}
    assert any("x-single-active-consumer" in record.getMessage() for record in caplog.records)


async def test_an_event_whose_handler_raised_is_dead_with_its_reason_and_the_next_one_goes_on(scene):
    transport = scene.transport(timeout=5)
    queue = scene.name("momentum")
    seen = []

    def handle(_, event):
        seen.append(event["n"])
        if event["n"] == 0:
            raise ValueError("no such instrument")

    scene.loop(transport.consume_events_forever, queue, "price.*", handle)
    await scene.consumed(queue)
    await asyncio.to_thread(transport.publish_events, [("price.a", {"n": n}) for n in range(2)])
    await until(lambda: seen == [0, 1])
    await until(lambda: scene.count(scene.name("events.dlq"))[0] == 1)

    [(properties, payload)] = scene.take(scene.name("events.dlq"))
    assert payload == {"n": 0}
    assert properties.headers["leveret-reason"] == "ValueError: no such instrument"
    await until(lambda: scene.count(queue)[0] == 0)


async def test_a_keeper_takes_in_the_dead_letters_of_a_sync_transport_and_they_can_be_replayed(
    scene, tmp_path, caplog
):
    transport = scene.transport(timeout=5)
    queue = scene.name("momentum")
    seen = []

    def handle(_, event):
        seen.append(event["n"])
        if seen == [1]:
            raise ValueError("not yet")

    await asyncio.to_thread(transport.publish_event, "nobody.listens", {"n": 0})
    scene.loop(transport.consume_events_forever, queue, "price.*", handle)
    await scene.consumed(queue)
    await asyncio.to_thread(transport.publish_event, "price.a", {"n": 1})
    app = Leveret(scene.namespace, broker=scene.url(), store=f"sqlite:///{tmp_path}/kept.db")
    async with app.running(), asyncio.timeout(30):
        while await app.dead_letters.count() < 2:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.05)
        letters = {letter.routing_key: letter for letter in (await app.dead_letters.list())}
        assert letters["nobody.listens"].ending == "unroutable"
        assert letters["price.a"].reason == "ValueError: not yet"
        assert letters["price.a"].queue == queue
        await app.dead_letters.replay(letters["price.a"].id)
        await until(lambda: seen == [1, 1])
    assert not [record for record in caplog.records if "leveret declares" in record.getMessage()]
