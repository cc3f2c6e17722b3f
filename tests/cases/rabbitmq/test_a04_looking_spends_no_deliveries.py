"""A04: however often somebody looks at the dead letters, nothing is taken out of a queue and put back for it.

On RabbitMQ 4.0 to 4.2 each look of that kind would spend one of 20 deliveries, and then delete what was looked at.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.e2e.shell import Shell
from tests.postgres_cluster import Cluster

from leveret import HardFailure


async def test_a04_after_25_looks_five_dead_letters_still_lie_in_their_queue_untouched(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge() -> None:
        raise HardFailure("410")

    async with app:
        for _ in range(5):
            await app.publish("order.placed", {})
        async with app.running(keeper=False):
            await shop.until_ready("events.dlq", 5)
        for _ in range(25):
            await app.dead_letters.list()
            assert (await app.counts()).dead == 5
        assert shop.ready("events.dlq") == 5
        for _ in range(5):
            method, _, _ = shop.channel.basic_get(shop.name("events.dlq"), auto_ack=True)
            assert not method.redelivered


async def test_a04_after_25_looks_at_a_quorum_dead_letter_queue_none_of_its_deliveries_is_spent(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
):
    cluster: Cluster = request.getfixturevalue("postgres")
    # A store that several hosts share is what lets the dead-letter queue be a quorum queue.
    store = f"{cluster.url}?schema={cluster.schema()}"
    app = shop.app(store=store, queue_type="quorum")

    @app.worker("order.placed")
    async def charge() -> None:
        raise HardFailure("410")

    shell = Shell(tmp_path)
    where = ("--broker", shop.url(proxied=False), "--namespace", shop.namespace, "--store", store)
    async with app, asyncio.timeout(60):
        for _ in range(5):
            await app.publish("order.placed", {})
        async with app.running(keeper=False):
            await shop.until_ready("events.dlq", 5)
        assert await shop.listed("events.dlq", "type") == ["quorum"]
        for command in (("dead", "list"), ("status",), ("doctor",)):
            ended = await asyncio.to_thread(shell, *command, *where)
            assert ended.code in (0, 1), ended.err
        for _ in range(22):
            await app.dead_letters.list()
            assert (await app.counts()).dead == 5
        assert shop.ready("events.dlq") == 5
        for _ in range(5):
            method, properties, _ = shop.channel.basic_get(shop.name("events.dlq"), auto_ack=True)
            assert not method.redelivered
            # Some versions write that it came back no times.
            assert not any(count for name, count in properties.headers.items() if name.endswith("-count"))
