"""Two hosts on RabbitMQ and one PostgreSQL store: both take failures in, one publishes, and either may go."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from contextlib import AsyncExitStack

from tests.postgres_cluster import Cluster
from tests.rabbitmq_node import Node

from leveret import Context, Leveret, SoftFailure


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
