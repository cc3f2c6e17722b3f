"""An app at work on a memory broker, a memory store that can fail, and a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from leveret import Leveret
from leveret.core.alarm import Alarm
from leveret.core.errors import StoreUnavailable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.runtime.opening import Stand
from leveret.runtime.runner import Knobs, Runner
from leveret.stores.memory import MemoryData, MemoryStore
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryBroker, MemoryTransport


class FailingStore(MemoryStore):
    """A memory store whose calls can be made to fail, or to wait, before they reach it.

    `before` is awaited with the name of each call and what it was given; `away` makes every call fail.
    """

    before: Callable[..., Awaitable[object]] | None = None
    away = False


def _failing(name: str) -> Any:
    plain = getattr(MemoryStore, name)

    async def call(self: FailingStore, *arguments: Any, **options: Any) -> Any:
        if self.before is not None:
            await self.before(name, *arguments)
        if self.away:
            raise StoreUnavailable("the store is away")
        return await plain(self, *arguments, **options)

    return call


for _name in (
    "put", "upcoming", "take", "remove", "postpone", "unblock", "bury", "keep", "claim", "replayed", "asked", "report",
    "count_start", "forget_starts", "count_entries", "hold",
):  # fmt: skip
    setattr(FailingStore, _name, _failing(_name))


class HeardAlarms:
    """Remembers which alarms hold."""

    def __init__(self) -> None:
        self.holding: set[tuple[str, str]] = set()

    def emit(self, alarm: Alarm) -> None:
        self.holding.add((alarm.code, alarm.about))

    def resolved(self, code: str, about: str = "") -> None:
        self.holding.discard((code, about))


class RunningApp:
    """Opens an app, and runs it until the block ends. The broker and what is stored may be looked at at any time."""

    def __init__(self, app: Leveret, *, knobs: Callable[[Knobs], Knobs] = lambda knobs: knobs) -> None:
        self.app = app
        self.clock = FakeClock()
        self.broker = MemoryBroker()
        self.data = MemoryData()
        self.store = FailingStore(clock=self.clock, data=self.data)
        self.alarms = HeardAlarms()
        self.world = fake_world(0, self.clock)
        #: Another program on the same broker.
        self.outside = MemoryTransport(self.broker, world=fake_world(1, self.clock))
        self._knobs = knobs
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.app._stand = Stand(
            world=self.world,
            transport=lambda: MemoryTransport(self.broker, world=self.world),
            store=lambda: self.store,
            knobs=lambda knobs: self._knobs(replace(knobs, jitter=False)),
        )
        await self.outside.open()
        await self.app.open()
        self.app._open.parts.alarms = self.alarms
        await self._stack.enter_async_context(self.app.running())
        await idle()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Whatever the test has done to it: the end is that of an app that works.
        self.store.before, self.store.away = None, False
        stopping = asyncio.ensure_future(self._stack.aclose())
        while not stopping.done():
            await self.clock.advance(1)
        await stopping
        await self.app.close()
        await self.outside.close()

    @property
    def runner(self) -> Runner:
        return self.app._open.runner

    async def send(self, queue: str, body: bytes, **properties: Any) -> None:
        """Publish as a stranger does: no tag, and no id unless one is given."""
        await self.outside.send(Outgoing("", queue, body, Properties.build(**properties), mandatory=False))
        await idle()

    def ready(self, queue: str) -> int:
        return self.broker.snapshot()[queue].ready

    def unsettled(self, queue: str) -> int:
        return self.broker.snapshot()[queue].unsettled
