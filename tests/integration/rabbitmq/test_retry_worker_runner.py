"""RetryWorkerRunner on RabbitMQ, as its file or its environment tells it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.rabbitmq_scene import RabbitHarness

from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Binding, Queue, RMQExchangeConfig, Topology
from leveret.retry import RetryWorkerRunner
from leveret.retry.exchanges import observer_exchange
from leveret.runtime.backends import create_runtime_infra
from leveret.runtime.config import RuntimeConfig, load_config
from leveret.runtime.wiring import make_document_store
from leveret.runtime.world import system_world

#: Seconds that anything may take on a busy machine.
PATIENCE = 30


@pytest.fixture
def name(tmp_path):
    """The name of this test's own exchange."""
    return tmp_path.name


@pytest.fixture
def environ(broker: RabbitHarness, tmp_path):
    port = broker.node.port
    return {
        "LEVERET_BROKER": f"amqp://guest:guest@127.0.0.1:{port}",
        "LEVERET_STORE": f"sqlite:///{tmp_path}/leveret.db",
        "LEVERET_LEASE__TTL": "5",
        "LEVERET_RETRY_WORKER__SCOPING": "true",
    }


@pytest.fixture
def file(environ, tmp_path):
    path = tmp_path / "leveret.toml"
    path.write_text(f"""
broker = "{environ["LEVERET_BROKER"]}"
store = "{environ["LEVERET_STORE"]}"
lease = {{ ttl = 5 }}
retry_worker = {{ scoping = true }}
""")
    return path


def a_failure(number: int = 0, *, after: float = 0.2, **more: Any) -> dict[str, Any]:
    message = {"data_type": "page", "data": {"doc_id": f"d{number}"}, "job_id": "j1", "scope": "acme",
               "_replay_routing_key": "fast.page", "retry": {"count": 1, "after": after}}  # fmt: skip
    return {"data_type": "soft-failure", "data": message, "origin": {"type": "parser", "name": "h"}} | more


class Pipeline:
    """Another program's pipeline: an exchange, queues on it, and what arrives in them."""

    def __init__(self, transport, exchange: RMQExchangeConfig) -> None:
        self.transport = transport
        self.exchange = exchange
        self.got: dict[str, list[dict[str, Any]]] = {}
        self._arrived = asyncio.Event()

    async def queue(self, name: str, key: str) -> None:
        full = f"{self.exchange.name}.{name}"
        binding = Binding(self.exchange.name, full, key)
        await self.transport.declare(
            Topology(exchanges=(self.exchange,), queues=(Queue(full),), bindings=(binding,))
        )
        self.got[name] = []

        def take(delivery: Any) -> None:
            self.got[name].append(json.loads(delivery.body))
            delivery.ack()
            self._arrived.set()

        await self.transport.consume(full, take, prefetch=10)

    async def publish(self, message: Mapping[str, Any], exchange: RMQExchangeConfig | None = None) -> None:
        to = (exchange or self.exchange).name
        await self.transport.send(
            Outgoing(to, "soft-failure", json.dumps(message).encode(), Properties.build())
        )

    async def arrived(self, name: str, count: int) -> list[dict[str, Any]]:
        async with asyncio.timeout(PATIENCE):
            while len(self.got[name]) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.got[name]


class Running:
    """A runner at work within the block; it takes whatever is published from then on."""

    def __init__(self, runner: RetryWorkerRunner) -> None:
        self.runner = runner

    async def __aenter__(self) -> RetryWorkerRunner:
        await self.runner.setup()
        self._task = asyncio.create_task(self.runner.run())
        return self.runner

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def waiting(config: RuntimeConfig, exchange: str) -> list[str]:
    """The keys of what waits in the store."""
    store = make_document_store(
        config.store,
        system_world(),
        collection_name=f"{exchange}.retry_worker",
        doc_id_field="retry_key",
    )
    try:
        return sorted([row["retry_key"] async for row in store.query({})])
    finally:
        await store.close()


async def test_told_by_a_file_it_gives_a_message_back_to_the_queue_that_failed_it_and_to_no_other(
    connect, name, file
):
    pipeline = Pipeline(await connect(), RMQExchangeConfig(name))
    config = load_config(environ={}, file=file)
    assert (config.backend, config.origin("retry_worker.scoping")) == ("rabbitmq", str(file))
    await pipeline.queue("parser", "fast.page")
    await pipeline.queue("sibling", "fast.page")
    async with Running(RetryWorkerRunner(config, "retry", exchange=observer_exchange(pipeline.exchange))):
        await pipeline.publish(a_failure(1, after=600))
        await pipeline.publish(a_failure(2))
        assert await pipeline.arrived("parser", 1) == [a_failure(2)["data"]]
    # A clean stop has removed what was given back.
    (key,) = await waiting(config, name)
    assert key.startswith("s:acme:job:j1:doc:d1:part:0:parser:")
    assert pipeline.got["sibling"] == []


async def test_told_by_the_environment_it_watches_a_direct_pipeline_from_beside(connect, name, environ):
    pipeline = Pipeline(await connect(), RMQExchangeConfig(name, "direct"))
    observer = observer_exchange(pipeline.exchange)
    # The failing worker's queue is gone; whoever takes its key now gets it.
    await pipeline.queue("successor", "fast.page")
    config = load_config(environ=environ, file="/dev/null")
    assert config.lease.ttl == 5
    runner = RetryWorkerRunner(config, "retry", exchange=observer, republish_exchange=pipeline.exchange)
    async with Running(runner):
        await pipeline.publish(a_failure(), observer)
        assert await pipeline.arrived("successor", 1) == [a_failure()["data"]]
    assert await waiting(config, f"{name}.observer") == []


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_two_on_a_shared_connection_give_each_message_back_once_and_the_second_takes_over(
    connect, name, environ, request, store
):
    if store == "postgresql":
        cluster = request.getfixturevalue("postgres")
        environ["LEVERET_STORE"] = f"{cluster.url}?schema={cluster.schema()}"
    pipeline = Pipeline(await connect(), RMQExchangeConfig(name, "fanout"))
    await pipeline.queue("parser", "")
    config = load_config(environ=environ, file="/dev/null")
    infra = await create_runtime_infra(config)
    one, other = (RetryWorkerRunner(config, n, exchange=pipeline.exchange, infra=infra) for n in ("1", "2"))
    # On a fanout every failure is seen by the pipeline too.
    async with Running(one), Running(other):
        for number in range(20):
            await pipeline.publish(a_failure(number))
        await pipeline.arrived("parser", 40)
        # The first one holds the lease.
        await one.teardown()
        await pipeline.publish(a_failure(99))
        found = await pipeline.arrived("parser", 42)
    assert infra.transport.state == "connected"
    await infra.close()
    back = sorted(each["data"]["doc_id"] for each in found if each["data_type"] == "page")
    assert back == sorted([*(f"d{number}" for number in range(20)), "d99"])
    assert await waiting(config, name) == []
