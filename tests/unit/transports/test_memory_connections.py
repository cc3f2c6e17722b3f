from __future__ import annotations

import asyncio
import contextvars
import logging

import pytest

from leveret.core.errors import BrokerUnreachable, ConfigError, PublishRefused, PublishTimeout
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Queue, Topology
from leveret.testing.worlds import fake_world
from leveret.transports.memory import CONFIRM_WINDOW, MemoryBroker, MemoryTransport


@pytest.fixture
def broker():
    broker = MemoryBroker()
    broker.declare_queue("q")
    return broker


@pytest.fixture
async def connect(broker):
    world = fake_world()
    opened = []

    async def connect(**how):
        transport = MemoryTransport(broker, world=world, **how)
        await transport.open()
        opened.append(transport)
        return transport

    yield connect
    for transport in opened:
        await transport.close()


def message(queue="q", body=b"", *, mandatory=True, **properties):
    return Outgoing("", queue, body, Properties.build(**properties), mandatory)


async def turns(number=5):
    for _ in range(number):
        await asyncio.sleep(0)


async def test_the_state_tells_where_it_stands(broker):
    transport = MemoryTransport(broker, world=fake_world())
    assert transport.state == "disconnected"
    await transport.open()
    assert transport.state == "connected"
    broker.block()
    assert transport.state == "blocked"
    broker.unblock()
    broker.drop_connections()
    assert transport.state == "connecting"
    await turns()
    assert transport.state == "connected"
    broker.stop()
    await turns()
    assert transport.state == "disconnected"
    broker.start()
    await turns()
    assert transport.state == "connected"
    await transport.close()
    assert transport.state == "closed"
    await transport.open()
    assert transport.state == "connected"
    await transport.close()


async def test_before_open_nothing_can_be_asked_of_it(broker):
    transport = MemoryTransport(broker, world=fake_world())
    for ask in (
        transport.get("q"),
        transport.queue_state("q"),
        transport.declare(Topology()),
        transport.consume("q", print, prefetch=1),
    ):
        with pytest.raises(BrokerUnreachable, match="open"):
            await ask
    with pytest.raises(PublishRefused, match="not sent"):
        await transport.send(message())


def test_a_transport_whose_loop_is_gone_can_be_opened_on_another(broker):
    transport = MemoryTransport(broker, world=fake_world())

    async def first():
        await transport.open()

    async def second():
        assert transport.state == "disconnected"
        with pytest.raises(PublishRefused):
            await transport.send(message())
        with pytest.raises(BrokerUnreachable):
            await transport.get("q")
        await transport.open()
        await transport.send(message())
        await transport.close()

    asyncio.run(first())
    asyncio.run(second())
    assert len(broker.messages("q")) == 1


async def test_what_is_asked_in_the_moment_of_a_reconnect_is_answered_after_it(broker, connect):
    transport = await connect()
    await transport.send(message(body=b"one"))
    broker.drop_connections()
    assert (await transport.get("q")).body == b"one"


async def test_what_is_asked_while_the_broker_stops_is_told_so(broker, connect):
    transport = await connect()
    broker.drop_connections()
    asked = asyncio.create_task(transport.get("q"))
    await asyncio.sleep(0)
    broker.stop()
    with pytest.raises(BrokerUnreachable, match="stopped"):
        await asyncio.wait_for(asked, 5)
    with pytest.raises(BrokerUnreachable, match="stopped"):
        await transport.get("q")
    broker.start()


async def test_the_window_holds_a_thousand(broker, connect):
    transport = await connect()
    sent = [transport.send(message()) for _ in range(CONFIRM_WINDOW)]
    assert transport.sendable is False
    ready = asyncio.create_task(transport.ready())
    await asyncio.wait_for(ready, 5)
    assert all(answer.done() for answer in sent)
    assert transport.sendable is True


async def test_lost_confirms_fill_the_window_until_the_connection_goes(broker, connect):
    transport = await connect()
    broker.lose_next_confirm(CONFIRM_WINDOW)
    sent = [transport.send(message()) for _ in range(CONFIRM_WINDOW)]
    await turns()
    assert transport.sendable is False
    broker.drop_connections()
    ends = await asyncio.gather(*sent, return_exceptions=True)
    assert {type(end) for end in ends} == {PublishTimeout}
    await asyncio.wait_for(transport.ready(), 5)


