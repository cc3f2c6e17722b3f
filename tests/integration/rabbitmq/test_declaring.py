"""What is declared on a real broker beyond the contract: permissions, exclusive queues, exchanges that differ."""

from __future__ import annotations

import asyncio
import shlex
import uuid
from dataclasses import replace

import pytest
from tests.rabbitmq_scene import until

from leveret.core.errors import AccessRefused, NotFound, QueueMismatch
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Binding, Queue, RMQExchangeConfig, Topology

pytestmark = pytest.mark.gentle


@pytest.fixture
async def name(broker):
    name = f"declaring-{uuid.uuid4().hex[:8]}"
    yield name
    await broker.delete_queue(name)
    await broker.delete_exchange(name)


async def test_a_user_without_permission_is_told_so_and_keeps_the_connection(rabbitmq, broker, connect, name):
    user = f"user-{uuid.uuid4().hex[:8]}"
    rabbitmq.ctl("add_user", user, "password")
    rabbitmq.ctl("set_permissions", user, "^$", ".*", ".*")
    transport = await connect(replace(broker.url, user=user, password="password"))
    for topology in (Topology(queues=(Queue(name),)), Topology(exchanges=(RMQExchangeConfig(name),))):
        with pytest.raises(AccessRefused, match=f"403 ACCESS_REFUSED.*{name}") as caught:
            await transport.declare(topology)
        assert "set_permissions" in str(caught.value)
    await broker.declare_queue(name)
    await transport.send(Outgoing("", name, b"", Properties.build()))


async def test_a_queue_of_another_connection_alone_is_refused_by_name(broker, connect, name):
    with broker.channel() as channel:
        channel.queue_declare(name, durable=True, exclusive=True)
        transport = await connect()
        with pytest.raises(QueueMismatch, match="exclusive"):
            await transport.declare(Topology(queues=(Queue(name),)))
        channel.queue_delete(name)


async def test_a_queue_that_deletes_itself_is_refused_by_name(broker, connect, name):
    with broker.channel() as channel:
        channel.queue_declare(name, durable=True, auto_delete=True)
    transport = await connect()
    with pytest.raises(QueueMismatch, match="auto_delete"):
        await transport.declare(Topology(queues=(Queue(name),)))


async def test_a_queue_that_differs_in_many_ways_is_used_and_each_way_told(broker, connect, name):
    await broker.declare_queue(
        name,
        {
            "x-queue-type": "quorum", "x-dead-letter-exchange": "elsewhere", "x-dead-letter-routing-key": "o'clock",
            "x-max-length": 100, "x-overflow": "reject-publish", "x-single-active-consumer": True,
        },
    )  # fmt: skip
    transport = await connect()
    notes = await transport.declare(Topology(queues=(Queue(name),)))
    for argument in (
        "x-queue-type", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length", "x-overflow",
        "x-single-active-consumer",
    ):  # fmt: skip
        assert any(argument in note for note in notes), argument


async def test_a_quorum_queue_of_others_keeps_what_came_back_often_once_the_remedy_was_followed(
    rabbitmq, broker, connect, name
):
    await broker.declare_queue(name, {"x-queue-type": "quorum"})
    transport = await connect()
    notes = await transport.declare(Topology(queues=(Queue(name, "quorum"),)))
    if broker.version < (4,):
        assert notes == []
    else:
        # From 4.0 on such a queue deletes what came back 20 times, and its arguments cannot be changed any more.
        (note,) = notes
        remedy = note[note.index("rabbitmqctl ") :]
        await asyncio.to_thread(rabbitmq.ctl, *shlex.split(remedy)[1:])
    await transport.send(Outgoing("", name, b"one", Properties.build()))
    async with asyncio.timeout(20):
        for _ in range(25):
            while (delivery := await transport.get(name)) is None:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.01)
            assert delivery.body == b"one"
            assert delivery.requeue()


async def test_an_exchange_that_differs_harmlessly_is_used_and_said_so(broker, connect, name):
    with broker.channel() as channel:
        channel.exchange_declare(name, "topic", durable=False)
    transport = await connect()
    (note,) = await transport.declare(Topology(exchanges=(RMQExchangeConfig(name),)))
    assert "durable=False" in note


async def test_a_binding_to_what_is_not_there_says_what_is_missing(connect, name):
    transport = await connect()
    with pytest.raises(NotFound, match=f"404 NOT_FOUND.*{name}"):
        await transport.declare(Topology(queues=(Queue(name),), bindings=(Binding(name, name),)))


async def test_what_was_declared_is_there_again_after_the_broker_lost_it(broker, connect, name):
    transport = await connect()
    await transport.declare(
        Topology((RMQExchangeConfig(name),), (Queue(name),), (Binding(name, name, "order.*"),))
    )
    await broker.delete_queue(name)
    await broker.delete_exchange(name)
    broker.proxy.cut()
    await until(lambda: transport.state != "connected")
    async with asyncio.timeout(30):
        await transport.ready()
        # Never unroutable: nothing is let out before all is declared again.
        await transport.send(Outgoing(name, "order.placed", b"", Properties.build()))
    assert await transport.get(name) is not None
