"""What comes in: headers that pika cannot read, bounds of the prefetch, consumers that the broker ends (B02, B16)."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.rabbitmq_scene import late_is_told_on, until

from leveret.core.errors import AccessRefused, BadPayload, BrokerUnreachable, ConfigError
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.ports import QueueState
from leveret.testing.transport_contract import Inbox

pytestmark = pytest.mark.gentle

PLAIN = Properties.build()


@pytest.fixture
async def queue(broker):
    await broker.declare_queue(name := f"consuming-{uuid.uuid4().hex[:8]}")
    yield name
    await broker.delete_queue(name)


def headers(*entries: bytes) -> Properties:
    table = b"".join(entries)
    return Properties(b"\x20\x00" + len(table).to_bytes(4) + table)


#: Every type that RabbitMQ lets in, among them all that pika trips over.
ENTRIES = (
    b"\x02msT" + (1_700_000_000_000).to_bytes(8),
    b"\x03maxT" + b"\x7f" + b"\xff" * 7,
    b"\x01bb\x80",
    b"\x01BB\x80",
    b"\x01ss\x80\x00",
    b"\x01uu\xff\xff",
    b"\x01II\x80\x00\x00\x00",
    b"\x01ii\xff\xff\xff\xff",
    b"\x01ll" + b"\x80" + b"\x00" * 7,
    b"\x01fd\x3f\xf8" + b"\x00" * 6,
    b"\x02f4f\x3f\xc0\x00\x00",
    b"\x01dD\xff\x00\x00\x00\x01",
    b"\x01vV",
    b"\x01tt\x01",
    b"\x01xx\x00\x00\x00\x03\x00\xff\xfe",
    b"\x01SS\x00\x00\x00\x02\xff\xfe",
    b"\x01AA\x00\x00\x00\x0aT\x00\x00\x01\x8b\xcf\xe5\x68\x00V",
    b"\x01FF\x00\x00\x00\x03\x01aV",
)
HEADERS = headers(*ENTRIES)


async def test_b16_headers_of_every_type_arrive_byte_for_byte_and_the_consumer_lives(broker, connect, queue):
    transport = await connect()
    inbox = Inbox(ack=True)
    await transport.consume(queue, inbox, prefetch=10)
    for mandatory in (True, False):
        await transport.send(Outgoing("", queue, b"odd", HEADERS, mandatory))
    await transport.send(Outgoing("", queue, b"plain", PLAIN))
    arrived = await inbox.until(3)
    assert [delivery.body for delivery in arrived] == [b"odd", b"odd", b"plain"]
    if broker.version < (4,):
        assert [delivery.properties for delivery in arrived[:2]] == [HEADERS, HEADERS]
    # From 4.0 on RabbitMQ sorts a table by its names.
    for delivery in arrived[:2]:
        assert len(delivery.properties.raw) == len(HEADERS.raw)
        assert all(entry in delivery.properties.raw for entry in ENTRIES)
    assert arrived[0].properties.header("ms") == 1_700_000_000_000
    assert arrived[0].tag is not None
    assert arrived[1].tag is None


async def test_b16_a_timestamp_property_of_any_size_arrives_as_it_was(connect, queue):
    transport = await connect()
    properties = [
        Properties(b"\x00\x40" + number.to_bytes(8)) for number in (0, 1_700_000_000_000, 2**64 - 1)
    ]
    for each in properties:
        await transport.send(Outgoing("", queue, b"", each, mandatory=False))
    await transport.consume(queue, inbox := Inbox(), prefetch=10)
    assert [delivery.properties for delivery in await inbox.until(len(properties))] == properties


@pytest.mark.parametrize("prefetch", [0, -1, 65_536])
async def test_d12_a_prefetch_that_amqp_cannot_say_is_refused(connect, queue, prefetch):
    transport = await connect()
    with pytest.raises(ConfigError, match=f"prefetch={prefetch}"):
        await transport.consume(queue, Inbox(), prefetch=prefetch)


async def test_d12_the_largest_prefetch_is_taken(connect, queue):
    transport = await connect()
    await transport.consume(queue, inbox := Inbox(), prefetch=65_535)
    await asyncio.gather(*(transport.send(Outgoing("", queue, b"", PLAIN)) for _ in range(900)))
    await inbox.until(900)


async def test_a_queue_name_that_amqp_cannot_carry_is_refused_and_harms_nobody(connect, queue, broker):
    transport = await connect()
    before = broker.proxy.accepted
    for ask in (
        transport.consume("q" * 256, Inbox(), prefetch=1),
        transport.get("q" * 256),
        transport.queue_state("é" * 128),
    ):
        with pytest.raises(BadPayload, match="256 bytes"):
            await ask
    assert await transport.get(queue) is None
    assert broker.proxy.accepted == before


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_b02_a_consumer_that_takes_too_long_is_ended_by_the_broker_and_comes_back_with_all_messages(
    rabbitmq, broker, connect, kind
):
    late_is_told_on(broker, kind)
    await broker.declare_queue(queue := f"late-{uuid.uuid4().hex[:8]}", {"x-queue-type": kind})
    await asyncio.to_thread(
        rabbitmq.evaluate, "application:set_env(rabbit, consumer_timeout, 500), "
        "application:set_env(rabbit, channel_tick_interval, 200)."
    )  # fmt: skip
    try:
        transport = await connect()
        inbox = Inbox()
        subscription = await transport.consume(queue, inbox, prefetch=2)
        await asyncio.gather(*(transport.send(Outgoing("", queue, b"", PLAIN)) for _ in range(2)))
        late = list(await inbox.until(2))
        await until(lambda: all(delivery.stale for delivery in late))
        assert [delivery.ack() for delivery in late] == [False, False]
        again = (await inbox.until(4))[2:]
        assert all(delivery.redelivered and delivery.ack() for delivery in again)
        await until(lambda: subscription.active)
        # It takes part again, as if nothing had been.
        for _ in range(3):
            await transport.send(Outgoing("", queue, b"", PLAIN))
        assert all(delivery.ack() for delivery in (await inbox.until(6))[4:])
        (last,) = (await inbox.until(7))[6:]
        assert last.ack()
        await subscription.cancel()
        assert await transport.queue_state(queue) == QueueState(0, 0)
        await broker.delete_queue(queue)
    finally:
        await asyncio.to_thread(
            rabbitmq.evaluate, "application:set_env(rabbit, consumer_timeout, 1800000), "
            "application:set_env(rabbit, channel_tick_interval, 60000)."
        )  # fmt: skip


async def test_r9_an_exclusive_consumer_is_exclusive_again_after_a_cut(connect, broker):
    await broker.declare_queue(queue := f"consuming-{uuid.uuid4().hex[:8]}", {"x-queue-type": "classic"})
    transport, other = await connect(), await connect()
    subscription = await transport.consume(queue, inbox := Inbox(), prefetch=1, exclusive=True)
    broker.proxy.cut()
    await until(lambda: not subscription.active)
    await until(lambda: subscription.active)
    await until(lambda: other.state == "connected")
    with pytest.raises(AccessRefused, match="in exclusive use"):
        await other.consume(queue, Inbox(), prefetch=1)
    await other.send(Outgoing("", queue, b"one", PLAIN))
    assert (await inbox.until(1))[0].body == b"one"
    await broker.delete_queue(queue)


async def test_a_receiver_that_raises_costs_nobody_else_a_message(connect, queue):
    transport = await connect()
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    def fail(delivery):
        raise RuntimeError("a bug")

    subscription = await transport.consume(queue, fail, prefetch=1)
    await transport.send(Outgoing("", queue, b"", PLAIN))
    await until(lambda: complaints)
    assert subscription.active
    assert str(complaints[0]["exception"]) == "a bug"
    assert transport.state == "connected"


async def test_nothing_is_handed_over_before_the_subscription_is_known(connect, queue):
    transport = await connect()
    await asyncio.gather(*(transport.send(Outgoing("", queue, b"", PLAIN)) for _ in range(50)))
    known = []
    early = []

    def take(delivery):
        early.append(not known)
        delivery.ack()

    known.append(await transport.consume(queue, take, prefetch=50))
    await until(lambda: len(early) == 50)
    assert not any(early)


async def test_a_get_whose_caller_has_gone_gives_its_message_back(connect, queue):
    transport = await connect()
    await transport.send(Outgoing("", queue, b"one", PLAIN))
    # A channel that is open, so that the question is on its way when its caller goes.
    assert (await transport.get(queue)).requeue() is True
    asking = asyncio.create_task(transport.get(queue))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait((asking,))
    while (delivery := await transport.get(queue)) is None:  # noqa: ASYNC110 - no event tells of it
        await asyncio.sleep(0.01)
    assert delivery.body == b"one"


async def test_acks_are_flushed_before_close(connect, queue):
    transport, other = await connect(), await connect()
    await transport.consume(queue, inbox := Inbox(), prefetch=100)
    await asyncio.gather(*(other.send(Outgoing("", queue, b"", PLAIN)) for _ in range(100)))
    for delivery in await inbox.until(100):
        assert delivery.ack()
    await transport.close()
    assert await other.get(queue) is None


async def test_a_get_from_a_queue_that_is_gone_costs_no_message_fetched_from_another(connect, queue):
    transport = await connect()
    await transport.send(Outgoing("", queue, b"one", PLAIN))
    delivery = await transport.get(queue)
    assert await transport.get(f"{queue}.gone") is None
    assert delivery.stale is False
    assert delivery.ack() is True


async def test_gets_take_one_channel_a_queue_however_many_they_are(rabbitmq, connect, queue):
    transport = await connect()
    await asyncio.gather(*(transport.send(Outgoing("", queue, str(n).encode(), PLAIN)) for n in range(20)))
    fetched = await asyncio.gather(*(transport.get(queue) for _ in range(25)))
    assert [delivery and delivery.body for delivery in fetched] == [
        *(str(n).encode() for n in range(20)), None, None, None, None, None
    ]  # fmt: skip
    for _ in range(20):
        assert await transport.get(queue) is None
    listed = await asyncio.to_thread(rabbitmq.ctl, "list_channels", "--no-table-headers", "number")
    # One to publish, and one to fetch.
    assert len(listed.splitlines()) == 2


async def test_a_fetch_that_the_broker_does_not_answer_ends_and_loses_nothing(
    connect, broker, queue, monkeypatch
):
    monkeypatch.setattr("leveret.transports.rabbitmq.transport._ANSWER", 0.3)
    transport = await connect()
    await transport.send(Outgoing("", queue, b"one", PLAIN))
    assert await transport.get(f"{queue}-nobody") is None
    broker.proxy.hold_back()
    with pytest.raises(BrokerUnreachable, match="whether there is a message"):
        await transport.get(queue)
    broker.proxy.hand_on()
    # What came late went back with its channel.
    async with asyncio.timeout(10):
        while (delivery := await transport.get(queue)) is None:
            pass
    assert (delivery.body, delivery.ack()) == (b"one", True)
