"""What `transports/rabbitmq/connection.py` leans on below pika's surface is there in the pika that is installed.

A failure here after an update of pika means: read what changed, before any other test is believed.
"""

from __future__ import annotations

import asyncio
import inspect

import pika
from pika.adapters import base_connection
from pika.adapters.asyncio_connection import AsyncioConnection, _AsyncioIOServicesAdapter
from pika.adapters.utils import io_services_utils
from pika.connection import Connection

from leveret.core.properties import Properties
from leveret.transports.rabbitmq import wire
from leveret.transports.rabbitmq.address import connect_to
from leveret.transports.rabbitmq.channel import Channel, Handed


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


async def test_header_frames_stay_raw_by_deliver_get_and_return(rabbitmq):
    from tests.rabbitmq_scene import url_of

    raw = Properties.build(headers={"real": 1.5, "large": "x" * 70_000}).raw + b""
    connection = await connect_to(url_of(rabbitmq.port), "is tested")
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
        connection.write(
            wire.publish(
                channel.number, "", to, raw, b"x" * 200_000, mandatory=True, frame_max=connection.frame_max
            )
        )
    connection.write(wire.get(channel.number, queue))
    async with asyncio.timeout(10):
        assert {await came.get(), await came.get()} == {("NO_ROUTE", raw), (queue, raw)}
        await channel.call(
            channel.pika.basic_consume, queue=queue, on_message_callback=lambda *_: None, auto_ack=True
        )
        assert await came.get() == (queue, raw)
        await connection.goodbye()
