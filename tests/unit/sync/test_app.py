from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
import time

import pytest
from tests.unit.sync.conftest import wait_for

from leveret import BadPayload, BrokerUnreachable, Leveret, Message, PublishFailures, Unroutable
from leveret.core.errors import LeveretError, TransportUnavailableError
from leveret.transports.memory_broker import MemoryBroker

_numbers = itertools.count()


@pytest.fixture
def name():
    return f"app-sync-{next(_numbers)}"


@pytest.fixture
def app(name):
    app = Leveret("shop", broker=f"memory://{name}", store="memory://")

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        pass

    yield app
    app.sync.close()


def test_a_script_publishes_without_a_loop(app, name):
    id = app.sync.publish("order.placed", {"id": 1}, headers={"tenant": 42})

    [message] = MemoryBroker.named(name).messages("shop.charge")
    assert message.properties.message_id == id
    assert message.properties.headers["tenant"] == 42


def test_many_are_published_at_once(app, name):
    ids = app.sync.publish_many(Message("order.placed", {"id": number}) for number in range(50))

    found = [message.properties.message_id for message in MemoryBroker.named(name).messages("shop.charge")]
    assert found == ids


def test_what_cannot_be_published_is_told_as_on_the_async_side(app):
    with pytest.raises(BadPayload, match="nan"):
        app.sync.publish("order.placed", {"price": float("nan")})
    with pytest.raises(Unroutable, match="nobody takes"):
        app.sync.publish("order.lost", {})
    with pytest.raises(PublishFailures):
        app.sync.publish_many([Message("order.lost", {})])


def test_it_is_the_same_face_each_time_and_connects_at_its_first_use(app, name):
    assert app.sync is app.sync
    assert MemoryBroker.named(name).snapshot() == {}
    app.sync.publish("order.placed", {})
    assert "shop.charge" in MemoryBroker.named(name).snapshot()


def test_a_delayed_message_waits_in_the_retry_queue(app, name):
    app.sync.publish("order.placed", {}, delay=60)

    assert len(MemoryBroker.named(name).messages("shop.retry")) == 1


def test_after_close_it_says_so(app):
    app.sync.publish("order.placed", {})
    app.sync.close()
    app.sync.close()

    with pytest.raises(TransportUnavailableError, match=r"app\.sync was closed"):
        app.sync.publish("order.placed", {})


async def test_a_call_is_answered_by_an_app_that_runs_in_memory_in_this_process():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.rpc("price")
    async def price(order: dict) -> dict:
        return {"cents": 500 * order["count"]}

    async with app.running():
        answer = await asyncio.to_thread(app.sync.call, "price", {"count": 2}, timeout=5)

    assert answer == {"cents": 1000}


async def test_on_the_loop_of_its_own_app_it_raises_at_once(app):
    async with app:
        with pytest.raises(LeveretError, match=r"Nothing was sent\. Here, await app\.publish"):
            app.sync.publish("order.placed", {})


async def test_under_a_loop_that_is_not_the_apps_it_works(app, name):
    app.sync.publish("order.placed", {})

    assert len(MemoryBroker.named(name).messages("shop.charge")) == 1


def test_while_nobody_answers_each_publish_says_so_in_time():
    app = Leveret("shop", broker="amqp://127.0.0.1:1", store="memory://")
    for _ in range(3):
        since = time.monotonic()
        with pytest.raises(BrokerUnreachable):
            app.sync.publish("order.placed", {})
        assert time.monotonic() - since < 2
    app.sync.close()


class Elsewhere:
    """A loop in a thread of its own, in which an app is opened; it may be stopped without another word."""

    def __init__(self, app):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(app.open(), self.loop).result(10)

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def end(self, app):
        self.loop.run_until_complete(app.close())
        self.loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("used_before", [True, False])
def test_a_child_does_not_wait_for_the_loop_of_its_parent(app, used_before):
    elsewhere = Elsewhere(app)
    if used_before:
        app.sync.publish("order.placed", {})
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            # A publish that hangs is ended by the signal, and nothing is written.
            signal.alarm(5)
            os.write(writing, app.sync.publish("order.placed", {}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert len(os.read(reading, 100)) == 36
    os.close(reading)
    os.waitpid(child, 0)
    app.sync.publish("order.placed", {})
    elsewhere.stop()
    elsewhere.end(app)


def test_a_loop_that_was_stopped_under_the_app_is_not_waited_for(app, name):
    elsewhere = Elsewhere(app)
    elsewhere.stop()

    app.sync.publish("order.placed", {})

    assert len(MemoryBroker.named(name).messages("shop.charge")) == 1
    elsewhere.end(app)


def test_a_loop_that_is_stopped_in_the_middle_of_a_call_leaves_it_unknown(app, name):
    elsewhere = Elsewhere(app)
    MemoryBroker.named(name).declare_queue("shop.price.req")
    raised = []

    def call():
        with pytest.raises(TransportUnavailableError, match="has ended before an answer came"):
            app.sync.call("price", {}, timeout=60)
        raised.append(True)

    calling = threading.Thread(target=call)
    calling.start()
    wait_for(lambda: MemoryBroker.named(name).messages("shop.price.req"))
    elsewhere.stop()
    calling.join(10)

    assert raised == [True]
    elsewhere.end(app)
