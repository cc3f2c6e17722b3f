"""Pipelines of the package warren that tests start, and a runner of leveret's beside them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.rabbitmq_node import Node

from leveret.core.topology import RMQExchangeConfig
from leveret.retry import RetryWorkerRunner

_PIPELINE = Path(__file__).with_name("pipeline.py")
#: Its interpreter is up, and its queues are there, within 3 s here; a busy machine takes longer.
_PATIENCE = 60.0


class Pipeline:
    """Workers of warren that run, on an exchange of their own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._told = asyncio.Condition()
        #: What the workers got, in order.
        self.runs: list[dict[str, Any]] = []
        self._ready = False
        self._published = 0
        self._over = False
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            said = json.loads(line)
            async with self._told:
                if "ready" in said:
                    self._ready = True
                elif "published" in said:
                    self._published += 1
                else:
                    self.runs.append(said)
                self._told.notify_all()
        async with self._told:
            self._over = True
            self._told.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for what the workers say."""
        async with asyncio.timeout(_PATIENCE), self._told:
            await self._told.wait_for(lambda: self._over or condition())
        assert condition(), "the process of warren has ended"

    async def until_ready(self) -> None:
        """Wait until its queues are there."""
        await self.until(lambda: self._ready)

    async def publish(self, *datas: Mapping[str, Any]) -> None:
        """Have warren publish messages of type page with these data; returns once the broker has them."""
        published = self._published + len(datas)
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(json.dumps(data).encode() + b"\n" for data in datas))
        await self._process.stdin.drain()
        await self.until(lambda: self._published == published)

    def counts(self, worker: str) -> list[int]:
        """The retry counts of what a worker got, in order."""
        return [
            run["message"].get("retry", {}).get("count", 0) for run in self.runs if run["worker"] == worker
        ]

    async def kill(self) -> None:
        """End it, as `kill -9` does. Idempotent."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


class Warren:
    """Starts pipelines of warren on one exchange that no other test has."""

    def __init__(self, root: Path, node: Node, folder: Path, stack: AsyncExitStack) -> None:
        self.exchange = RMQExchangeConfig(f"jobs-{uuid.uuid4().hex[:8]}")
        self.url = node.url
        self._root = root
        self._port = node.port
        self._log = folder / "warren.log"
        self._stack = stack

    async def start(
        self,
        *,
        workers: Mapping[str, Mapping[str, float]] = {},
        retries: bool = False,
        **config: Any,
    ) -> Pipeline:
        """Start workers, and warren's own retry worker if asked for.

        Each worker is `{"fails": times, "after": seconds}`, and `"takes"` the seconds before it fails.
        """
        config.setdefault("rabbitmq", {})["connection"] = {"host": "127.0.0.1", "port": self._port}
        plan = {
            "config": config,
            "exchange": self.exchange.name,
            "type": self.exchange.type,
            "workers": workers,
            "retries": retries,
        }
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                "unshare", "--mount-proc", f"--root={self._root}",
                "/opt/warren/bin/python", "-c", _PIPELINE.read_text(), json.dumps(plan),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        pipeline = Pipeline(process)
        self._stack.push_async_callback(pipeline.kill)
        try:
            await pipeline.until_ready()
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"warren did not start: {self._log.read_text()[-3000:]}") from error
        return pipeline


@asynccontextmanager
async def running(runner: RetryWorkerRunner) -> AsyncIterator[None]:
    """A runner of leveret's at work, as a block; its queue is there when the block begins."""
    await runner.setup()
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], object]) -> None:
    """Wait for what no event tells."""
    async with asyncio.timeout(_PATIENCE):
        while not condition():  # noqa: ASYNC110 - a database of others tells nobody
            await asyncio.sleep(0.05)