async def test_a_queue_that_withholds_its_confirms_takes_no_place_from_others_once_its_publishers_give_up(
    broker, connect
):
    transport = await connect()
    broker.lose_next_confirm(CONFIRM_WINDOW)
    sent = [transport.send(message()) for _ in range(CONFIRM_WINDOW)]
    ready = asyncio.create_task(transport.ready())
    await turns()
    assert ready.done() is False
    sent[-1].cancel()
    await asyncio.wait_for(ready, 5)
    await transport.send(message())
    sent[0].cancel()
    broker.drop_connections()
    ends = await asyncio.gather(*sent[1:-1], return_exceptions=True)
    assert {type(end) for end in ends} == {PublishTimeout}


async def test_what_is_given_up_before_a_blocked_broker_reads_it_takes_no_place_afterwards(broker, connect):
    transport = await connect()
    broker.block()
    for answer in [transport.send(message()) for _ in range(CONFIRM_WINDOW)]:
        answer.cancel()
    broker.lose_next_confirm(CONFIRM_WINDOW)
    broker.unblock()
    assert transport.sendable is True
    assert len(broker.messages("q")) == CONFIRM_WINDOW


async def test_close_turns_away_those_who_wait_for_room(broker, connect):
    transport = await connect()
    broker.block()
    held = transport.send(message())
    ready = asyncio.create_task(transport.ready())
    drained = asyncio.create_task(transport.drained())
    await turns()
    await transport.close()
    with pytest.raises(PublishRefused):
        await asyncio.wait_for(ready, 5)
    with pytest.raises(PublishRefused):
        await asyncio.wait_for(transport.ready(), 5)
    with pytest.raises(PublishTimeout):
        await asyncio.wait_for(held, 5)
    await asyncio.wait_for(drained, 5)
    broker.unblock()
    assert broker.messages("q") == []


async def test_what_the_broker_has_answered_is_told_before_close_ends(broker, connect):
    transport = await connect()
    sent = transport.send(message())
    await transport.close()
    assert sent.done()
    assert sent.exception() is None


async def test_an_abort_is_a_death_without_goodbye(broker, connect):
    dying, other = await connect(), await connect()
    for body in (b"a", b"b"):
        await other.send(message(body=body))
    taken = []
    await dying.consume("q", taken.append, prefetch=1)
    await turns()
    sent = dying.send(message(body=b"c"))
    dying.abort()
    assert dying.state == "closed"
    assert (taken[0].stale, taken[0].ack()) == (True, False)
    with pytest.raises(PublishTimeout):
        await sent
    await turns()
    assert broker.snapshot()["q"] == (3, 0, 0)
    assert [(await other.get("q")).redelivered for _ in range(3)] == [True, False, False]


async def test_what_a_dead_one_had_goes_to_the_living_at_once(broker, connect):
    dying, living = await connect(), await connect()
    await dying.consume("q", print, prefetch=2)
    for body in (b"a", b"b"):
        await living.send(message(body=body))
    taken = []
    await living.consume("q", taken.append, prefetch=2)
    dying.abort()
    await turns()
    assert [(delivery.body, delivery.redelivered) for delivery in taken] == [(b"a", True), (b"b", True)]


async def test_close_gives_back_untouched_what_it_never_saw(broker, connect):
    transport = await connect()
    taken = []
    await transport.consume("q", taken.append, prefetch=5)
    await transport.send(message(body=b"seen"))
    transport.send(message(body=b"never seen"))
    await transport.close()
    assert [delivery.body for delivery in taken] == [b"seen"]
    other = await connect()
    got = [await other.get("q") for _ in range(2)]
    assert [(delivery.body, delivery.redelivered) for delivery in got] == [
        (b"seen", True),
        (b"never seen", False),
    ]


async def test_a_cancelled_consumer_gives_back_untouched_what_it_never_saw(broker, connect):
    transport = await connect()
    taken = []
    subscription = await transport.consume("q", taken.append, prefetch=5)
    sent = [transport.send(message(body=body)) for body in (b"a", b"b")]
    # The broker has handed both over, and the loop had no turn yet to tell.
    assert broker.snapshot()["q"].unsettled == 2
    await subscription.cancel()
    await asyncio.gather(*sent)
    assert taken == []
    got = [await transport.get("q") for _ in range(2)]
    assert [(delivery.body, delivery.redelivered) for delivery in got] == [(b"a", False), (b"b", False)]


async def test_a_receiver_that_fails_costs_the_others_nothing(broker, connect):
    transport = await connect()
    complaints, taken = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def receive(delivery):
        if delivery.body == b"bad":
            raise ValueError("no")
        taken.append(delivery.body)

    await transport.consume("q", receive, prefetch=10)
    for body in (b"a", b"bad", b"b"):
        transport.send(message(body=body))
    await turns()
    assert taken == [b"a", b"b"]
    assert [str(complaint["exception"]) for complaint in complaints] == ["no"]


