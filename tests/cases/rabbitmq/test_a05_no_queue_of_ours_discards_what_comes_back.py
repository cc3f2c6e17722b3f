"""A05: a message that came back again and again is not discarded by its quorum queue.

Before RabbitMQ 4.0 a quorum queue has no limit unless it is given one, and -1 is a limit that lets nothing come back;
from there on it has one of 20, unless it is declared with -1, as leveret does. A queue with a limit and no dead-letter
exchange is refused; one that was declared without any, and met on 4.0 or later, is told with its remedy.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections import Counter
from collections.abc import AsyncIterator

import pika
import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import needs_version, until

from leveret import Context
from leveret.core.errors import QueueMismatch


async def test_a05_after_25_returns_to_a_quorum_queue_the_message_is_still_worked_on(shop: Shop):
    app = shop.app(queue_type="quorum")
    ran = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append((ctx.message_id, ctx.attempt, dict(ctx.headers)))

    async with app, asyncio.timeout(30):
        id = await app.publish("order.placed", {})
        for number in range(25):
            method = None
            while method is None:
                method, properties, _ = shop.channel.basic_get(shop.name("charge"))
            assert (properties.headers or {}).get("x-delivery-count", 0) == number
            shop.channel.basic_reject(method.delivery_tag, requeue=True)
        async with app.running():
            await until(lambda: ran)
        # The broker's count is none of ours: it neither buries the message nor travels with it.
        assert ran == [(id, 1, {})]
        assert await app.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("queue", ["declared by leveret", "met, and its remedy followed"])
async def test_a05_on_4_what_waited_in_a_prefetch_through_25_lost_connections_is_still_there(
    shop: Shop, caplog, queue: str
):
    needs_version(shop.broker, 4, why="there each lost connection spends one of 20 deliveries")
    caplog.set_level(logging.WARNING, "leveret")
    met = queue != "declared by leveret"
    if met:
        # As an older broker, or an older program, has made it.
        for name in ("charge", "charge.suspects"):
            shop.channel.queue_declare(shop.name(name), durable=True, arguments={"x-queue-type": "quorum"})
    app = shop.app(queue_type="quorum")
    runs: Counter[bytes] = Counter()
    cuts_over = asyncio.Event()

    @app.worker("order.placed", prefetch=5, concurrency=1)
    async def charge(order: bytes) -> None:
        runs[order] += 1
        await cuts_over.wait()

    async with app, asyncio.timeout(90):
        told = [message for message in caplog.messages if "came back 20 times" in message]
        assert [shop.name("charge") in message for message in told] == ([True, True] if met else [])
        for message in told:
            remedy = message[message.index("rabbitmqctl ") :]
            await asyncio.to_thread(shop.broker.node.ctl, *shlex.split(remedy)[1:])
        for number in range(6):
            await app.publish("order.placed", b"%d" % number)
        async with app.running():
            for _ in range(25):
                await shop.until_connected(app)
                await until(lambda: app._open.runner.consumers[0].consuming)
                await until(lambda: shop.ready("charge") == 1)
                await shop.cut(app)
            cuts_over.set()
            await shop.until_settled(app)
    assert sorted(runs) == [b"%d" % number for number in range(6)]


@pytest.fixture
async def quorum_by_default(shop: Shop) -> AsyncIterator[pika.BlockingConnection]:
    """A virtual host that makes quorum queues of those that name no type; a connection to it."""
    vhost, ctl = shop.namespace, shop.broker.node.ctl
    await asyncio.to_thread(ctl, "add_vhost", vhost, "--default-queue-type", "quorum")
    await asyncio.to_thread(ctl, "set_permissions", "-p", vhost, "guest", ".*", ".*", ".*")
    url = f"{shop.url(proxied=False)}/{vhost}"
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        yield connection
    await asyncio.to_thread(ctl, "delete_vhost", vhost)


async def test_a05_where_queues_are_quorum_by_default_ours_keep_what_comes_back(
    shop: Shop, quorum_by_default: pika.BlockingConnection
):
    app = shop.app(broker=f"{shop.url(proxied=False)}/{shop.namespace}")

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    async with app, asyncio.timeout(30):
        id = await app.publish("order.placed", {})
        channel = quorum_by_default.channel()
        for _ in range(25):
            method = None
            while method is None:
                method, properties, _ = channel.basic_get(shop.name("charge"))
            assert properties.message_id == id
            channel.basic_reject(method.delivery_tag, requeue=True)


async def test_a05_before_4_a_queue_whose_limit_is_meant_for_4_is_refused_for_there_it_deletes_at_once(
    shop: Shop,
):
    if shop.broker.version >= (4,):
        pytest.skip("needs a RabbitMQ before 4.0: there a delivery limit of -1 lets nothing come back")
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    shop.channel.queue_declare(shop.name("charge"), durable=True, arguments=arguments)
    app = shop.app(queue_type="quorum")

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    with pytest.raises(QueueMismatch) as caught:
        await app.open()
    assert all(part in str(caught.value) for part in (shop.name("charge"), "x-delivery-limit=-1", "4.0"))


async def test_a05_no_limit_that_a_worker_asks_for_is_none_on_every_version(shop: Shop):
    app = shop.app()

    @app.worker("order.placed", queue_type="quorum", queue_arguments={"x-delivery-limit": -1})
    async def charge() -> None:
        pass

    async with app, asyncio.timeout(30):
        await app.publish("order.placed", {})
        for _ in range(25):
            method = None
            while method is None:
                method, _, _ = shop.channel.basic_get(shop.name("charge"))
            shop.channel.basic_reject(method.delivery_tag, requeue=True)


async def test_a05_a_queue_that_deletes_what_came_back_is_refused_with_the_remedy(shop: Shop):
    arguments = {"x-queue-type": "quorum", "x-delivery-limit": 20}
    shop.channel.queue_declare(shop.name("charge"), durable=True, arguments=arguments)
    app = shop.app(queue_type="quorum")

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    with pytest.raises(QueueMismatch) as caught:
        await app.open()
    assert all(part in str(caught.value) for part in (shop.name("charge"), "x-delivery-limit", "20"))
