"""Closing while messages stream in: what was acked before is acked, and the broker is told goodbye."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.rabbitmq_scene import until

from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.testing.transport_contract import Inbox

#: A body takes several reads, so that one is always half read.
SIZE = 300_000
MESSAGES = 60
#: A timestamp that is no date: whoever decodes it ends the connection over it.
ODD = Properties(b"\x20\x00\x00\x00\x00\x0b\x01tT" + b"\xff" * 8)


@pytest.fixture
async def queue(broker):
    await broker.declare_queue(name := f"closing-{uuid.uuid4().hex[:8]}")
    yield name
    await broker.delete_queue(name)


@pytest.mark.gentle
async def test_close_among_arriving_messages_is_a_goodbye_and_what_was_acked_does_not_come_back(
    connect, queue
):
    sender = await connect()
    for number in range(MESSAGES):
        await sender.send(Outgoing("", queue, b"%03d" % number + bytes(SIZE), ODD))
    transport = await connect()
    inbox = Inbox(ack=True)
    await transport.consume(queue, inbox, prefetch=1000)
    await inbox.until(5)
    connection = transport._consuming.connection
    async with asyncio.timeout(4):
        await transport.close()
    assert connection.gone.result().words == "the connection was closed"
    acked = {delivery.body[:3] for delivery in inbox.deliveries}
    left = []
    while (delivery := await sender.get(queue)) is not None:
        delivery.ack()
        left.append(delivery.body[:3])
    assert acked.isdisjoint(left)
    assert len(acked) + len(left) == MESSAGES


async def has_one(place, name):
    channel = place.broker.channel()
    while channel.queue_declare(place.queue(name), passive=True).method.message_count != 1:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def test_an_app_stops_in_time_on_a_line_that_swallows_packets(place, monkeypatch):
    # Instead of five seconds each; the heartbeat would take a minute.
    monkeypatch.setattr("leveret.transports.rabbitmq.delivery.LEAVE", 0.2)
    monkeypatch.setattr("leveret.transports.rabbitmq.transport._CLOSE", 0.2)
    app = place.app(shutdown_grace=0.5)

    for name in ("charge", "book", "ship"):

        @app.worker("order.placed", name=name)
        async def handle(order: dict) -> None:
            await asyncio.Event().wait()

    await app.open()
    running = app.running()
    await running.__aenter__()
    await app.publish("order.placed", {})
    await until(lambda: app._open.runner.in_hand == 3)
    place.broker.proxy.swallow()
    async with asyncio.timeout(8):
        await running.__aexit__(None, None, None)
        await app.close()
    place.broker.proxy.hand_on()
    place.broker.proxy.cut()
    # Not acked, so the broker has all three back.
    async with asyncio.timeout(10):
        for name in ("charge", "book", "ship"):
            await has_one(place, name)
