"""B13: a server that is silent, dies or is cut off: each call ends by its timeout, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
import time

import pika
import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until
from tests.sync_scene import SyncScene

from leveret.sync import RpcResponse, RpcTimeoutError, RpcUnknownError, TransportHealth


@pytest.fixture
async def scene(shop: Shop):
    async with SyncScene(shop.broker) as scene:
        yield scene


class StrangeServer:
    """Takes one request with pika, does something with it, and is gone."""

    def __init__(self, scene: SyncScene, queue: str, then: str) -> None:
        self.got = threading.Event()
        self._port = scene.broker.node.port
        self._queue = queue
        self._then = then
        with scene.broker.channel() as channel:
            channel.queue_declare(queue, durable=True)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port))
        channel = connection.channel()
        for method, _, _ in channel.consume(self._queue, inactivity_timeout=20):
            if method is not None and self._then != "keeps it":
                channel.basic_ack(method.delivery_tag)
            self.got.set()
            break
        if self._then == "keeps it":
            # Until nobody waits any more.
            connection.sleep(0.5)
        connection.close()

    async def ended(self) -> None:
        await asyncio.to_thread(self._thread.join, 20)


@pytest.mark.parametrize("then", ["keeps it", "acks and dies"])
async def test_b13_a_server_that_never_replies_is_a_timeout_and_leaves_nothing_behind(
    scene: SyncScene, then: str
):
    transport = scene.transport(timeout=5)
    queue = scene.name("price.req")
    server = StrangeServer(scene, queue, then)
    since = time.monotonic()

    with pytest.raises(RpcTimeoutError, match=r"price\.req \(correlation id c-1\) in 0\.4 s"):
        await asyncio.to_thread(lambda: transport.call_rpc(queue, {}, correlation_id="c-1", timeout=0.4))

    assert time.monotonic() - since < 2
    assert server.got.is_set()
    assert transport._client.waiting == 0
    await server.ended()


async def test_b13_a_line_that_is_cut_in_mid_call_ends_the_call_at_once_and_the_next_one_works(
    scene: SyncScene,
):
    transport, server = scene.transport(timeout=5), scene.transport(timeout=5)
    queue = scene.name("slots.req")
    begun, go_on = threading.Event(), threading.Event()

    def answer(request):
        begun.set()
        go_on.wait(20)
        return RpcResponse({"id": request.payload["id"]})

    scene.loop(server.consume_rpc_forever, queue, answer)
    await scene.consumed(queue)
    calling = asyncio.ensure_future(
        asyncio.to_thread(lambda: transport.call_rpc(queue, {"id": 1}, correlation_id="c-1", timeout=20))
    )
    assert await asyncio.to_thread(begun.wait, 10)
    since = time.monotonic()
    await scene.broker.drop_connections()

    with pytest.raises(RpcUnknownError, match="may be obeyed"):
        await calling
    assert time.monotonic() - since < 1
    assert transport._client.waiting == 0
    go_on.set()
    await scene.consumed(queue)
    await until(lambda: transport.health() is TransportHealth.CONNECTED)
    answered = await asyncio.to_thread(
        lambda: transport.call_rpc(queue, {"id": 2}, correlation_id="c-2", timeout=10)
    )
    assert answered == {"id": 2}
