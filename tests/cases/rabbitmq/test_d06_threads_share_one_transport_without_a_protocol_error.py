"""D06: 50 threads publish while 10 threads handle and ack: all confirmed, and the broker finds no fault with a frame.

Fewer publishes a thread than in the row: tests/integration/rabbitmq/test_sync_publishing.py has 64 times 1000.
"""

from __future__ import annotations

import threading

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until
from tests.sync_scene import SyncScene

#: By each of 50 threads.
EVENTS = 100


@pytest.fixture
async def scene(shop: Shop):
    async with SyncScene(shop.broker) as scene:
        yield scene


async def test_d06_50_threads_publish_while_10_ack_all_is_confirmed_and_no_connection_is_lost(
    scene: SyncScene, caplog
):
    transport = scene.transport(timeout=20)
    lock, seen = threading.Lock(), set()

    def handle(key: str, event: dict) -> None:
        with lock:
            seen.add((key, event["n"]))

    for number in range(10):
        queue = scene.name(f"strategy-{number}")
        scene.loop(transport.consume_events_forever, queue, f"price.{number}", handle)
        await scene.consumed(queue)

    def publish(thread: int) -> None:
        for number in range(EVENTS):
            transport.publish_event(f"price.{thread % 10}", {"n": thread * EVENTS + number})

    await scene.threads(50, publish)

    await until(lambda: len(seen) == 50 * EVENTS)
    assert seen == {(f"price.{n // EVENTS % 10}", n) for n in range(50 * EVENTS)}
    await scene.stop_loops()
    for number in range(10):
        assert scene.count(scene.name(f"strategy-{number}")) == (0, 0)
    # One connection to publish and one to consume, from the beginning to the end.
    assert scene.broker.proxy.accepted == 2
    assert not [each for each in caplog.records if "connect" in getattr(each, "action", "")]
