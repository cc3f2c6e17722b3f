"""What `transports/rabbitmq/connection.py` leans on below pika's surface is there in the pika that is installed.

A failure here after an update of pika means: read what changed, before any other test is believed.
"""

from __future__ import annotations

import asyncio
import inspect

import pika
import pytest
from pika.adapters import base_connection
from pika.adapters.asyncio_connection import AsyncioConnection, _AsyncioIOServicesAdapter
from pika.adapters.utils import io_services_utils
from pika.connection import Connection

from leveret.core.properties import Properties
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.address import connect_to
from leveret.transports.rabbitmq.channel import Channel, Handed

pytestmark = pytest.mark.gentle


def test_it_is_the_version_that_was_looked_at():
    assert pika.__version__.startswith("1.4.")


def test_what_is_overridden_or_touched_is_there():
    for name in (
        "_on_data_available", "_output_marshaled_frames", "_terminate_stream", "_process_frame",
        "_on_connection_close_from_broker", "_proto_connection_made",
    ):  # fmt: skip
        assert inspect.isfunction(getattr(AsyncioConnection, name)), name
    assert issubclass(AsyncioConnection, base_connection.BaseConnection)
    assert "self._frame_buffer += data_in" in inspect.getsource(Connection._on_data_available)
    assert inspect.isfunction(_AsyncioIOServicesAdapter.remove_writer)
    for transport in (io_services_utils._AsyncPlaintextTransport, io_services_utils._AsyncSSLTransport):
        assert transport._MAX_RECV_BYTES == 4096
        assert transport._STATE_ACTIVE == 1


async def test_header_frames_stay_raw_by_deliver_get_and_return(any_rabbitmq):
    # In the order that RabbitMQ brings them into from 4.0 on.
    raw = Properties.build(headers={"large": "x" * 70_000, "real": 1.5}).raw
    connection = await connect_to(any_rabbitmq.address, "is tested")
    came: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    class Listening(Channel):
        def handed(self, message: Handed) -> None:
            came.put_nowait((message.routing_key, message.properties))

        def returned(self, code: int, words: str, properties: bytes) -> None:
            came.put_nowait((words, properties))

    channel = Listening(connection)
    declared = await channel.call(channel.pika.queue_declare, queue="", exclusive=True)
    queue = declared.queue
    for to in (queue, queue, "nobody"):
        method = wire.publish(channel.number, "", to, mandatory=True)
        connection.write(wire.content(method, channel.number, raw, b"x" * 200_000, connection.frame_max))
    connection.write(wire.get(channel.number, queue))
    async with asyncio.timeout(10):
        assert {await came.get(), await came.get()} == {("NO_ROUTE", raw), (queue, raw)}
        await channel.call(
            channel.pika.basic_consume, queue=queue, on_message_callback=lambda *_: None, auto_ack=True
        )
        assert await came.get() == (queue, raw)
        await connection.goodbye()


async def test_what_is_written_later_in_a_turn_goes_out_before_a_call_of_pika_that_follows(any_rabbitmq):
    connection = await connect_to(any_rabbitmq.address, "is tested")
    channel = Channel(connection)
    queue = (await channel.call(channel.pika.queue_declare, queue="", exclusive=True)).queue
    method = wire.publish(channel.number, "", queue, mandatory=False)
    connection.write_soon(wire.content(method, channel.number, b"\0\0", b"", connection.frame_max))
    purged = await channel.call(channel.pika.queue_purge, queue=queue)
    assert purged.message_count == 1
    await connection.goodbye()


async def test_what_is_written_in_one_turn_goes_out_in_one_piece_and_what_is_large_at_once(
    any_rabbitmq, monkeypatch
):
    connection = await connect_to(any_rabbitmq.address, "is tested")
    written: list[int] = []
    monkeypatch.setattr(connection, "write", lambda data: written.append(len(data)))
    for _ in range(3):
        connection.write_soon(b"x" * 1000)
    assert (written, connection.buffered) == ([], 3000)
    await asyncio.sleep(0)
    assert (written, connection.buffered) == ([3000], 0)
    connection.write_soon(b"x" * 100_000)
    assert written == [3000, 100_000]
    connection.write_soon(b"x")
    connection.flush()
    assert written == [3000, 100_000, 1]
    monkeypatch.undo()
    await connection.goodbye()
