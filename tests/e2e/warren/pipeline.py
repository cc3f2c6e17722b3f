"""A pipeline of the package warren, run by its own interpreter: one argument, the plan, as JSON.

Its workers fail as the plan says, and tell what they got; each line of the input is a message that warren publishes.
Each line of the output is an object.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from warren.common import SoftFailureException
from warren.pubsub.rabbitmq.config import RMQExchangeConfig
from warren.pubsub.routing import MessageFieldRouter, observer_exchange
from warren.retry_management import RetryWorkerRunner
from warren.runtime import DefaultWorkerRunner, RuntimeConfig, RuntimeInfra, WorkerFactoryContext, WorkerSpec
from warren.runtime.backends import create_connection_manager, create_publisher
from warren.workers.messages import MessageOrigin, ProcessingMessage
from warren.workers.workers import AsyncProcessingWorkerBase


def tell(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Flaky(AsyncProcessingWorkerBase):
    """Fails each message so often, by the count that it came back with."""

    def __init__(self, context: WorkerFactoryContext, fails: int, after: int, takes: float = 0.0) -> None:
        super().__init__(context.worker_name, worker_type=context.worker_type)
        self.fails = fails
        self.after = after
        self.takes = takes

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["data_type"] != "page":
            # On a fanout every worker sees every envelope.
            return
        tell(worker=self.type, message=message)
        await asyncio.sleep(self.takes)
        if message.get("retry", {}).get("count", 0) < self.fails:
            raise SoftFailureException("not yet", retry_after=self.after, backoff_base=1.0, jitter=False)


def a_worker(
    name: str, spec: dict[str, Any], config: RuntimeConfig, exchange: RMQExchangeConfig, infra: Any
) -> Any:
    async def factory(context: WorkerFactoryContext) -> Flaky:
        return Flaky(context, **spec)

    return DefaultWorkerRunner(
        config,
        f"{name}-1",
        worker_type=name,
        worker_spec=WorkerSpec(collections={}, factory=factory, binding_keys=("page",)),
        exchange=exchange,
        infra=infra,
    )


async def publish_what_is_typed(publisher: Any) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        message = ProcessingMessage(
            data_type="page", data=json.loads(line), job_id="job-1", origin=MessageOrigin("tests", "tests-1")
        )
        await publisher(message.to_dict())
        tell(published=True)


async def main(plan: dict[str, Any]) -> None:
    config = RuntimeConfig.model_validate(plan["config"])
    exchange = RMQExchangeConfig(name=plan["exchange"], type=plan["type"])
    runners = []
    if plan["retries"]:
        observed = observer_exchange(exchange)
        runners.append(RetryWorkerRunner(config, "retry-1", exchange=observed, republish_exchange=exchange))
    connection = create_connection_manager(config)
    await connection.setup()
    infra = RuntimeInfra(None, None, connection)
    runners += [a_worker(name, spec, config, exchange, infra) for name, spec in plan["workers"].items()]
    for runner in runners:
        await runner.setup()
    route = None if exchange.type == "fanout" else MessageFieldRouter()
    publisher = create_publisher(config, connection, exchange=exchange, route_func=route)
    await publisher.setup()
    tell(ready=True)
    await asyncio.gather(publish_what_is_typed(publisher), *(runner.run() for runner in runners))


asyncio.run(main(json.loads(sys.argv[1])))
