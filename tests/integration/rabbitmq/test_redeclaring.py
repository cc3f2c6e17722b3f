"""After the broker has lost what was declared, all is declared again: one part that is refused keeps no other away."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest
from tests.rabbitmq_scene import until

from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Binding, Queue, RMQExchangeConfig, Topology
from leveret.testing.transport_contract import Inbox

pytestmark = pytest.mark.gentle


async def test_a_queue_that_somebody_else_made_meanwhile_keeps_no_other_from_coming_back(
    broker, connect, caplog
):
    name = f"redeclared-{uuid.uuid4().hex[:8]}"
    theirs, ours = f"{name}-1", f"{name}-2"
    transport = await connect()
    await transport.declare(
        Topology((RMQExchangeConfig(name),), (Queue(theirs), Queue(ours)), (Binding(name, ours, "order.*"),))
    )
    subscription = await transport.consume(ours, inbox := Inbox(ack=True), prefetch=1)
    await broker.delete_queue(theirs)
    await broker.delete_queue(ours)
    await broker.declare_queue(theirs, {"x-message-ttl": 1000})
    try:
        broker.proxy.cut()
        await until(lambda: transport.state != "connected")
        async with asyncio.timeout(20):
            await transport.ready()
            await transport.send(Outgoing(name, "order.placed", b"one", Properties.build()))
            assert (await inbox.until(1))[0].body == b"one"
        assert subscription.active
        (said,) = {record.getMessage() for record in caplog.records if record.levelno == logging.ERROR}
        assert theirs in said
        assert "x-message-ttl" in said
    finally:
        for queue in (theirs, ours):
            await broker.delete_queue(queue)
        await broker.delete_exchange(name)
