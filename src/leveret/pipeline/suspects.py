"""Suspects: messages that were started more than once without being settled run one at a time (P12)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from leveret.core.errors import BrokerError
from leveret.pipeline.consumer import FAULT_PAUSE
from leveret.pipeline.delivery import Road
from leveret.pipeline.parts import Parts, log
from leveret.ports import Delivery

#: Seconds between looks at the suspects queues where nobody tells that something lies there.
LOOK_EVERY = 1.0


class Suspects:
    """Runs the suspects of all workers of this process, one at a time, each fetched only when it can start.

    A prefetched suspect would come back flagged when its neighbour kills the process, and be counted for it.
    """

    def __init__(self, roads: Sequence[Road], parts: Parts, *, look_every: float = LOOK_EVERY) -> None:
        self._roads = roads
        self._look_every = look_every
        self._parts = parts
        self._task: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()
        self._stopping = False
        #: Suspects in hand: none, or one.
        self.in_hand = 0
        for road in roads:
            road.suspected = self._nudged.set

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._serve(), name="leveret suspects")

    async def _serve(self) -> None:
        clock = self._parts.world.clock
        while not self._stopping:
            self._nudged.clear()
            found = False
            for road in self._roads:
                if not self._stopping:
                    found |= await self._one(road)
            if not found and not self._stopping:
                timer = clock.call_later(self._look_every, self._nudged.set)
                await self._nudged.wait()
                timer.cancel()

    async def _one(self, road: Road) -> bool:
        """Fetch a suspect of this worker and run it to its end; whether there was one."""
        # Set before the fetch: whoever waits for quiet must not find it neither in the queue nor here.
        self.in_hand = 1
        try:
            try:
                delivery = await self._parts.transport.get(self._parts.names.suspects(road.spec.name))
            except BrokerError as error:
                log.info(
                    "cannot look for suspects of %s: %s", road.spec.name, error, extra={"action": "suspects"}
                )
                return False
            except Exception:  # noqa: BLE001 - if this ended, nobody would ever look again
                log.exception("cannot look for suspects of %s", road.spec.name)
                return False
            if delivery is None:
                return False
            await self._run(road, delivery)
        finally:
            self.in_hand = 0
        return True

    async def _run(self, road: Road, delivery: Delivery) -> None:
        # In a task of its own: a handler that ends its task must not end what looks for the others.
        run = asyncio.create_task(road.travel(delivery), name=delivery.queue)
        try:
            await asyncio.wait([run])
        finally:
            if not run.done():
                run.cancel()
                await asyncio.wait([run])
        if run.cancelled() or run.exception() is not None:
            log.error(
                "%s: a suspect could not be handled; it goes back to its queue",
                road.spec.name, exc_info=None if run.cancelled() else run.exception(),
            )  # fmt: skip
            await self._parts.world.clock.sleep(FAULT_PAUSE)
            delivery.requeue()

    async def stop(self) -> None:
        """Fetch no more."""
        self._stopping = True
        self._nudged.set()

    async def finish(self) -> None:
        """Return when the suspect in hand, if any, is settled."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def drop(self) -> int:
        """End what still runs, unacked. Returns how many."""
        dropped = self.in_hand
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        return dropped
