from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from leveret.torture.proxy import CutProxy, Proxies, Told


class Echo:
    """A server that sends back what it gets, and keeps it."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.got += data
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()


class Client:
    """A connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, data: bytes) -> None:
        """Return once it has come back."""
        async with asyncio.timeout(5):
            assert await self.reader.readexactly(len(data)) == data

    async def hears_nothing(self) -> None:
        """Return after a moment in which nothing came, and the connection stayed."""
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(self.reader.read(1), 0.1)

    async def is_cut(self) -> None:
        """Return once the connection is gone."""
        async with asyncio.timeout(5):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass


@pytest_asyncio.fixture
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    await server.start()
    yield server
    server.stop()


@pytest_asyncio.fixture
async def proxy(echo: Echo) -> AsyncIterator[CutProxy]:
    proxy = CutProxy(echo.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


Connect = Callable[[int], Awaitable[Client]]


@pytest_asyncio.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connects to a port; all are closed afterwards."""
    clients: list[Client] = []

    async def connect(port: int) -> Client:
        clients.append(client := Client(*await asyncio.open_connection("127.0.0.1", port)))
        return client

    yield connect
    for client in clients:
        client.writer.transport.abort()
    # Until the loop has closed them.
    await asyncio.sleep(0)


async def test_what_is_said_comes_back(connect: Connect, proxy: CutProxy):
    client = await connect(proxy.port)

    client.say(b"carrots")

    await client.hears(b"carrots")


async def test_a_cut_ends_every_connection_and_new_ones_are_made(connect: Connect, proxy: CutProxy):
    clients = [await connect(proxy.port) for _ in range(3)]
    for client in clients:
        client.say(b"a")
        await client.hears(b"a")

    proxy.cut()

    for client in clients:
        await client.is_cut()
    again = await connect(proxy.port)
    again.say(b"b")
    await again.hears(b"b")


async def test_a_cut_of_some_leaves_the_others(connect: Connect, proxy: CutProxy):
    clients = [await connect(proxy.port) for _ in range(4)]
    for client in clients:
        client.say(b"a")
        await client.hears(b"a")

    proxy.cut(0.5, random.Random(1))

    gone = 0
    for client in clients:
        client.say(b"b")
        try:
            await client.hears(b"b")
        except (ConnectionError, asyncio.IncompleteReadError):
            gone += 1
    assert gone == 2


async def test_a_cut_in_mid_frame_lets_exactly_so_many_bytes_through(
    connect: Connect, proxy: CutProxy, echo: Echo
):
    client = await connect(proxy.port)
    proxy.cut_after(10)

    client.say(b"0123456789abcdef")

    await client.is_cut()
    assert bytes(echo.got) == b"0123456789"


async def test_a_server_that_is_down_refuses_until_it_is_up_on_the_same_port(
    connect: Connect, proxy: CutProxy
):
    client = await connect(proxy.port)
    port = proxy.port

    await proxy.down()

    await client.is_cut()
    with pytest.raises(ConnectionRefusedError):
        await connect(proxy.port)
    await proxy.up()
    assert proxy.port == port
    again = await connect(proxy.port)
    again.say(b"b")
    await again.hears(b"b")


async def test_a_black_hole_to_the_server_keeps_what_was_said_and_hands_it_on(
    connect: Connect, proxy: CutProxy, echo: Echo
):
    client = await connect(proxy.port)
    proxy.black_hole("out")

    client.say(b"carrots")

    await client.hears_nothing()
    assert not echo.got
    await proxy.heal()
    await client.hears(b"carrots")


async def test_a_black_hole_to_clients_lets_the_server_hear_all(
    connect: Connect, proxy: CutProxy, echo: Echo
):
    client = await connect(proxy.port)
    client.say(b"a")
    await client.hears(b"a")
    proxy.black_hole("back")

    client.say(b"carrots")

    await client.hears_nothing()
    assert bytes(echo.got) == b"acarrots"
    await proxy.heal()
    await client.hears(b"carrots")


async def test_new_connections_fall_into_a_black_hole_too(connect: Connect, proxy: CutProxy):
    proxy.black_hole()
    client = await connect(proxy.port)

    client.say(b"carrots")

    await client.hears_nothing()
    await proxy.heal()
    await client.hears(b"carrots")


async def test_new_connections_pass_by_one_that_is_half_open(connect: Connect, proxy: CutProxy):
    old = await connect(proxy.port)
    old.say(b"a")
    await old.hears(b"a")
    proxy.half_open()

    old.say(b"lost")
    new = await connect(proxy.port)
    new.say(b"b")

    await new.hears(b"b")
    await old.hears_nothing()
    # What follows would be read in the middle of what was lost.
    await proxy.heal()
    await old.is_cut()


async def test_latency_delays_what_passes(connect: Connect, proxy: CutProxy):
    client = await connect(proxy.port)
    proxy.delay(0.1)
    began = time.monotonic()

    client.say(b"carrots")

    await client.hears(b"carrots")
    assert time.monotonic() - began >= 0.2


async def test_a_slow_network_hands_on_so_many_bytes_a_second(connect: Connect, proxy: CutProxy):
    client = await connect(proxy.port)
    proxy.slow(100_000)
    began = time.monotonic()

    client.say(bytes(20_000))

    await client.hears(bytes(20_000))
    # In steps of 5 000 bytes: the last one is there at once when its time has come.
    assert time.monotonic() - began >= 0.15
    proxy.slow(None)
    client.say(bytes(1_000_000))
    await client.hears(bytes(1_000_000))


async def test_commands_reach_the_proxies_that_they_name(connect: Connect, echo: Echo):
    proxies = Proxies(Told(behind=[("127.0.0.1", echo.port)] * 2))
    ports = await proxies.start()

    first, second = await connect(ports[0]), await connect(ports[1])
    await proxies.obey({"do": "black hole", "which": [1]})

    first.say(b"a")
    second.say(b"b")

    await first.hears(b"a")
    await second.hears_nothing()
    assert await proxies.obey({"do": "heal"}) == {"connections": [1, 1]}
    await second.hears(b"b")
    with pytest.raises(ValueError, match="no proxy knows how to 'dance'"):
        await proxies.obey({"do": "dance"})
    await proxies.obey({"do": "down"})
