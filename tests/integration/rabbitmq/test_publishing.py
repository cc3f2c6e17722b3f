"""Publishes that the broker closes a channel or a connection over, among innocent ones (P10, A07, A20, B25, D02)."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from leveret.core.errors import BrokerUnreachable, PublishRefused, Unroutable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.testing.transport_contract.scene import Inbox, code, outcomes
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.errors import Gone

pytestmark = pytest.mark.gentle

PLAIN = Properties.build()
#: A header table that says it is longer than the frame: the broker ends the connection over it.
POISON = Properties(b"\x20\x00\x00\x00\x00\xff")


@pytest.fixture
async def queue(broker):
    await broker.declare_queue(name := f"publishing-{uuid.uuid4().hex[:8]}")
    yield name
    await broker.delete_queue(name)


async def bodies(transport, queue):
    found = []
    while (delivery := await transport.get(queue)) is not None:
        delivery.ack()
        found.append(delivery.body)
    return found


async def test_b25_of_50_good_and_5_to_a_missing_exchange_exactly_5_are_refused_with_the_brokers_words(
    connect, queue
):
    transport = await connect()
    sent = [
        Outgoing("no-such-exchange" if n % 11 == 5 else "", queue, str(n).encode(), PLAIN) for n in range(55)
    ]
    came_to = await outcomes(transport, sent)
    refused = [n for n, outcome in enumerate(came_to) if outcome is not None]
    assert refused == [n for n in range(55) if n % 11 == 5]
    assert "404 NOT_FOUND - no exchange 'no-such-exchange' in vhost '/'" in str(came_to[5])
    assert set(await bodies(transport, queue)) == {str(n).encode() for n in range(55) if n % 11 != 5}
    assert await outcomes(transport, [Outgoing("", queue, b"next", PLAIN)]) == [None]


async def test_what_ends_the_connection_is_refused_and_its_neighbours_arrive(connect, broker, queue):
    transport = await connect()
    before = broker.proxy.accepted
    sent = [
        Outgoing("", queue, str(n).encode(), POISON if n in {7, 12} else PLAIN, mandatory=False)
        for n in range(20)
    ]
    came_to = await outcomes(transport, sent)
    assert [n for n, outcome in enumerate(came_to) if outcome is not None] == [7, 12]
    assert all(code(came_to[n]) in {501, 502, 505, 541} for n in (7, 12))
    assert set(await bodies(transport, queue)) == {str(n).encode() for n in range(20) if n not in {7, 12}}
    async with asyncio.timeout(10):
        await transport.ready()
    assert await outcomes(transport, [Outgoing("", queue, b"next", PLAIN)]) == [None]
    # Back itself, and one connection for each time that the culprits were looked for.
    assert broker.proxy.accepted - before <= 5
    assert broker.proxy.connections == 2


async def test_a20_a_body_over_the_limit_is_refused_by_name_among_20_others(rabbitmq, connect, queue):
    usual = rabbitmq.evaluate("element(2, application:get_env(rabbit, max_message_size)).")
    await asyncio.to_thread(
        rabbitmq.evaluate, "persistent_term:put(max_message_size, 1048576), "
        "application:set_env(rabbit, max_message_size, 1048576)."
    )  # fmt: skip
    try:
        transport = await connect()
        sent = [
            Outgoing("", queue, bytes(1_048_577) if n == 10 else str(n).encode(), PLAIN) for n in range(21)
        ]
        sent.append(Outgoing("", queue, bytes(1_048_576), PLAIN))
        came_to = await outcomes(transport, sent)
        assert [n for n, outcome in enumerate(came_to) if outcome is not None] == [10]
        assert code(came_to[10]) == 406
        assert "1048577" in str(came_to[10])
        assert "1048576" in str(came_to[10])
    finally:
        await asyncio.to_thread(
            rabbitmq.evaluate, f"persistent_term:put(max_message_size, {usual}), "
            f"application:set_env(rabbit, max_message_size, {usual})."
        )  # fmt: skip


async def test_others_are_published_while_culprits_are_looked_for(connect, queue):
    transport = await connect()
    poisoned = [
        transport.send(Outgoing("no-such-exchange" if n % 2 else "", queue, b"", PLAIN)) for n in range(60)
    ]
    others = []
    while not all(answer.done() for answer in poisoned):
        others.append(transport.send(Outgoing("", queue, b"", PLAIN)))
        await asyncio.sleep(0)
        await transport.ready()
    assert [code(answer.exception()) if n % 2 else answer.exception() for n, answer in enumerate(poisoned)] == [
        404 if n % 2 else None for n in range(60)
    ]  # fmt: skip
    async with asyncio.timeout(30):
        await asyncio.gather(*others)


async def test_a_culprit_that_nobody_waits_for_any_more_is_not_repeated(connect, queue):
    transport = await connect()
    good = transport.send(Outgoing("", queue, b"good", PLAIN))
    transport.send(Outgoing("no-such-exchange", queue, b"bad", PLAIN)).cancel()
    async with asyncio.timeout(30):
        await good
    assert set(await bodies(transport, queue)) == {b"good"}


async def test_a_cut_while_culprits_are_looked_for_settles_all(connect, broker, queue):
    transport = await connect()
    sent = [
        transport.send(Outgoing("no-such-exchange" if n == 0 else "", queue, b"", PLAIN)) for n in range(300)
    ]
    async with asyncio.timeout(30):
        await asyncio.wait(sent[:1])
        broker.proxy.cut()
        await asyncio.gather(*sent, return_exceptions=True)
    assert isinstance(sent[0].exception(), PublishRefused)


async def test_a07_a_queue_deleted_between_two_publishes_makes_the_second_unroutable(connect, broker, queue):
    transport = await connect()
    assert await outcomes(transport, [Outgoing("", queue, b"", PLAIN)]) == [None]
    await broker.delete_queue(queue)
    (second,) = await outcomes(transport, [Outgoing("", queue, b"", PLAIN)])
    assert isinstance(second, Unroutable)
    assert queue in str(second)
    assert "312 NO_ROUTE" in str(second)


@pytest.mark.parametrize("key", ["k" * 255, "é" * 127, "", "nul\x00nul"])
async def test_d02_keys_that_amqp_can_carry_are_sent(connect, key):
    transport = await connect()
    assert await outcomes(transport, [Outgoing("amq.topic", key, b"", PLAIN, mandatory=False)]) == [None]


async def test_d02_a_key_that_is_too_long_is_refused_with_its_length(connect, broker):
    transport = await connect()
    before = broker.proxy.accepted
    for exchange, key in (("", "k" * 256), ("", "é" * 128), ("x" * 256, "")):
        (outcome,) = await outcomes(transport, [Outgoing(exchange, key, b"", PLAIN)])
        assert "256 bytes" in str(outcome)
    assert broker.proxy.accepted == before


async def test_header_frames_up_to_the_frame_size_are_sent(connect, queue):
    transport = await connect()
    empty = len(Properties.build(headers={"large": ""}).raw)
    fits = transport.frame_max - wire.HEADER_OVERHEAD - empty
    # The tag comes on top: without it to the last byte, with it as much less.
    for mandatory, size in ((False, fits), (True, fits - 80)):
        properties = Properties.build(headers={"large": "x" * size})
        sent = [Outgoing("", queue, b"", properties, mandatory)]
        assert await outcomes(transport, sent) == [None]
    await transport.consume(queue, inbox := Inbox(), prefetch=1)
    (delivery,) = await inbox.until(1)
    assert len(delivery.properties.raw) == transport.frame_max - wire.HEADER_OVERHEAD


async def test_each_of_more_keys_than_are_remembered_goes_where_it_says(connect, queue):
    transport = await connect()
    keys = [queue if n % 3 else f"nobody-{n}" for n in range(3600)]
    came_to = []
    for start in range(0, len(keys), 900):
        some = [
            Outgoing("", key, str(start + n).encode(), PLAIN)
            for n, key in enumerate(keys[start : start + 900])
        ]
        came_to += await outcomes(transport, some)
    assert [isinstance(outcome, Unroutable) for outcome in came_to] == [key != queue for key in keys]
    assert await bodies(transport, queue) == [str(n).encode() for n, key in enumerate(keys) if key == queue]


async def test_a_return_finds_its_publish_whatever_the_headers_hold(connect, queue):
    transport = await connect()
    odd = Properties.build(headers={"leveret-tag": "mine", "when": 1.5, "table": {"leveret-tag": "x"}})
    came_to = await outcomes(
        transport, [Outgoing("", key, b"x" * 300_000, odd) for key in (queue, "nobody", queue, "nobody")]
    )
    assert [isinstance(outcome, Unroutable) for outcome in came_to] == [False, True, False, True]


async def test_a_thousand_may_await_their_answer_and_no_more(connect, queue):
    transport = await connect()
    sent = [transport.send(Outgoing("", queue, b"", PLAIN)) for _ in range(999)]
    assert transport.sendable
    sent.append(transport.send(Outgoing("", queue, b"", PLAIN)))
    assert not transport.sendable
    async with asyncio.timeout(30):
        await asyncio.gather(*sent)
    assert transport.sendable


async def test_a_new_publishing_connection_that_dies_at_once_leaves_the_old_one_in_place(
    connect, queue, monkeypatch
):
    transport = await connect()
    build = transport._build_publishing

    async def build_and_lose(connection):
        await build(connection)
        raise Gone("the connection was lost", whole=True)

    monkeypatch.setattr(transport, "_build_publishing", build_and_lose)
    with pytest.raises(BrokerUnreachable):
        await transport.renew_publishing()
    assert await outcomes(transport, [Outgoing("", queue, b"over the old one", PLAIN)]) == [None]
    assert await bodies(transport, queue) == [b"over the old one"]
