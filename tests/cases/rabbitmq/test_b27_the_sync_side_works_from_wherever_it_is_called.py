"""B27: one owned loop thread: any thread may call, in handlers, under another loop, in web views; its own is refused.

After a fork, in `atexit`, in `__del__` and after close: tests/integration/rabbitmq/test_sync_fork.py.
"""

from __future__ import annotations

import asyncio
import io
import threading

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until
from tests.sync_scene import SyncScene

from leveret import Leveret
from leveret.core.errors import LeveretError


@pytest.fixture
async def scene(shop: Shop):
    async with SyncScene(shop.broker) as scene:
        yield scene


async def closed(app: Leveret) -> None:
    await asyncio.to_thread(app.sync.close)


async def test_b27_50_threads_share_one_connection(scene: SyncScene):
    transport = scene.transport(timeout=10)
    queue = scene.queue("all")

    def publish(thread: int) -> None:
        for number in range(20):
            transport.publish_event("a.b", {"n": thread * 100 + number})

    await scene.threads(50, publish)

    assert len({payload["n"] for _, payload in scene.take(queue)}) == 1000
    assert scene.broker.proxy.accepted == 2


async def test_b27_an_async_handler_gets_a_clear_error_and_a_plain_one_works(shop: Shop):
    app = shop.app()
    said, published = [], []

    @app.worker("order.placed")
    async def on_the_loop(order: dict) -> None:
        with pytest.raises(LeveretError, match=r"Nothing was sent\. Here, await app\.publish") as caught:
            app.sync.publish("order.charged", order, mandatory=False)
        said.append(str(caught.value))

    @app.worker("order.placed")
    def in_a_thread(order: dict) -> None:
        published.append(app.sync.publish("order.charged", order, mandatory=False))

    async with app.running(), asyncio.timeout(30):
        await app.publish("order.placed", {"id": 1})
        await until(lambda: said and published)
    await closed(app)


async def test_b27_on_its_own_io_thread_it_raises_at_once(scene: SyncScene):
    transport = scene.transport(timeout=10)
    scene.queue("all")
    await asyncio.to_thread(transport.publish_event, "a.b", {})
    raised = []
    done = threading.Event()

    def on_the_io_thread() -> None:
        try:
            transport.publish_event("a.b", {})
        except LeveretError as error:
            raised.append(str(error))
        done.set()

    transport._portal.submit(on_the_io_thread)
    assert await asyncio.to_thread(done.wait, 5)
    assert "on its own I/O thread" in raised[0]


async def test_b27_under_an_outer_asyncio_run_it_works(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        pass

    def outer() -> str:
        async def main() -> str:
            return app.sync.publish("order.placed", {"id": 1})

        return asyncio.run(main())

    # The proxy lives in this test's loop, which an outer loop in this thread would hold up.
    assert await asyncio.to_thread(outer)
    await closed(app)
    assert shop.ready("charge") == 1


async def test_b27_a_wsgi_view_publishes_from_whatever_thread_the_server_gives_it(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        pass

    def view(environ, start_response):
        id = app.sync.publish("order.placed", {"path": environ["PATH_INFO"]})
        start_response("202 Accepted", [("Content-Type", "text/plain")])
        return [id.encode()]

    def request(number: int) -> None:
        said = []
        body = b"".join(
            view({"PATH_INFO": f"/{number}", "wsgi.input": io.BytesIO()}, lambda *a: said.append(a))
        )
        assert said[0][0] == "202 Accepted"
        assert body

    await SyncScene.threads(16, request)
    await closed(app)
    assert shop.ready("charge") == 16
