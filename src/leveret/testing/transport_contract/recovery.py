"""Cuts, restarts, and queues that somebody deletes."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from leveret.core.errors import BrokerUnreachable
from leveret.core.topology import Binding, Queue, Topology
from leveret.testing.transport_contract.scene import (
    PATIENCE,
    RESTART,
    Inbox,
    Scene,
    message,
    outcomes,
)


class Recovery:
    """After any outage all is back by itself, once."""

    async def test_a_cut_makes_deliveries_stale_and_the_messages_come_again_flagged(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await outcomes(transport, [message(queue, body) for body in (b"a", b"b", b"c")])
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=2)
        before = [*await inbox.until(2), await scene.get(transport, queue)]
        await scene.broker.drop_connections()
        await scene.until(lambda: all(delivery.stale for delivery in before))
        assert [(delivery.ack(), delivery.requeue()) for delivery in before] == [(False, False)] * 3
        assert all(delivery.ack() for delivery in (await inbox.until(4))[2:])
        after = (await inbox.until(5))[2:]
        assert all(delivery.redelivered for delivery in after)
        # The one that was fetched went by another channel, which may have been missed earlier or later.
        bodies = [delivery.body for delivery in after]
        assert [body for body in bodies if body != b"c"] == [b"a", b"b"]
        assert b"c" in bodies

    async def test_after_20_cuts_there_is_one_consumer_with_its_prefetch(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await outcomes(transport, [message(queue) for _ in range(10)])
        inbox = Inbox()
        subscription = await transport.consume(queue, inbox, prefetch=2)
        seen = 2
        await inbox.until(seen)
        for _ in range(20):
            newest = inbox.deliveries[-1]
            await scene.broker.drop_connections()
            await scene.until(partial(getattr, newest, "stale"))
            await scene.until(lambda: subscription.active)
            seen += 2
            await inbox.until(seen)
        await scene.lies(transport, queue, ready=8, consumers=1)
        assert len(inbox.deliveries) == seen

    async def test_a_queue_of_ours_that_somebody_deletes_is_back_with_its_bindings_and_its_consumer(
        self, scene: Scene
    ) -> None:
        exchange, queue = scene.exchange(), scene.name()
        transport = await scene.connect()
        await transport.declare(
            Topology((exchange,), (Queue(queue),), (Binding(exchange.name, queue, "order.*"),))
        )
        inbox = Inbox()
        subscription = await transport.consume(queue, inbox, prefetch=5)
        await transport.send(message("order.placed", exchange=exchange.name))
        lost = (await inbox.until(1))[0]
        await scene.broker.delete_queue(queue)
        await scene.until(lambda: lost.stale)
        assert lost.ack() is False
        await scene.until(lambda: subscription.active)
        await transport.send(message("order.placed", b"again", exchange=exchange.name))
        assert (await inbox.until(2))[1].body == b"again"

    async def test_a_queue_of_somebody_else_is_consumed_again_once_it_is_back(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        inbox = Inbox()
        subscription = await transport.consume(queue, inbox, prefetch=5)
        await scene.broker.delete_queue(queue)
        await scene.until(lambda: not subscription.active)
        await scene.broker.declare_queue(queue, {"x-max-length": 1000})
        await scene.until(lambda: subscription.active)
        await transport.send(message(queue))
        await inbox.until(1)

    async def test_a_restart_keeps_what_is_persistent_and_consumers_come_back(self, scene: Scene) -> None:
        scene.needs(RESTART)
        queue, watched = (
            await scene.queue(arguments={"x-queue-type": "classic"}),
            await scene.queue("watched"),
        )
        transport = await scene.connect()
        inbox = Inbox(ack=True)
        subscription = await transport.consume(watched, inbox, prefetch=1)
        await transport.send(message(queue, b"kept"))
        await transport.send(message(queue, b"lost", delivery_mode=1))
        await scene.broker.stop()
        await scene.until(lambda: transport.state not in {"connected", "blocked"})
        with pytest.raises(BrokerUnreachable):
            await scene.connect()
        await scene.broker.start()
        async with asyncio.timeout(PATIENCE):
            await transport.ready()
        await scene.until(lambda: subscription.active)
        await transport.send(message(watched))
        await inbox.until(1)
        assert (await scene.get(transport, queue)).body == b"kept"
        assert await transport.get(queue) is None

    async def test_close_gives_back_what_was_unsettled_and_can_be_repeated(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport, other = await scene.connect(), await scene.connect()
        await transport.send(message(queue, b"one"))
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=1)
        delivery = (await inbox.until(1))[0]
        async with asyncio.timeout(PATIENCE):
            await transport.close()
            await transport.close()
        assert transport.state == "closed"
        assert (delivery.stale, delivery.ack()) == (True, False)
        await scene.lies(other, queue, ready=1, consumers=0)
        again = await scene.get(other, queue)
        assert (again.body, again.redelivered) == (b"one", True)