async def test_deliveries_see_no_context_of_whoever_published(broker, connect):
    who = contextvars.ContextVar("who", default="nobody")
    transport = await connect()
    seen = []
    await transport.consume("q", lambda _: seen.append(who.get()), prefetch=1)
    who.set("the publisher")
    await transport.send(message())
    await turns()
    assert seen == ["nobody"]


async def test_a_tag_written_by_somebody_else_is_taken_off_as_well(broker, connect):
    transport = await connect()
    await transport.send(message(headers={"leveret-tag": "foreign", "mine": 1}, mandatory=False))
    await transport.send(message(headers={"leveret-tag": "foreign", "mine": 2}))
    first, second = await transport.get("q"), await transport.get("q")
    assert (first.tag, dict(first.properties.headers)) == ("foreign", {"mine": 1})
    assert second.tag != "foreign"
    assert dict(second.properties.headers) == {"mine": 2}


async def test_two_processes_with_the_same_randomness_bear_other_tags(broker):
    tags = []
    for _ in range(2):
        transport = MemoryTransport(broker, world=fake_world(7))
        await transport.open()
        await transport.send(message())
        delivery = await transport.get("q")
        tags.append(delivery.tag)
        delivery.ack()
        await transport.close()
    assert tags[0] != tags[1]
    assert len(tags[0]) <= 32


@pytest.mark.parametrize("prefetch", [0, -1, 65536])
async def test_a_prefetch_that_amqp_does_not_have_is_refused(connect, prefetch):
    transport = await connect()
    with pytest.raises(ConfigError, match=f"prefetch={prefetch}"):
        await transport.consume("q", print, prefetch=prefetch)


async def test_a_header_frame_of_just_the_frame_size_passes(broker, connect):
    transport = await connect(frame_max=4096)
    bare = len(Properties.build(headers={"x": ""}).raw)
    room = 4096 - 20 - bare
    await transport.send(message(headers={"x": "y" * room}, mandatory=False))
    with pytest.raises(PublishRefused) as caught:
        await transport.send(message(headers={"x": "y" * (room + 1)}, mandatory=False))
    assert caught.value.code == 501
    # The tag takes its part of the frame.
    with pytest.raises(PublishRefused):
        await transport.send(message(headers={"x": "y" * room}))


async def test_a_consumer_that_found_another_one_there_comes_back_when_that_one_leaves(
    broker, connect, caplog
):
    first, second = await connect(), await connect()
    subscription = await first.consume("q", print, prefetch=1, exclusive=True)
    # Its queue is gone and back within one turn of the loop, in which somebody else comes first.
    consuming = asyncio.create_task(second.consume("q", print, prefetch=1, exclusive=True))
    await asyncio.sleep(0)
    broker.delete_queue("q")
    broker.declare_queue("q")
    with caplog.at_level(logging.WARNING):
        other = await consuming
        await turns()
    assert (subscription.active, other.active) == (False, True)
    assert "in exclusive use" in caplog.text
    await other.cancel()
    await turns()
    assert subscription.active is True
    assert broker.snapshot()["q"].consumers == 1


async def test_a_queue_that_changed_into_an_unsafe_one_during_an_outage_is_told(broker, connect, caplog):
    transport = await connect()
    await transport.declare(Topology(queues=(Queue("mine"),)))
    broker.delete_queue("mine")
    broker.declare_queue("mine", {"x-expires": 1000})
    with caplog.at_level(logging.ERROR):
        broker.drop_connections()
        await turns()
    assert transport.state == "connected"
    assert "x-expires=1000" in caplog.text


async def test_declarations_that_were_refused_are_not_repeated(broker, connect, caplog):
    transport = await connect()
    broker.declare_queue("unsafe", {"x-expires": 1000})
    with pytest.raises(Exception, match="x-expires"):
        await transport.declare(Topology(queues=(Queue("unsafe"),)))
    broker.drop_connections()
    await turns()
    assert caplog.text == ""


async def test_after_close_nothing_is_remembered(broker, connect):
    transport = await connect()
    await transport.declare(Topology(queues=(Queue("mine"),)))
    await transport.consume("q", print, prefetch=1)
    await transport.close()
    broker.delete_queue("mine")
    await transport.open()
    assert broker.snapshot() == {"q": (0, 0, 0)}
