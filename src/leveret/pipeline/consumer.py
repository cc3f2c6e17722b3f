"""WorkerConsumer: one worker at work. It takes deliveries, gives each a slot, and stops gracefully."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from leveret.pipeline.delivery import Road
from leveret.pipeline.parts import Parts, log
from leveret.ports import Delivery, Subscription

#: Seconds until a delivery goes back that met a fault of leveret's own.
FAULT_PAUSE = 1.0


class WorkerConsumer:
    """Consumes one worker's queue: at most `prefetch` messages in hand, at most `concurrency` handlers at once."""

    def __init__(self, road: Road, parts: Parts) -> None:
        self.road = road
        self._parts = parts
        self._free = road.spec.concurrency
        self._waiting: deque[Delivery] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None
        self._stopping = False

    @property
    def queue(self) -> str:
        """The queue that it consumes."""
        return self.road.queue

    @property
    def running(self) -> int:
        """Messages in hand: in a handler, or in a step after it."""
        return len(self._tasks)

    @property
    def in_hand(self) -> int:
        """Messages in hand, also those that wait for a slot."""
        return len(self._tasks) + len(self._waiting)

    @property
    def held(self) -> int:
        """Messages whose publishes fail and are repeated."""
        return self.road.held

    @property
    def paused(self) -> bool:
        """Whether everything that may be in hand is held, so that nothing new comes in."""
        return self.road.held >= self.road.spec.prefetch

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""
        return self._subscription is not None and self._subscription.active

    async def start(self) -> None:
        """Consume.

        Raises:
            NotFound, AccessRefused: as the transport says.
        """
        self._subscription = await self._parts.transport.consume(
            self.road.queue, self._take, prefetch=self.road.spec.prefetch
        )

    def _take(self, delivery: Delivery) -> None:
        if self._stopping:
            delivery.requeue()
        elif self._free > 0:
            self._start(delivery)
        else:
            # What waited when its channel went will never start; whoever flaps must not fill the memory.
            while self._waiting and self._waiting[0].stale:
                self._waiting.popleft()
            self._waiting.append(delivery)

    def _start(self, delivery: Delivery) -> None:
        self._free -= 1
        # Its name says where a message hangs; without one, asyncio makes one up, which takes longer.
        self._tasks.add(asyncio.create_task(self._travel(delivery), name=self.road.queue))

    async def _travel(self, delivery: Delivery) -> None:
        taken = True

        def free() -> None:
            nonlocal taken
            if taken:
                taken = False
                self._freed()

        try:
            await self.road.travel(delivery, freed=free)
        except Exception:  # noqa: BLE001 - a fault of leveret's own, logged with all that is known
            # The message goes back, flagged, so that it is counted among the suspects if it is the cause; after a
            # pause, so that it cannot spin.
            log.exception(
                "%s: a delivery could not be handled; it goes back to its queue", self.road.spec.name
            )
            await self._parts.world.clock.sleep(FAULT_PAUSE)
            delivery.requeue()
        except BaseException:
            # A handler that ends its own task, say: nobody else would settle its message. What `drop` ends its channel
            # gives back; and so it does where the loop ends, which no timer outlives.
            if not self._stopping:
                self._parts.world.clock.call_later(FAULT_PAUSE, delivery.requeue)
            raise
        finally:
            free()
            # Not by a callback: each would take another turn of the loop.
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _freed(self) -> None:
        self._free += 1
        while self._waiting and self._free > 0:
            delivery = self._waiting.popleft()
            if not delivery.stale:
                self._start(delivery)

    async def stop(self) -> int:
        """Take no more, and give back what has not started. Returns how many were given back."""
        self._stopping = True
        if self._subscription is not None:
            await self._subscription.cancel()
        returned = sum(delivery.requeue() for delivery in self._waiting)
        self._waiting.clear()
        return returned

    async def finish(self) -> None:
        """Return when everything in hand is settled."""
        while running := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(running)

    async def drop(self) -> int:
        """End what still runs, unacked; the broker delivers it again. Returns how many."""
        self._stopping = True
        self._waiting.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # One that was ended before its first step could not take itself out.
        self._tasks.difference_update(tasks)
        return len(tasks)
