"""Cuts, half-open lines, alarms and kills (A08, B01, B03, B04, C08, D12)."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace

import pytest
from tests.rabbitmq_scene import PLAIN_TYPE, until, url_of

from leveret.core.errors import BrokerUnreachable, PublishRefused, PublishTimeout
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Queue, Topology
from leveret.testing.transport_contract import Inbox

PLAIN = Properties.build()


@pytest.fixture
async def queue(broker):
    await broker.declare_queue(name := f"outages-{uuid.uuid4().hex[:8]}")
    yield name
    await broker.delete_queue(name)


async def bodies(transport, queue):
    found = set()
    while (delivery := await transport.get(queue)) is not None:
        delivery.ack()
        found.add(delivery.body)
    return found


@pytest.mark.gentle
@pytest.mark.parametrize("size", [1, 1400, 65_000, 150_003])
async def test_a_line_cut_in_mid_frame_settles_every_publish_and_keeps_what_was_confirmed(
    connect, broker, queue, size
):
    transport = await connect()
    broker.proxy.cut_after(size)
    sent = [
        transport.send(Outgoing("", queue, f"{number:04}".encode() + bytes(1020), PLAIN))
        for number in range(200)
    ]
    async with asyncio.timeout(30):
        came_to = await asyncio.gather(*sent, return_exceptions=True)
    assert {type(outcome) for outcome in came_to} <= {type(None), PublishTimeout}
    assert PublishTimeout in {type(outcome) for outcome in came_to}
    async with asyncio.timeout(30):
        await transport.ready()
    there = {body[:4] for body in await bodies(await connect(), queue)}
    assert there >= {f"{number:04}".encode() for number, outcome in enumerate(came_to) if outcome is None}


@pytest.mark.gentle
async def test_a08_a_line_that_swallows_packets_never_says_ok(connect, broker, queue):
    # The heartbeat finds out; a publish has its own deadline besides, kept by whoever sends.
    transport = await connect(replace(broker.url, heartbeat=1))
    broker.proxy.swallow()
    sent = transport.send(Outgoing("", queue, b"swallowed", PLAIN))
    with pytest.raises(PublishTimeout, match="heartbeat"):
        await asyncio.wait_for(sent, 15)
    broker.proxy.hand_on()
    async with asyncio.timeout(30):
        await transport.ready()
        await transport.send(Outgoing("", queue, b"later", PLAIN))
    # Ready to send says nothing of the connection that reads, which may still wait for its next try.
    assert await bodies(await connect(), queue) == {b"later"}


async def test_b01_c08_d12_after_50_forced_reconnects_under_load_all_is_as_before(
    rabbitmq, connect, broker, queue
):
    transport = await connect()
    assert await transport.declare(Topology(queues=(Queue(queue, PLAIN_TYPE),))) == []
    inbox = Inbox()
    subscription = await transport.consume(queue, inbox, prefetch=3)
    confirmed = set()
    stopping = False

    async def publish() -> None:
        number = 0
        while not stopping:
            await transport.ready()
            number += 1
            body = str(number).encode()
            try:
                await transport.send(Outgoing("", queue, body, PLAIN))
            except (PublishTimeout, PublishRefused):
                continue
            confirmed.add(body)

    publishing = asyncio.create_task(publish())
    for _ in range(50):
        await until(lambda: subscription.active and transport.state == "connected")
        await until(lambda: inbox.deliveries and not inbox.deliveries[-1].stale)
        newest = inbox.deliveries[-1]
        broker.proxy.cut()
        await until(lambda newest=newest: newest.stale)
    stopping = True
    await until(lambda: subscription.active and transport.state == "connected")
    async with asyncio.timeout(30):
        await publishing
    row = []
    async with asyncio.timeout(30):
        # A quorum queue counts its consumers now and then.
        while row[1:2] != ["1"] or int(row[2]) > 3:
            listed = await asyncio.to_thread(
                rabbitmq.ctl,
                "list_queues",
                "--no-table-headers",
                "name",
                "consumers",
                "messages_unacknowledged",
            )
            (row,) = [line.split() for line in listed.splitlines() if line.startswith(queue)]
    channels = await asyncio.to_thread(
        rabbitmq.ctl, "list_channels", "--no-table-headers", "connection", "prefetch_count"
    )
    # One to publish, one to consume, one to declare: and nothing left of earlier connections.
    assert len(channels.splitlines()) == 3
    await subscription.cancel()
    assert len(confirmed) > 50
    done = {delivery.body for delivery in inbox.deliveries if delivery.ack()}
    assert done | await bodies(transport, queue) >= confirmed


async def test_b04_close_is_bounded_while_the_broker_reads_nothing(rabbitmq, connect, broker, queue):
    transport = await connect(url_of(rabbitmq.port))
    await broker.block()
    try:
        sent = transport.send(Outgoing("", queue, bytes(30_000_000), PLAIN))
        await until(lambda: transport.state == "blocked")
        assert transport.buffered > 0
        started = time.monotonic()
        await transport.close()
        assert time.monotonic() - started < 5
        with pytest.raises(PublishTimeout):
            await sent
        assert transport.state == "closed"
    finally:
        await broker.unblock()


@pytest.mark.gentle
async def test_close_is_bounded_on_a_line_that_swallows_packets(connect, broker):
    transport = await connect()
    broker.proxy.swallow()
    started = time.monotonic()
    await transport.close()
    assert time.monotonic() - started < 6
    assert transport.state == "closed"


@pytest.mark.gentle
async def test_what_is_buffered_goes_out_and_whoever_waits_is_told(connect, queue):
    transport = await connect()
    # From 4.0 on RabbitMQ takes bodies of 16 MiB at most, unless told otherwise.
    sent = transport.send(Outgoing("", queue, bytes(16_000_000), PLAIN))
    assert transport.buffered > 0
    async with asyncio.timeout(30):
        await transport.drained()
        assert transport.buffered == 0
        await sent
    assert len((await transport.get(queue)).body) == 16_000_000


async def test_b03_the_100th_send_while_the_broker_is_down_ends_like_the_first(connect, broker, queue):
    transport = await connect()
    await broker.stop()
    try:
        await until(lambda: transport.state == "disconnected")
        for _ in range(100):
            with pytest.raises(PublishRefused):
                await asyncio.wait_for(transport.send(Outgoing("", queue, b"", PLAIN)), 1)
        with pytest.raises(BrokerUnreachable):
            await transport.queue_state(queue)
    finally:
        await broker.start()
    async with asyncio.timeout(30):
        await transport.ready()
        await transport.send(Outgoing("", queue, b"", PLAIN))


async def test_a_broker_killed_under_load_has_all_it_confirmed_and_consumers_come_back(
    rabbitmq, connect, broker, queue
):
    transport = await connect()
    if PLAIN_TYPE == "quorum":
        # Half a second after a quorum queue was declared its node writes down that it has one. Killed before, it begins
        # with an empty queue; that is RabbitMQ's own, on every version, and no client can tell.
        await asyncio.sleep(1)
    inbox = Inbox()
    subscription = await transport.consume(queue, inbox, prefetch=10)
    sent = [transport.send(Outgoing("", queue, str(number).encode(), PLAIN)) for number in range(500)]
    await until(lambda: sum(answer.done() for answer in sent) > 50)
    broker.close()
    rabbitmq.kill()
    async with asyncio.timeout(30):
        came_to = await asyncio.gather(*sent, return_exceptions=True)
    await asyncio.to_thread(rabbitmq.start)
    await until(lambda: subscription.active and transport.state == "connected")
    await subscription.cancel()
    done = {delivery.body for delivery in inbox.deliveries if delivery.ack()}
    expected = {str(number).encode() for number, outcome in enumerate(came_to) if outcome is None}
    assert len(expected) > 50
    async with asyncio.timeout(30):
        # A quorum queue hands out nothing before it has a leader again.
        while not done >= expected:
            done |= await bodies(transport, queue)


@pytest.mark.gentle
async def test_abort_ends_as_a_process_that_dies_and_the_broker_has_all_back(connect, queue):
    transport, other = await connect(), await connect()
    await transport.consume(queue, inbox := Inbox(), prefetch=10)
    await other.send(Outgoing("", queue, b"one", PLAIN))
    (delivery,) = await inbox.until(1)
    sent = transport.send(Outgoing("", queue, b"two", PLAIN))
    transport.abort()
    transport.abort()
    assert (transport.state, delivery.ack(), transport.sendable) == ("closed", False, False)
    async with asyncio.timeout(10):
        await asyncio.wait((sent,))
    await until(lambda: delivery.stale)
    found = set()
    async with asyncio.timeout(10):
        while b"one" not in found:
            found |= await bodies(other, queue)
    await transport.close()
