"""Queues and exchanges that are there, as asked for or otherwise."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.core.errors import QueueMismatch
from leveret.core.topology import Binding, Queue, RMQExchangeConfig, Topology
from leveret.testing.transport_contract.scene import (
    PATIENCE,
    TIME,
    Inbox,
    Scene,
    message,
)


class Declaring:
    """What is declared is there; what differs is used and told, or refused by name."""

    async def test_declaring_twice_changes_nothing_and_says_nothing(self, scene: Scene) -> None:
        exchange, queue = scene.exchange(), scene.name()
        topology = Topology((exchange,), (Queue(queue, pinned=True),), (Binding(exchange.name, queue, "#"),))
        transport = await scene.connect()
        assert list(await transport.declare(topology)) == []
        await transport.send(message(queue))
        assert list(await transport.declare(topology)) == []
        await scene.lies(transport, queue, ready=1)

    @pytest.mark.parametrize(
        ("arguments", "argument"),
        [
            ({"x-queue-type": "quorum"}, "x-queue-type"),
            ({"x-max-priority": 5}, "x-max-priority"),
            ({"x-max-length": 100, "x-overflow": "reject-publish"}, "x-max-length"),
            ({"x-dead-letter-exchange": "elsewhere"}, "x-dead-letter-exchange"),
        ],
    )
    async def test_a_queue_that_differs_harmlessly_is_used_and_said_so(
        self, scene: Scene, arguments: dict[str, Any], argument: str
    ) -> None:
        queue = await scene.queue(arguments=arguments)
        transport = await scene.connect()
        notes = list(await transport.declare(Topology(queues=(Queue(queue),))))
        assert any(queue in note and argument in note for note in notes)
        await transport.send(message(queue))
        assert await transport.get(queue) is not None

    @pytest.mark.parametrize(
        ("arguments", "argument", "value"),
        [
            ({"x-expires": 600_000}, "x-expires", "600000"),
            ({"x-message-ttl": 60_000}, "x-message-ttl", "60000"),
            ({"x-max-length": 100}, "x-max-length", "100"),
            ({"x-queue-type": "quorum", "x-delivery-limit": 5}, "x-delivery-limit", "5"),
        ],
    )
    async def test_a_queue_that_loses_messages_is_refused_by_name(
        self, scene: Scene, arguments: dict[str, Any], argument: str, value: str
    ) -> None:
        queue = await scene.queue(arguments=arguments)
        transport = await scene.connect()
        with pytest.raises(QueueMismatch) as caught:
            await transport.declare(
                Topology(queues=(Queue(queue, arguments.get("x-queue-type", "classic")),))
            )
        assert all(word in str(caught.value) for word in (queue, argument, value))
        # The connection is as good as before.
        await transport.send(message(queue))

    async def test_a_queue_that_does_not_outlive_a_restart_is_refused_by_name(self, scene: Scene) -> None:
        await scene.broker.declare_queue(queue := scene.name(), durable=False)
        transport = await scene.connect()
        with pytest.raises(QueueMismatch, match="durable"):
            await transport.declare(Topology(queues=(Queue(queue),)))

    async def test_a_quorum_queue_cannot_stand_in_for_one_that_is_consumed_exclusively(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue(arguments={"x-queue-type": "quorum"})
        transport = await scene.connect()
        with pytest.raises(QueueMismatch, match="x-queue-type"):
            await transport.declare(Topology(queues=(Queue(queue, "classic", pinned=True),)))

    async def test_an_exchange_of_another_type_is_refused_by_name(self, scene: Scene) -> None:
        exchange = scene.exchange(type="fanout")
        transport = await scene.connect()
        await transport.declare(Topology(exchanges=(exchange,)))
        with pytest.raises(QueueMismatch, match="fanout"):
            await transport.declare(Topology(exchanges=(RMQExchangeConfig(exchange.name, "topic"),)))

    async def test_a_look_makes_nothing_that_is_missing(self, scene: Scene) -> None:
        exchange, queue = scene.exchange(), scene.name()
        topology = Topology((exchange,), (Queue(queue),), (Binding(exchange.name, queue, "#"),))
        transport = await scene.connect()
        for _ in range(2):
            found = await transport.inspect(topology)
            assert [(each.kind, each.name, each.state) for each in found] == [
                ("exchange", exchange.name, "missing"),
                ("queue", queue, "missing"),
            ]
        assert await transport.queue_state(queue) is None
        await transport.declare(topology)
        assert list(await transport.inspect(topology)) == []

    @pytest.mark.parametrize(
        ("arguments", "state", "argument", "there"),
        [
            ({"x-queue-type": "quorum"}, "differs", "x-queue-type", "quorum"),
            ({"x-max-priority": 5}, "differs", "x-max-priority", 5),
            ({"x-message-ttl": 60_000}, "unsafe", "x-message-ttl", 60_000),
        ],
    )
    async def test_a_look_tells_each_argument_that_differs_and_changes_nothing(
        self, scene: Scene, arguments: dict[str, Any], state: str, argument: str, there: object
    ) -> None:
        queue = await scene.queue(arguments=arguments)
        transport = await scene.connect()
        await transport.send(message(queue))
        for _ in range(2):
            found = await transport.inspect(Topology(queues=(Queue(queue),)))
            # A broker may have more to tell of a quorum queue, such as what it has no limit against.
            (told,) = (each for each in found if each.argument == argument)
            assert (told.name, told.state, told.there) == (queue, state, there)
            assert queue in told.words
        await scene.lies(transport, queue, ready=1)

    async def test_a_look_tells_of_an_exchange_of_another_type(self, scene: Scene) -> None:
        exchange = scene.exchange(type="fanout")
        transport = await scene.connect()
        await transport.declare(Topology(exchanges=(exchange,)))
        found = await transport.inspect(Topology(exchanges=(RMQExchangeConfig(exchange.name, "topic"),)))
        assert [(each.kind, each.state, each.there, each.here) for each in found] == [
            ("exchange", "unsafe", "fanout", "topic")
        ]

    async def test_a_temporary_queue_comes_back_with_its_connection_and_is_gone_with_its_transport(
        self, scene: Scene
    ) -> None:
        exchange, queue = scene.exchange(type="fanout"), scene.name()
        topology = Topology(
            (exchange,), (Queue(queue, None, temporary=True),), (Binding(exchange.name, queue),)
        )
        watching, other = await scene.connect(), await scene.connect()
        assert list(await watching.declare(topology)) == []
        inbox = Inbox()
        await watching.consume(queue, inbox, prefetch=10)
        await other.send(message("", b"one", exchange=exchange.name))
        await inbox.until(1)
        await scene.broker.drop_connections()
        await scene.lies(watching, queue, consumers=1)
        await other.ready()
        await other.send(message("", b"two", exchange=exchange.name))
        await inbox.until(2)
        assert inbox.bodies == [b"one", b"two"]
        await watching.close()
        async with asyncio.timeout(PATIENCE):
            while await other.queue_state(queue) is not None:
                await scene.broker.turn()

    async def test_what_expires_goes_to_the_dead_letter_exchange_with_its_death(self, scene: Scene) -> None:
        scene.needs(TIME)
        dead = await scene.queue("dead")
        queue = await scene.queue(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
        transport = await scene.connect()
        await transport.send(message(queue, b"late", expiration="1000", message_id="id"))
        await scene.broker.advance(1.5)
        await scene.lies(transport, dead, ready=1)
        delivery = await scene.get(transport, dead)
        assert (delivery.body, delivery.properties.message_id) == (b"late", "id")
        assert delivery.properties.expiration is None
        [death] = delivery.properties.header("x-death")
        assert (death["queue"], death["reason"], death["count"], death["routing-keys"]) == (
            queue,
            "expired",
            1,
            [queue],
        )
        assert death["original-expiration"] == "1000"

    async def test_what_waits_behind_a_longer_wait_expires_after_it(self, scene: Scene) -> None:
        scene.needs(TIME)
        queue = await scene.queue(arguments={"x-queue-type": "classic"})
        transport = await scene.connect()
        await transport.send(message(queue, expiration="3000"))
        await transport.send(message(queue, expiration="1000"))
        await scene.broker.advance(1.5)
        await scene.lies(transport, queue, ready=2)
        await scene.broker.advance(2)
        await scene.lies(transport, queue, ready=0)

    async def test_what_a_full_queue_drops_goes_to_the_dead_letter_exchange(self, scene: Scene) -> None:
        dead = await scene.queue("dead")
        queue = await scene.queue(
            arguments={"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        )
        transport = await scene.connect()
        for body in (b"a", b"b", b"c"):
            await transport.send(message(queue, body))
        await scene.lies(transport, dead, ready=1)
        delivery = await scene.get(transport, dead)
        assert delivery.body == b"a"
        assert delivery.properties.header("x-death")[0]["reason"] == "maxlen"

    async def test_a_quorum_queue_counts_returns_and_gives_up_at_its_limit(self, scene: Scene) -> None:
        dead = await scene.queue("dead")
        queue = await scene.queue(
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": 2,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead,
            }
        )
        transport = await scene.connect()
        await transport.send(message(queue))
        counts = []
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=1)
        for returned in range(1, 4):
            delivery = (await inbox.until(returned))[-1]
            counts.append(delivery.properties.header("x-delivery-count", 0))
            delivery.requeue()
        assert counts == [0, 1, 2]
        await scene.lies(transport, dead, ready=1)
        assert (await scene.get(transport, dead)).properties.header("x-death")[0][
            "reason"
        ] == "delivery_limit"
