from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time

import pytest
from pika import BasicProperties
from tests.rabbitmq_scene import until

from leveret import (
    Leveret,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    TransportUnavailableError,
)
from leveret.pipeline.publishing import Publisher
from leveret.rpc.client import RpcClient
from leveret.rpc.server import RpcServer
from leveret.runtime.world import system_world


class PlainServer:
    """A program that serves a queue by pika alone, one request at a time, when the test says so."""

    def __init__(self, place, queue: str) -> None:
        self.channel = place.broker.channel()
        self.channel.queue_declare(queue, durable=True)
        self.queue = queue

    async def request(self) -> BasicProperties:
        """Take the next request, and ack it."""
        while True:
            method, properties, _ = self.channel.basic_get(self.queue, auto_ack=True)
            if method is not None:
                return properties
            await asyncio.sleep(0.005)

    def reply(self, to: BasicProperties, body: bytes, correlation_id: str | None = None) -> None:
        self.channel.basic_publish(
            "", to.reply_to, body, BasicProperties(correlation_id=correlation_id or to.correlation_id)
        )


async def test_a_request_to_a_queue_that_nobody_has_fails_in_under_a_fifth_of_a_second(place):
    async with place.app() as app:
        # The first one makes the connection.
        for _ in range(2):
            began = time.perf_counter()
            with pytest.raises(RpcUnreachableError, match=rf"{place.namespace}\.nobody\.req"):
                await app.call("nobody", {}, timeout=5)
            assert time.perf_counter() - began < 0.2


async def test_requests_are_answered_and_errors_told_by_handlers_of_both_kinds(place):
    app = place.app()

    @app.rpc("price")
    async def price(order: dict) -> dict:
        if order["id"] < 0:
            raise ValueError(f"no order {order['id']}")
        return {"cents": 500 * order["id"]}

    @app.rpc("total", queue_type="quorum")
    def total(order: dict) -> dict:
        return {"cents": sum(order["parts"])}

    async with app.running():
        prices = await asyncio.gather(*(app.call("price", {"id": n}) for n in range(200)))
        assert prices == [{"cents": 500 * n} for n in range(200)]
        assert await app.call("total", {"parts": [1, 2, 3]}) == {"cents": 6}
        with pytest.raises(RpcRemoteError, match="ValueError: no order -1"):
            await app.call("price", {"id": -1})


async def test_a_server_that_dies_after_its_ack_ends_the_call_by_its_timeout(place):
    queue = f"{place.namespace}.price.req"
    async with place.app() as app:
        server = PlainServer(place, queue)
        calling = asyncio.ensure_future(app.call("price", {}, timeout=0.5, correlation_id="mine"))
        await server.request()
        with pytest.raises(RpcTimeoutError, match=rf"{queue} \(correlation id mine\) in 0\.5 s"):
            await calling
        assert app._open.client.waiting == 0


async def test_wrong_late_and_repeated_replies_are_dropped(place):
    async with place.app() as app:
        server = PlainServer(place, f"{place.namespace}.price.req")
        late = asyncio.ensure_future(app.call("price", {}, timeout=0.2, correlation_id="same"))
        to_late = await server.request()
        with pytest.raises(RpcTimeoutError):
            await late
        calling = asyncio.ensure_future(app.call("price", {}, correlation_id="same"))
        to = await server.request()
        server.reply(to_late, b'{"late": true}')
        server.reply(to, b'{"wrong": true}', "nobody's")
        await asyncio.sleep(0.1)
        assert not calling.done()
        for _ in range(2):
            server.reply(to, b'{"right": true}')
        assert await calling == {"right": True}
        again = asyncio.ensure_future(app.call("price", {}))
        server.reply(await server.request(), b'{"again": true}')
        assert await again == {"again": True}


async def test_a_client_that_is_gone_before_its_reply_leaves_the_server_unharmed(place):
    may_end, started = asyncio.Event(), asyncio.Event()
    app = place.app()

    @app.rpc("price")
    async def price(order: dict) -> dict:
        started.set()
        if order.get("slow"):
            await may_end.wait()
        return {"cents": 5}

    async with app.running():
        client = Leveret(place.namespace, broker=place.url(), store="memory://")
        await client.open()
        calling = asyncio.ensure_future(client.call("price", {"slow": True}))
        await started.wait()
        await client.close()
        with pytest.raises(RpcUnknownError):
            await calling
        may_end.set()
        assert await app.call("price", {}) == {"cents": 5}
        endpoint = app._open.runner.endpoints[0]
        await until(lambda: endpoint.in_hand == 0)
        assert (endpoint.server.answered, endpoint.server.failed) == (2, 0)
        assert (await place.rows())["price.req"][:2] == (0, 0)


