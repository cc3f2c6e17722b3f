"""An app at work while its store goes away, whatever the store: what is in hand then, what fails meanwhile, the end.

The scene is one; each store's own tests say how it goes away.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from leveret import Context, HardFailure, Leveret, SoftFailure
from leveret.core import handover
from leveret.core.alarm import RETRY_STORE_UNAVAILABLE
from leveret.core.retry_entry import Filter
from leveret.pipeline import publishing
from leveret.ports import Store, Transport, World
from leveret.runtime.opening import Stand
from leveret.runtime.world import system_world
from leveret.transports.memory import MemoryBroker, MemoryTransport

#: Seconds that a lease lasts here: outages shall outlast it, and stay short.
TTL = 1.0
#: The same for a store that answers late, and after how long it does: less than any store gives up after by itself.
SHORT_TTL = 0.5
TEN_LEASES = 10 * SHORT_TTL
#: Seconds between two tries of what the store does not take: a short outage shall see many.
TRY_AGAIN = 0.2
#: Seconds that an outage lasts at least, and in which what waits for its next try becomes due.
LASTS = 2.0
DUE_MEANWHILE = 1.0
#: Messages of each kind; enough for batches, few enough for every way of being away to be tried.
EACH = 8
#: The same where the row B17 asks for a hundred that wait and fifty that fail meanwhile. Not for FerretDB, whose small
#: disk, made to be filled, would be full of them.
EACH_OF_B17 = 50

#: How each kind of message fails: softly so many times, or for good.
FAILS = {"soft": 1, "twice": 2, "hard": 0}
RUNS = {"soft": 2, "twice": 3, "hard": 1}

#: Within the block the store is away. It is struck on entry, and mended on exit.
Fault = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class Ledger:
    """What ought to come of each message, and what became of it."""

    #: Kind by message id, and how often each was run.
    planned: dict[str, str] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)

    def of(self, *kinds: str) -> set[str]:
        return {name for name, kind in self.planned.items() if kind in kinds}

    @property
    def done(self) -> bool:
        return all(self.runs[name] >= RUNS[kind] for name, kind in self.planned.items())


class StoreOutage:
    """One app with a worker, a retry worker and a keeper, and a store that goes away.

    Args:
        store: makes the app's store.
        caplog: of the test, for what is told.
        monkeypatch: of the test, for shorter waits.
        transport: makes the app's transport; by default to a broker in memory.
        ttl: seconds that its leases last.
        each: messages of each kind; two kinds wait when the store goes away, three fail meanwhile.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        *,
        transport: Callable[[World], Transport] | None = None,
        ttl: float = TTL,
        each: int = EACH,
    ) -> None:
        self._each = each
        self.ledger = Ledger()
        self._store = store
        self._ttl = ttl
        broker = MemoryBroker()
        self._transport = transport or (lambda world: MemoryTransport(broker, world=world))
        self._caplog = caplog
        caplog.set_level(logging.INFO, "leveret")
        monkeypatch.setattr(publishing, "HELD_BACKOFF", (TRY_AGAIN,))
        #: Set when a retry was published and confirmed, and is not removed yet; it goes on once the store was struck.
        self._confirmed = asyncio.Event()
        self._struck = asyncio.Event()
        self.app = self._made()

    def _made(self) -> Leveret:
        async def reached(point: str, message_id: str | None) -> None:
            if point == handover.REPUBLISH_CONFIRMED:
                self._confirmed.set()
                await self._struck.wait()

        world = replace(system_world(), reached=reached)
        app = Leveret(f"shop-{uuid.uuid4().hex[:8]}")
        app._stand = Stand(
            world=world,
            transport=lambda: self._transport(world),
            store=self._store,
            knobs=lambda knobs: replace(knobs, lease_ttl=self._ttl, overdue_rate=None, jitter=False),
        )

        @app.worker("order.placed", prefetch=100)
        async def charge(order: dict[str, Any], ctx: Context) -> None:
            name = str(ctx.message_id)
            self.ledger.runs[name] += 1
            if order["kind"] == "hard":
                raise HardFailure("no such card")
            if ctx.attempt <= FAILS[order["kind"]]:
                raise SoftFailure("503", retry_after=order["delay"])

        return app

    async def publish(self, kind: str, *, delay: float = 0.2) -> list[str]:
        """Messages of that kind, each of some kilobytes that no store makes smaller."""
        names = []
        for _ in range(self._each):
            body = {"kind": kind, "delay": delay, "noise": random.randbytes(8_000).hex()}
            names.append(await self.app.publish("order.placed", body))
            self.ledger.planned[names[-1]] = kind
        return names

    @property
    def told(self) -> list[str]:
        """What was told of the store: `alarm` and `resolved`, in order."""
        return [
            record.action
            for record in self._caplog.records
            if record.name == "leveret.alarms" and getattr(record, "code", "") == RETRY_STORE_UNAVAILABLE
        ]

    async def survives(
        self,
        fault: Fault,
        *,
        lasts: float = LASTS,
        takes: Literal["nothing", "what is small", "all, now and then"] = "nothing",
    ) -> None:
        """Work, have the store go away, go on failing, have it back: each message has come to the end planned for it.

        Args:
            fault: how it goes away.
            lasts: seconds.
            takes: what the store takes meanwhile.
        """
        ledger = self.ledger
        async with self.app.running():
            await self.publish("soft", delay=0.0)
            await asyncio.wait_for(self._confirmed.wait(), 20.0)
            waiting = await self.publish("soft", delay=DUE_MEANWHILE)
            await self._stored(2 * self._each)
            async with fault():
                self._struck.set()
                ends = time.monotonic() + lasts
                meanwhile = [name for kind in RUNS for name in await self.publish(kind)]
                # Neither to run nor to fail needs the store.
                await until(lambda: all(ledger.runs[name] for name in meanwhile))
                await asyncio.sleep(max(0.0, ends - time.monotonic()))
                if takes != "all, now and then":
                    assert self.told == ["alarm"]
                if takes == "nothing":
                    # What was published before may run; nothing else is published without the store's word.
                    assert {ledger.runs[name] for name in waiting + meanwhile} == {1}
            await until(lambda: ledger.done)
            await asyncio.wait_for(self.app._open.runner.until_idle(), 20.0)
            letters = [letter.message_id for letter in await self.app.dead_letters.list(limit=1000)]
            assert sorted(letters) == sorted(ledger.of("hard"))
            assert await self.app.counts() == (0, 0, 0, len(letters))
        assert {name: ledger.runs[name] for name in ledger.planned} == {
            name: RUNS[kind] for name, kind in ledger.planned.items()
        }
        assert self.told == ["alarm", "resolved"]

    async def _stored(self, number: int) -> None:
        """Return once so many retries lie in the store."""
        store = self.app._open.parts.store
        async with asyncio.timeout(20.0):
            while await store.count_entries(Filter()) < number:  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool], seconds: float = 40.0) -> None:
    """Return once *condition* holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        await asyncio.sleep(0.02)
