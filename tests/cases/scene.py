"""One broker, one store and one clock, which any number of instances of an app share and outlive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from leveret import Leveret
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.ports import Store
from leveret.runtime.opening import Stand
from leveret.stores.memory import MemoryData, MemoryStore
from leveret.stores.sqlite import SqliteStore
from leveret.stores.sqlite.file import SqliteFile
from leveret.testing import FakeClock, fake_world
from leveret.testing.fake_clock import idle
from leveret.transports.memory import MemoryBroker, MemoryTransport


class WatchedFile(SqliteFile):
    """Tells when its thread has nothing to do, so that a fake clock can wait for it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, busy_timeout=30)
        self._under_way = 0
        self.rests = asyncio.Event()
        self.rests.set()

    async def _ask(self, job: Any) -> Any:
        self._under_way += 1
        self.rests.clear()
        try:
            return await super()._ask(job)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self.rests.set()


class Scene:
    """What lives on while instances of an app come and go.

    Args:
        path: of an SQLite file; None: a store in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.clock = FakeClock(settle=self._settled)
        #: May be replaced by another one: the next instance finds an empty broker.
        self.broker = MemoryBroker()
        self.data = MemoryData()
        self._path = path
        self._files: list[WatchedFile] = []
        self._instances = 0

    def host(self, app: Leveret) -> Leveret:
        """The app, which opens on this broker, store and clock from now on, as often as it is opened."""
        self._instances += 1
        # Ids of another instance are others, as they are in another process.
        world = fake_world(self._instances, self.clock)
        app._stand = Stand(
            world=world,
            transport=lambda: MemoryTransport(self.broker, world=world),
            store=self._store,
        )
        return app

    def _store(self) -> Store:
        if self._path is None:
            return MemoryStore(clock=self.clock, data=self.data)
        store = SqliteStore(self._path, clock=self.clock)
        store.file = WatchedFile(self._path)
        self._files.append(store.file)
        return store

    async def advance(self, seconds: float = 0.0) -> None:
        """Let time pass; return when all that was due has settled."""
        await self.clock.advance(seconds)

    async def _settled(self) -> None:
        while busy := [file for file in self._files if not file.rests.is_set()]:
            await busy[0].rests.wait()
            await idle()


async def from_outside(broker: MemoryBroker, *messages: Outgoing) -> None:
    """Publish as another program would, which knows nothing of leveret."""
    transport = MemoryTransport(broker, world=fake_world(1000))
    await transport.open()
    for message in messages:
        await transport.send(message)
    await transport.close()


def foreign(
    body: bytes, *, type: str = "order.placed", exchange: str = "shop.events", **properties: Any
) -> Outgoing:
    """A message as another program would write it, by default without an id."""
    return Outgoing(exchange, type, body, Properties.build(**properties))