async def test_a_request_whose_caller_gave_up_is_not_started_and_vanishes_counted(place):
    may_end, runs = asyncio.Event(), []
    app = place.app()

    @app.rpc("price", prefetch=1)
    async def price(order: dict) -> None:
        runs.append(order["id"])
        await may_end.wait()

    async with app.running():
        first = asyncio.ensure_future(app.call("price", {"id": 1}, timeout=10))
        await until(lambda: runs)
        with pytest.raises(RpcTimeoutError):
            await app.call("price", {"id": 2}, timeout=0.3)
        # Meanwhile its expiration has struck, and the dead-letter exchange has it.
        keeper = app._open.runner.keeper
        await until(lambda: keeper.expired_requests == 1)
        may_end.set()
        assert await first == {}
        await app.call("price", {"id": 3})
        assert runs == [1, 3]
        assert (await app.counts()).dead == 0


async def test_the_server_itself_does_not_start_what_its_caller_gave_up_on_while_it_lay_in_hand(place):
    async with place.app() as app:
        parts = app._open.parts
        queue = f"{place.namespace}.price.req"
        await place.broker.declare_queue(queue)
        requests = []
        server = RpcServer(
            parts,
            Publisher(parts, timeout=10, known_types=dict),
            queue,
            prefetch=5,
            on_request=requests.append,
            name="price",
        )
        await server.start()
        with pytest.raises(RpcTimeoutError):
            await app.call("price", {}, timeout=0.2)
        # Its own wait began a moment after the caller's.
        await until(requests[0].expired)
        server.skip(requests[0])
        await server.stop()
        assert server.lapsed == 1
        await place.until_rows(**{"price.req": (0, 0, 0)})


async def test_a_failed_request_is_in_no_group_replay_and_goes_again_by_its_id(place):
    runs = []
    app = place.app()

    @app.rpc("intent", prefetch=1, single=True)
    async def intent(order: dict) -> None:
        runs.append(order["id"])
        if len(runs) == 1:
            raise ValueError("market closed")

    async with app.running():
        with pytest.raises(RpcRemoteError):
            await app.call("intent", {"id": 1})
        letters = []
        async with asyncio.timeout(20):
            while not letters:
                await asyncio.sleep(0.02)
                letters = (await app.dead_letters.list(worker="intent")).items
        report = await app.dead_letters.replay(reason="market closed")
        assert (report.done, runs) == (0, [1])
        assert "RPC" in " ".join(report.notes)
        report = await app.dead_letters.replay(letters[0].id, rpc=True)
        await until(lambda: len(runs) == 2)
        assert report.done == 1


async def test_two_processes_on_one_single_queue_never_run_two_at_once_while_their_connections_live(place):
    running, most, by = 0, 0, []

    def serve(name: str) -> Leveret:
        app = place.app()

        @app.rpc("intent", prefetch=1, single=True)
        async def intent(order: dict) -> dict:
            nonlocal running, most
            running += 1
            most = max(most, running)
            by.append(name)
            await asyncio.sleep(0.003)
            running -= 1
            return {}

        return app

    one, two = serve("one"), serve("two")
    client = place.app()
    async with client, contextlib.AsyncExitStack() as first:
        await first.enter_async_context(one.running(retry_worker=False, keeper=False))
        async with two.running(retry_worker=False, keeper=False):
            calls = [asyncio.ensure_future(client.call("intent", {}, timeout=20)) for _ in range(60)]
            await asyncio.wait(calls[:20])
            assert set(by) == {"one"}
            await first.aclose()
            await asyncio.gather(*calls)
    assert set(by) == {"one", "two"}
    assert most == 1


async def test_a_queue_that_was_there_before_without_our_arguments_is_served_as_it_is_with_a_warning(
    place, caplog
):
    await place.broker.declare_queue(f"{place.namespace}.intent.req")
    app = place.app()

    @app.rpc("intent", prefetch=1, single=True)
    async def intent() -> dict:
        return {"accepted": True}

    async with app.running():
        assert await app.call("intent") == {"accepted": True}
    assert "x-single-active-consumer" in caplog.text


