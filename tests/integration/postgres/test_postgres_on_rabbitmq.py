"""Hosts on RabbitMQ and one PostgreSQL store: all take failures in, one publishes, and the store may go away."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.postgres_cluster import Cluster
from tests.rabbitmq_node import Node
from tests.store_outage import StoreOutage

from leveret import Context, Leveret, SoftFailure
from leveret.core.urls import parse_broker
from leveret.stores.postgres import PostgresStore
from leveret.transports.rabbitmq.transport import RabbitTransport


async def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.02)


async def test_two_hosts_share_the_retry_queue_and_each_failure_comes_back_once_and_on_time(
    rabbitmq: Node, cluster: Cluster, schema: str
):
    namespace = f"pg-{uuid.uuid4().hex[:8]}"
    runs: Counter[str] = Counter()
    failed: dict[str, float] = {}
    waited: list[float] = []

    def host() -> Leveret:
        app = Leveret(namespace, broker=rabbitmq.url, store=f"{cluster.url}?schema={schema}")

        @app.worker("order.placed")
        async def charge(ctx: Context) -> None:
            name = str(ctx.message_id)
            runs[name] += 1
            if ctx.attempt == 1:
                failed[name] = time.monotonic()
                raise SoftFailure("503", retry_after=1.0)
            waited.append(time.monotonic() - failed[name])

        return app

    hosts = [host(), host()]
    async with AsyncExitStack() as stack:
        for each in hosts:
            await stack.enter_async_context(each.running())
        services = [each._open.runner.retry_service for each in hosts]
        await until(
            lambda: all(service.intake is not None and service.intake.consuming for service in services)
        )
        state = await hosts[0]._open.parts.transport.queue_state(f"{namespace}.retry")
        assert state is not None
        assert state.consumers == 2
        await until(lambda: any(service.keeper.holds for service in services))
        for number in range(40):
            await hosts[number % 2].publish("order.placed", {"number": number})
        await until(lambda: len(waited) == 40)
        # The last ones are removed after they were run.
        await asyncio.wait_for(hosts[0]._open.runner.until_idle(), 10.0)
    assert set(runs.values()) == {2}
    assert min(waited) >= 0.99
    assert max(waited) <= 1.5


async def test_a_server_that_is_killed_under_an_app_on_rabbitmq(
    rabbitmq: Node, cluster: Cluster, schema: str, caplog, monkeypatch
):
    @asynccontextmanager
    async def killed() -> AsyncIterator[None]:
        await asyncio.to_thread(cluster.kill)
        try:
            yield
        finally:
            await asyncio.to_thread(cluster.start)

    broker = parse_broker(rabbitmq.url, "the test")
    outage = StoreOutage(
        lambda: PostgresStore(f"{cluster.url}?schema={schema}"),
        caplog,
        monkeypatch,
        transport=lambda world: RabbitTransport(broker, world=world),
    )
    await outage.survives(killed)
