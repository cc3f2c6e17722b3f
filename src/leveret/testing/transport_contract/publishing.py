"""What becomes of a publish."""

# ruff: noqa: D102, S101
# The name of a test is its sentence, and its asserts are what it is made of.

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from typing import Any

import pytest

from leveret.core.errors import BrokerUnreachable, PublishError, PublishRefused, PublishTimeout, Unroutable
from leveret.testing.transport_contract.scene import (
    BLOCK,
    LOSE_CONFIRM,
    PATIENCE,
    REFUSE,
    RESTART,
    Inbox,
    Scene,
    code,
    message,
    outcomes,
)


class Publishing:
    """Every publish gets its own answer, and none takes another along."""

    async def test_a_confirmed_publish_lies_in_its_queue(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        await transport.send(message(queue, b"one"))
        await scene.lies(transport, queue, ready=1)
        assert (await scene.get(transport, queue)).body == b"one"

    async def test_send_returns_before_its_answer(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        sent = transport.send(message(queue))
        assert asyncio.isfuture(sent)
        assert not sent.done()
        await sent

    async def test_what_no_queue_takes_is_unroutable(self, scene: Scene) -> None:
        transport = await scene.connect()
        with pytest.raises(Unroutable):
            await transport.send(message(scene.name("nobody")))

    async def test_what_no_queue_has_to_take_is_confirmed(self, scene: Scene) -> None:
        transport = await scene.connect()
        assert await outcomes(transport, [message(scene.name("nobody"), mandatory=False)]) == [None]

    async def test_of_100_at_once_with_every_second_one_unroutable_exactly_those_are_returned(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        # Identical ids and bodies: only the tag can tell which one was returned.
        nobody = scene.name("nobody")
        came_to = await outcomes(transport, [message(key, message_id="same") for key in [queue, nobody] * 50])
        assert came_to[::2] == [None] * 50
        assert [isinstance(outcome, Unroutable) for outcome in came_to[1::2]] == [True] * 50
        await scene.lies(transport, queue, ready=50)

    async def test_a_full_queue_refuses_exactly_what_does_not_fit(self, scene: Scene) -> None:
        queue = await scene.queue(arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
        transport = await scene.connect()
        came_to = []
        for _ in range(20):
            came_to += await outcomes(transport, [message(queue)])
        assert came_to[:10] == [None] * 10
        assert [code(outcome) for outcome in came_to[10:]] == [None] * 10
        await scene.lies(transport, queue, ready=10)

    async def test_a_nack_refuses_exactly_its_publish(self, scene: Scene) -> None:
        scene.needs(REFUSE)
        queue = await scene.queue()
        transport = await scene.connect()
        await scene.broker.refuse_next(2)
        came_to = await outcomes(transport, [message(queue) for _ in range(5)])
        assert [isinstance(outcome, PublishRefused) for outcome in came_to] == [True] * 2 + [False] * 3
        await scene.lies(transport, queue, ready=3)

    async def test_a_missing_exchange_tells_its_own_callers_and_takes_no_neighbour_along(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        missing = scene.exchange("missing").name
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=100)
        sent = [message(queue, exchange=missing if number % 11 == 5 else "") for number in range(55)]
        came_to = await outcomes(transport, sent)
        refused = [outcome for outcome in came_to if outcome is not None]
        assert [code(outcome) for outcome in refused] == [404] * 5
        assert [outcome is not None for outcome in came_to] == [number % 11 == 5 for number in range(55)]
        await inbox.until(50)
        assert await outcomes(transport, [message(queue)]) == [None]
        await inbox.until(51)

    @pytest.mark.parametrize("culprit", [{"user_id": "somebody-else"}, {"expiration": "soon"}])
    async def test_properties_that_the_broker_refuses_take_no_neighbour_along(
        self, scene: Scene, culprit: dict[str, Any]
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        came_to = await outcomes(
            transport, [message(queue, **(culprit if number == 7 else {})) for number in range(20)]
        )
        assert [outcome is not None for outcome in came_to] == [number == 7 for number in range(20)]
        assert code(came_to[7]) == 406

    async def test_headers_over_the_frame_size_take_no_neighbour_along(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        large = {"large": "x" * transport.frame_max}
        came_to = await outcomes(
            transport, [message(queue, headers=large if number == 3 else None) for number in range(20)]
        )
        assert [outcome is not None for outcome in came_to] == [number == 3 for number in range(20)]
        assert isinstance(came_to[3], PublishRefused)

    async def test_a_routing_key_over_255_bytes_is_refused_and_the_connection_stays(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        came_to = await outcomes(transport, [message("é" * 128), message(queue)])
        assert isinstance(came_to[0], PublishError)
        assert came_to[1] is None

    async def test_cancelling_a_send_touches_no_other(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        sent = [transport.send(message(queue)) for _ in range(10)]
        sent[4].cancel()
        async with asyncio.timeout(PATIENCE):
            came_to = await asyncio.gather(*sent, return_exceptions=True)
        assert [number for number, outcome in enumerate(came_to) if outcome is not None] == [4]
        await scene.lies(transport, queue, ready=10)

    async def test_an_answer_that_nobody_waits_for_is_no_complaint(self, scene: Scene) -> None:
        transport = await scene.connect()
        complaints: list[Mapping[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        ignored = transport.send(message(scene.name("nobody")))
        await scene.until(ignored.done)
        del ignored
        gc.collect()
        assert complaints == []

    async def test_a_send_after_close_is_refused_and_not_sent(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport, other = await scene.connect(), await scene.connect()
        await transport.close()
        assert transport.sendable is False
        with pytest.raises(PublishRefused):
            await transport.send(message(queue))
        await scene.lies(other, queue, ready=0)

    async def test_a_send_while_the_broker_is_down_is_refused(self, scene: Scene) -> None:
        scene.needs(RESTART)
        queue = await scene.queue()
        transport = await scene.connect()
        await scene.broker.stop()
        await scene.until(lambda: transport.state not in {"connected", "blocked"})
        with pytest.raises(PublishRefused):
            await transport.send(message(queue))
        await scene.broker.start()

    async def test_ready_lets_more_publishers_through_than_the_window_holds(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()

        async def publish() -> None:
            await transport.ready()
            await transport.send(message(queue))

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            for _ in range(2500):
                tasks.create_task(publish())
        await scene.lies(transport, queue, ready=2500)

    async def test_a_publish_that_is_given_up_takes_no_place_in_the_window(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        sent = [transport.send(message(queue)) for _ in range(1000)]
        ready = asyncio.create_task(transport.ready())
        assert transport.sendable is False
        for answer in sent:
            answer.cancel()
        assert transport.sendable is True
        async with asyncio.timeout(PATIENCE):
            await ready
            await transport.send(message(queue))
        await scene.lies(transport, queue, ready=1001)

    async def test_while_blocked_nothing_goes_out_but_acks_do(self, scene: Scene) -> None:
        scene.needs(BLOCK)
        queue = await scene.queue()
        transport = await scene.connect()
        await outcomes(transport, [message(queue, b"first"), message(queue, b"second")])
        inbox = Inbox()
        await transport.consume(queue, inbox, prefetch=1)
        await inbox.until(1)
        await scene.broker.block()
        held = asyncio.ensure_future(transport.send(message(queue, b"held")))
        await scene.until(lambda: transport.state == "blocked")
        ready = asyncio.create_task(transport.ready())
        assert inbox.deliveries[0].ack() is True
        second = (await inbox.until(2))[1]
        assert (held.done(), ready.done(), transport.sendable) == (False, False, False)
        await scene.broker.unblock()
        async with asyncio.timeout(PATIENCE):
            await ready
            await held
        assert (transport.state, transport.sendable) == ("connected", True)
        second.ack()
        await inbox.until(3)
        assert inbox.bodies == [b"first", b"second", b"held"]

    async def test_what_a_blocked_broker_never_read_is_unknown_once_the_connection_goes(
        self, scene: Scene
    ) -> None:
        scene.needs(BLOCK)
        queue = await scene.queue()
        transport = await scene.connect()
        await scene.broker.block()
        # With a body: RabbitMQ blocks once it has read a header, and a message without a body is whole by then.
        held = transport.send(message(queue, b"held"))
        await scene.until(lambda: transport.state == "blocked")
        await scene.broker.drop_connections()
        with pytest.raises(PublishTimeout):
            await asyncio.wait_for(held, PATIENCE)
        await asyncio.wait_for(transport.drained(), PATIENCE)
        assert transport.buffered == 0
        await scene.broker.unblock()

    async def test_a_lost_confirm_is_unknown_once_the_connection_goes(self, scene: Scene) -> None:
        scene.needs(LOSE_CONFIRM)
        queue = await scene.queue()
        transport = await scene.connect()
        await scene.broker.lose_next_confirm(1)
        unknown, confirmed = transport.send(message(queue)), transport.send(message(queue))
        await confirmed
        await scene.lies(transport, queue, ready=2)
        assert not unknown.done()
        await scene.broker.drop_connections()
        with pytest.raises(PublishTimeout):
            await asyncio.wait_for(unknown, PATIENCE)

    async def test_a_cut_settles_every_publish(self, scene: Scene) -> None:
        queue = await scene.queue()
        transport, other = await scene.connect(), await scene.connect()
        sent = [transport.send(message(queue, str(number).encode())) for number in range(200)]
        await scene.broker.drop_connections()
        async with asyncio.timeout(PATIENCE):
            came_to = await asyncio.gather(*sent, return_exceptions=True)
        assert {type(outcome) for outcome in came_to} <= {type(None), PublishTimeout}
        await other.ready()
        there = set()
        while (delivery := await other.get(queue)) is not None:
            there.add(delivery.body)
            delivery.ack()
        assert there >= {str(number).encode() for number, outcome in enumerate(came_to) if outcome is None}

    async def test_a_new_publishing_connection_takes_over_and_the_old_one_still_answers(
        self, scene: Scene
    ) -> None:
        queue = await scene.queue()
        transport = await scene.connect()
        before = [transport.send(message(queue, str(number).encode())) for number in range(50)]
        async with asyncio.timeout(PATIENCE):
            await transport.renew_publishing()
            after = [transport.send(message(queue, str(number).encode())) for number in range(50, 100)]
            await asyncio.gather(*before, *after)
        await scene.lies(transport, queue, ready=100)
        # The new one is kept up like any other.
        await scene.broker.drop_connections()
        await transport.ready()
        await transport.send(message(queue))

    async def test_no_new_publishing_connection_before_it_is_open(self, scene: Scene) -> None:
        transport = await scene.connect()
        await transport.close()
        with pytest.raises(BrokerUnreachable):
            await transport.renew_publishing()
