from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from tests.e2e.shell import PATIENCE, Shell
from tests.rabbitmq_node import Node
from tests.rabbitmq_scene import QUEUE_TYPE

#: A worker that does what it is told; all else comes from the environment.
SHOP = """
import asyncio
from leveret import Context, HardFailure, Leveret, RetryPolicy, SoftFailure

app = Leveret()

@app.worker("job", retry=RetryPolicy(first_delay=0.2, max_delay=600, jitter=0, max_attempts=3))
async def charge(job: dict, ctx: Context) -> None:
    print("began", job["do"], "attempt", ctx.attempt, flush=True)
    if job["do"] == "soft" and ctx.attempt == 1:
        raise SoftFailure("the card service answered 503")
    if job["do"] == "later" and ctx.attempt == 1:
        raise SoftFailure("the card service is closed", retry_after=600)
    if job["do"] == "hard":
        raise HardFailure("cannot charge 0 cents")
"""


class Shop(Shell):
    """A folder with an app in it, whose namespace on the session's node is this test's own."""

    def __init__(self, folder: Path, node: Node) -> None:
        super().__init__(folder)
        self.node = node
        self.namespace = f"cli-{uuid.uuid4().hex[:8]}"
        self.environ |= {
            "LEVERET_BROKER": node.url,
            "LEVERET_NAMESPACE": self.namespace,
            "LEVERET_APP": "shop:app",
        }
        if QUEUE_TYPE is not None:
            self.environ["LEVERET_QUEUE_TYPE"] = QUEUE_TYPE
        (folder / "shop.py").write_text(SHOP)
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", node.port, heartbeat=0)
        )
        self._channel: BlockingChannel | None = None

    @property
    def channel(self) -> BlockingChannel:
        """A channel beside leveret's."""
        if self._channel is None or self._channel.is_closed:
            self._channel = self._connection.channel()
        return self._channel

    def queue(self, name: str) -> str:
        """A queue of the namespace."""
        return f"{self.namespace}.{name}"

    def ready(self, name: str) -> int | None:
        """Messages that lie ready in a queue of the namespace, None where it is not there."""
        try:
            return int(self.channel.queue_declare(self.queue(name), passive=True).method.message_count)
        except pika.exceptions.ChannelClosedByBroker:
            return None

    def until_ready(self, name: str, number: int) -> None:
        """Wait until so many messages lie ready in a queue of the namespace."""
        until = time.monotonic() + PATIENCE
        while self.ready(name) != number:
            assert time.monotonic() < until, f"{self.ready(name)} messages lie in {name}, not {number}"
            self._connection.sleep(0.02)

    def close(self) -> None:
        self.clean_up()
        self._connection.close()


@pytest.fixture
def shop(tmp_path: Path, rabbitmq: Node) -> Iterator[Shop]:
    shop = Shop(tmp_path, rabbitmq)
    yield shop
    shop.close()
