"""Whole apps on a RabbitMQ node: a namespace and a store file of a test's own, and what the broker says of them."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from pika import BasicProperties
from tests.rabbitmq_scene import RabbitHarness

from leveret import Leveret, Message, PublishError, PublishTimeout
from leveret.core.alarm import Alarm


class QueueRow(NamedTuple):
    """What `rabbitmqctl list_queues` says of a queue."""

    ready: int
    unacked: int
    consumers: int


class Place:
    """Where a test's apps live.

    Attributes:
        namespace: of all of them.
        store: the URL of their SQLite file.
    """

    def __init__(self, broker: RabbitHarness, folder: Path) -> None:
        self.broker = broker
        self.namespace = f"app-{uuid.uuid4().hex[:8]}"
        self.store = f"sqlite:///{folder}/leveret.db"

    def url(self, *, login: str = "guest:guest", query: str = "", proxied: bool = True) -> str:
        """The node's address, through the proxy unless told otherwise."""
        port = self.broker.proxy.port if proxied else self.broker.node.port
        return f"amqp://{login}@127.0.0.1:{port}{query}"

    def app(self, *, login: str = "guest:guest", query: str = "", **options: Any) -> Leveret:
        """An app that is not open yet."""
        return Leveret(
            self.namespace, **{"broker": self.url(login=login, query=query), "store": self.store, **options}
        )

    def queue(self, worker: str) -> str:
        """A worker's queue."""
        return f"{self.namespace}.{worker}"

    def publish(self, body: bytes, key: str, **properties: Any) -> None:
        """Publish as a program does that knows nothing of leveret, to the data exchange; returns once it is there."""
        with self.broker.channel() as channel:
            channel.confirm_delivery()
            channel.basic_publish(
                f"{self.namespace}.events", key, body, BasicProperties(**properties), mandatory=True
            )

    async def rows(self) -> dict[str, QueueRow]:
        """The namespace's queues, by the last part of their names."""
        said = await asyncio.to_thread(
            self.broker.node.ctl, "list_queues", "--no-table-headers",
            "name", "messages_ready", "messages_unacknowledged", "consumers",
        )  # fmt: skip
        begin = f"{self.namespace}."
        found = (line.split("\t") for line in said.splitlines() if line.startswith(begin))
        return {name.removeprefix(begin): QueueRow(*map(int, numbers)) for name, *numbers in found}

    async def until_rows(self, **wanted: QueueRow) -> None:
        """Wait until the broker says so of these queues."""
        rows = {}
        for _ in range(30):
            rows = await self.rows()
            if all(rows.get(name) == row for name, row in wanted.items()):
                return
        raise AssertionError(f"the broker says {rows}, expected {wanted}")

    async def channels(self) -> int:
        """How many channels the node has, the harness's own left out."""
        self.broker.close()
        said = await asyncio.to_thread(self.broker.node.ctl, "list_channels", "--no-table-headers", "pid")
        return len(said.splitlines())

    async def until_channels(self, number: int) -> None:
        """Wait until the broker says that there are so many: it buries those of a lost connection one by one."""
        found = 0
        for _ in range(30):
            found = await self.channels()
            if found == number:
                return
        raise AssertionError(f"the broker says {found} channels, expected {number}")


class HeardAlarms:
    """Remembers which alarms were told, how often, and which of them hold."""

    def __init__(self, app: Leveret) -> None:
        self.told: Counter[str] = Counter()
        self.holding: set[tuple[str, str]] = set()
        assert app._open is not None
        app._open.parts.alarms = self

    def emit(self, alarm: Alarm) -> None:
        if (alarm.code, alarm.about) not in self.holding:
            self.told[alarm.code] += 1
        self.holding.add((alarm.code, alarm.about))

    def resolved(self, code: str, about: str = "") -> None:
        self.holding.discard((code, about))


class Load:
    """Publishes messages, each under its id until it is confirmed or has to stop; and counts their runs."""

    def __init__(self, app: Leveret, type: str, *, lanes: int = 20) -> None:
        self.confirmed: set[str] = set()
        self.runs: Counter[str] = Counter()
        self._app = app
        self._type = type
        self._stopping = False
        self._lanes = [asyncio.create_task(self._publish()) for _ in range(lanes)]

    async def _publish(self) -> None:
        while not self._stopping:
            message = Message(self._type, {}, id=uuid.uuid4().hex)
            while message.id not in self.confirmed:
                try:
                    await self._app.publish(message, timeout=2)
                except PublishTimeout:
                    if self._stopping:
                        # Unknown, so nothing may be said of it.
                        return
                except PublishError:
                    await asyncio.sleep(0.01)
                    if self._stopping:
                        return
                else:
                    self.confirmed.add(message.id)

    async def stop(self) -> None:
        """Publish nothing more."""
        self._stopping = True
        async with asyncio.timeout(30):
            await asyncio.gather(*self._lanes)

    @property
    def missing(self) -> set[str]:
        """Confirmed, and not run."""
        return self.confirmed - self.runs.keys()

    @property
    def extra(self) -> int:
        """Runs beyond the first."""
        return sum(number - 1 for number in self.runs.values())