@pytest.mark.usefixtures("reconnects_soon")
async def test_a_line_that_is_cut_during_a_call_makes_it_unknown_at_once_and_the_next_one_works(place):
    async with place.app() as app:
        server = PlainServer(place, f"{place.namespace}.price.req")
        calling = asyncio.ensure_future(app.call("price", {}, timeout=30))
        await server.request()
        began = time.perf_counter()
        place.broker.proxy.cut()
        with pytest.raises(RpcUnknownError, match="may be obeyed, or not"):
            await calling
        assert time.perf_counter() - began < 1
        calling = asyncio.ensure_future(app.call("price", {}, timeout=10))
        server.reply(await server.request(), b'{"cents": 5}')
        assert await calling == {"cents": 5}


@pytest.mark.usefixtures("reconnects_soon")
async def test_fifty_reconnects_leave_one_connection_for_calls_with_one_channel(place):
    app = place.app()

    @app.rpc("price")
    async def price() -> dict:
        return {"cents": 5}

    async with app.running(retry_worker=False, keeper=False):
        await app.call("price")
        channels = await place.channels()
        connections = place.broker.proxy.connections
        line = app._open.parts.transport._line
        for _ in range(50):
            before = line._link.connection
            place.broker.proxy.cut()
            await until(lambda before=before: line._link.connection not in (None, before))
            with contextlib.suppress(TransportUnavailableError):
                await app.call("price")
        await until(lambda: app._open.runner.endpoints[0].server.consuming)
        assert await app.call("price") == {"cents": 5}
        await until(lambda: place.broker.proxy.connections == connections)
        await place.until_channels(channels)
        assert app._open.client.waiting == 0


async def test_a_close_while_the_first_call_connects_leaves_no_connection_behind(place):
    for turns in (1, 2, 5, 20):
        app = place.app()
        await app.open()
        calling = asyncio.ensure_future(app.call("nobody", timeout=5))
        for _ in range(turns):
            await asyncio.sleep(0)
        await app.close()
        with pytest.raises(TransportUnavailableError):
            await calling
        await until(lambda: place.broker.proxy.connections == 0)


async def test_a_broker_that_is_short_of_memory_is_told_and_calls_work_once_it_is_over(place):
    app = place.app()

    @app.rpc("price")
    async def price() -> dict:
        return {"cents": 5}

    async with app.running():
        assert await app.call("price") == {"cents": 5}
        await place.broker.block()
        try:
            # The broker tells nobody before it has got something from him.
            with pytest.raises((RpcTimeoutError, TransportUnavailableError)):
                await app.call("price", timeout=0.5)
            with pytest.raises(TransportUnavailableError, match="blocked"):
                await app.call("price", timeout=0.5)
        finally:
            await place.broker.unblock()
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(TransportUnavailableError):
                    assert await app.call("price") == {"cents": 5}
                    break
                await asyncio.sleep(0.05)


async def test_a_request_over_the_brokers_limit_costs_no_other_call_its_answer(connect, place):
    transport = await connect()
    queue = f"{place.namespace}.price.req"
    server = PlainServer(place, queue)
    client = RpcClient(transport, system_world())
    calling = asyncio.ensure_future(client.call(queue, {}, timeout=30))
    to = await server.request()
    # 128 MiB is the most that this RabbitMQ takes.
    with pytest.raises(TransportUnavailableError, match=r"was refused.*406"):
        await client.call(queue, {"text": "x" * (128 * 1024 * 1024)}, timeout=30)
    server.reply(to, b'{"cents": 5}')
    assert await calling == {"cents": 5}


async def test_parent_and_child_call_before_and_after_a_fork_over_connections_of_their_own(place):
    app = place.app()

    @app.rpc("price")
    async def price(order: dict) -> dict:
        return {"who": order["who"]}

    program = """
import json, os, sys
from leveret import Leveret

app = Leveret(sys.argv[2], broker=sys.argv[1], store="memory://")
told = [app.sync.call("price", {"who": "before"})]
child = os.fork()
if not child:
    os._exit(0 if app.sync.call("price", {"who": "child"}) == {"who": "child"} else 1)
ended = os.waitpid(child, 0)[1]
told.append(app.sync.call("price", {"who": "after"}))
print(json.dumps([ended, told]))
"""
    async with app.running():
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program, place.url(), place.namespace],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [0, [{"who": "before"}, {"who": "after"}]]
