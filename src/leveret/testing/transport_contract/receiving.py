"""What arrives, and how it is taken."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from leveret.core.errors import AccessRefused, NotFound
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Binding, ExchangeType, Queue, Topology
from leveret.testing.transport_contract.scene import (
    EXACT_BYTES,
    PATIENCE,
    Inbox,
    Scene,
    message,
    outcomes,
)


class Receiving:
    """What arrives is what was sent; who takes it takes it once, and no more than was asked for."""

    @pytest.mark.parametrize("size", [0, 1, 4096, 1024 * 1024])
    async def test_a_body_of_any_size_arrives_as_it_was(self, scene: Scene, size: int) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        await transport.send(message(queue, body))
        assert (await scene.get(transport, queue)).body == body

    async def test_all_properties_and_headers_arrive_as_they_were(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        properties = Properties.build(
            content_type="application/json",
            content_encoding="gzip",
            headers={
                "text": "é",
                "whole": 42,
                "large": 2**40,
                "real": 1.5,
                "exact": Decimal("3.14"),
                "bytes": b"\x00\xff",
                "nothing": None,
                "yes": True,
                "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
                "table": {"list": [1, {"deep": "down"}, None], "empty": {}},
            },
            delivery_mode=2,
            priority=3,
            correlation_id="correlation",
            reply_to="somewhere",
            expiration="86400000",
            message_id="id",
            timestamp=1_750_000_000,
            type="order.placed",
            user_id=transport.user,
            app_id="app",
            cluster_id="cluster",
        )
        await transport.send(Outgoing("", queue, b"{}", properties))
        arrived = (await scene.consumed(transport, queue)).properties
        for name in (
            "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
            "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id", "headers",
        ):  # fmt: skip
            assert getattr(arrived, name) == getattr(properties, name), name
        if EXACT_BYTES in scene.broker.capabilities:
            assert arrived.raw == properties.raw

    async def test_each_mandatory_publish_bears_a_tag_of_its_own_which_is_taken_off(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport, other = await scene.connect(), await scene.connect()
        for sender in (transport, other):
            await outcomes(sender, [message(queue, headers={"mine": 1}) for _ in range(50)])
        await scene.broker.drop_connections()
        await asyncio.wait_for(transport.ready(), PATIENCE)
        await scene.until(lambda: transport.state == "connected")
        await outcomes(transport, [message(queue, headers={"mine": 1}) for _ in range(50)])
        inbox = Inbox(ack=True)
        await transport.consume(queue, inbox, prefetch=200)
        arrived = await inbox.until(150)
        tags = [delivery.tag for delivery in arrived]
        assert None not in tags
        assert len(set(tags)) == 150
        assert [dict(delivery.properties.headers) for delivery in arrived] == [{"mine": 1}] * 150

    async def test_a_publish_that_is_not_mandatory_bears_no_tag(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await transport.send(message(queue, mandatory=False))
        assert (await scene.get(transport, queue)).tag is None

    async def test_a_delivery_says_where_it_came_from(self, scene: Scene) -> None:
        exchange, queue = scene.exchange(), scene.name()
        transport = await scene.connect()
        await transport.declare(
            Topology((exchange,), (Queue(queue),), (Binding(exchange.name, queue, "order.*"),))
        )
        await transport.send(message("order.placed", exchange=exchange.name))
        delivery = await scene.get(transport, queue)
        assert (delivery.queue, delivery.exchange, delivery.routing_key) == (
            queue,
            exchange.name,
            "order.placed",
        )
        assert delivery.redelivered is False
        assert delivery.stale is False

    @pytest.mark.parametrize(
        ("type", "binding", "reached", "missed"),
        [
            ("topic", "order.*", ["order.placed", "order."], ["order", "order.placed.late", "other.placed"]),
            ("topic", "order.#", ["order", "order.placed", "order.placed.late"], ["orders", "an.order"]),
            ("topic", "#.late", ["late", "order.late", "order.placed.late"], ["order.placed", "late.order"]),
            ("direct", "order", ["order"], ["order.placed", ""]),
            ("fanout", "", ["", "anything.at.all"], []),
        ],
    )
    async def test_exchanges_route_by_their_type(
        self, scene: Scene, type: ExchangeType, binding: str, reached: list[str], missed: list[str]
    ) -> None:
        exchange, queue = scene.exchange(type=type), scene.name()
        transport = await scene.connect()
        await transport.declare(
            Topology((exchange,), (Queue(queue),), (Binding(exchange.name, queue, binding),))
        )
        came_to = await outcomes(
            transport, [message(key, exchange=exchange.name) for key in reached + missed]
        )
        assert [outcome is None for outcome in came_to] == [True] * len(reached) + [False] * len(missed)

    async def test_a_queue_bound_twice_over_gets_one_copy(self, scene: Scene) -> None:
        exchange, queue = scene.exchange(), scene.name()
        transport = await scene.connect()
        bindings = (Binding(exchange.name, queue, "order.*"), Binding(exchange.name, queue, "#"))
        await transport.declare(Topology((exchange,), (Queue(queue),), bindings))
        await transport.send(message("order.placed", exchange=exchange.name))
        await scene.lies(transport, queue, ready=1)

    async def test_cc_and_bcc_reach_further_queues_and_bcc_is_taken_off(self, scene: Scene) -> None:
        to, cc, bcc = await scene.queue("to"), await scene.queue("cc"), await scene.queue("bcc")
        transport = await scene.connect()
        await transport.send(message(to, headers={"CC": [cc], "BCC": [bcc], "mine": 1}))
        for queue in (to, cc, bcc):
            delivery = await scene.consumed(transport, queue)
            assert dict(delivery.properties.headers) == {"CC": [cc], "mine": 1}

    async def test_messages_come_in_the_order_they_were_sent(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await outcomes(transport, [message(queue, str(number).encode()) for number in range(100)])
        inbox = Inbox(ack=True)
        await transport.consume(queue, inbox, prefetch=7)
        await inbox.until(100)
        assert inbox.bodies == [str(number).encode() for number in range(100)]

    async def test_a_requeued_message_comes_again_at_its_old_place_and_flagged(self, scene: Scene) -> None:
        # RabbitMQ before 4.3 puts it at the end of a quorum queue.
        queue = await scene.queue(arguments={"x-queue-type": "classic"})
        transport = await scene.connect()
        await outcomes(transport, [message(queue, body) for body in (b"a", b"b", b"c")])
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=1)
        first = (await inbox.until(1))[0]
        assert first.redelivered is False
        assert first.requeue() is True
        again = (await inbox.until(2))[1]
        assert (again.body, again.redelivered) == (b"a", True)
        again.ack()
        then = (await inbox.until(3))[2]
        assert (then.body, then.redelivered) == (b"b", False)

    async def test_a_delivery_is_settled_once(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await outcomes(transport, [message(queue), message(queue)])
        acked, requeued = await scene.get(transport, queue), await scene.get(transport, queue)
        assert acked.ack() is True
        assert (acked.ack(), acked.requeue()) == (False, False)
        assert requeued.requeue() is True
        assert (requeued.ack(), requeued.requeue()) == (False, False)
        await scene.lies(transport, queue, ready=1)

    async def test_a_consumer_never_has_more_than_its_prefetch(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await outcomes(transport, [message(queue) for _ in range(10)])
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=3)
        await inbox.until(3)
        await scene.lies(transport, queue, ready=7)
        inbox.deliveries[1].ack()
        await inbox.until(4)
        await scene.lies(transport, queue, ready=6)
        assert len(inbox.deliveries) == 4

    async def test_consumers_of_one_queue_share_it(self, scene: Scene) -> None:
        queue = await scene.queue()
        one, other = await scene.connect(), await scene.connect()
        inboxes = [Inbox(), Inbox()]
        await one.consume(queue, inboxes[0], prefetch=5)
        await other.consume(queue, inboxes[1], prefetch=5)
        await outcomes(one, [message(queue) for _ in range(10)])
        assert [len(await inbox.until(5)) for inbox in inboxes] == [5, 5]

    async def test_after_cancel_nothing_more_comes_and_what_came_can_be_settled(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await outcomes(transport, [message(queue) for _ in range(5)])
        inbox = Inbox()
        subscription = await transport.consume(queue, inbox, prefetch=2)
        await inbox.until(2)
        assert subscription.active is True
        await subscription.cancel()
        assert subscription.active is False
        await scene.lies(transport, queue, ready=3)
        acked, requeued = inbox.deliveries
        assert (acked.stale, acked.ack()) == (False, True)
        assert requeued.requeue() is True
        # Some brokers count a consumer for as long as something of it is unsettled.
        await scene.lies(transport, queue, ready=4, consumers=0)
        assert len(inbox.deliveries) == 2
        await subscription.cancel()

    async def test_an_exclusive_consumer_is_the_only_one(self, scene: Scene) -> None:
        queue = await scene.queue(arguments={"x-queue-type": "classic"})
        holder, other = await scene.connect(), await scene.connect()
        subscription = await holder.consume(queue, Inbox(), prefetch=1, exclusive=True)
        for exclusive in (True, False):
            with pytest.raises(AccessRefused):
                await other.consume(queue, Inbox(), prefetch=1, exclusive=exclusive)
        await subscription.cancel()
        shared = await other.consume(queue, Inbox(), prefetch=1)
        with pytest.raises(AccessRefused):
            await holder.consume(queue, Inbox(), prefetch=1, exclusive=True)
        await shared.cancel()
        assert (await holder.consume(queue, Inbox(), prefetch=1, exclusive=True)).active

    async def test_a_queue_that_is_not_there_cannot_be_consumed_and_harms_nobody(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=1)
        with pytest.raises(NotFound):
            await transport.consume(scene.name("missing"), Inbox(), prefetch=1)
        await transport.send(message(queue))
        await inbox.until(1)

    async def test_a_single_active_consumer_gets_all_until_it_leaves(self, scene: Scene) -> None:
        queue = await scene.queue(arguments={"x-single-active-consumer": True})
        transport = await scene.connect()
        first, second = Inbox(ack=True), Inbox(ack=True)
        active = await transport.consume(queue, first, prefetch=1)
        await transport.consume(queue, second, prefetch=1)
        await outcomes(transport, [message(queue) for _ in range(5)])
        await first.until(5)
        await active.cancel()
        await transport.send(message(queue))
        await second.until(1)
        assert (len(first.deliveries), len(second.deliveries)) == (5, 1)

    async def test_get_gives_one_message_or_none(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        assert await transport.get(queue) is None
        assert await transport.get(scene.name("missing")) is None
        await transport.send(message(queue, b"one"))
        delivery = await scene.get(transport, queue)
        assert await transport.get(queue) is None
        assert delivery.requeue() is True
        again = await scene.get(transport, queue)
        assert (again.body, again.redelivered) == (b"one", True)

    async def test_the_state_of_a_queue_counts_what_lies_ready(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        assert await transport.queue_state(scene.name("missing")) is None
        await outcomes(transport, [message(queue) for _ in range(3)])
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=1)
        await inbox.until(1)
        await scene.lies(transport, queue, ready=2, consumers=1)
