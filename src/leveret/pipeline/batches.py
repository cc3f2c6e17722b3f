"""BatchConsumer: takes one queue into the store, batch by batch. Stored, then acked (R1, D2)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Generic, NamedTuple, TypeVar

from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import (
    AccessRefused,
    BrokerError,
    NotFound,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from leveret.core.retry_entry import Due, RetryEntry
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import held_backoff
from leveret.ports import Delivery, Subscription

#: Seconds between tries where somebody else consumes the queue exclusively, and until that is told.
IN_USE_EVERY = 5.0
IN_USE_TOLD_AFTER = 120.0
#: The broker's words for it; it says 403 also where a right is missing.
IN_USE = "in exclusive use"
#: Bytes of bodies in one batch; a single larger one goes alone. It has to pass within the store's time limit, and
#: memory must not grow with what waits.
BATCH_BYTES = 16 * 1024 * 1024

Entry = TypeVar("Entry", RetryEntry, DeadLetter)
Sized = TypeVar("Sized", Due, RetryEntry, DeadLetter)
Written = TypeVar("Written")


class Taken(NamedTuple, Generic[Entry]):
    """A delivery in hand, and what it says."""

    delivery: Delivery
    entry: Entry


class BatchConsumer(ABC, Generic[Entry, Written]):
    """Takes what comes by one queue into the store: many in a transaction, each acked once it is stored.

    While the store is away everything stays in hand and in the queue, and an alarm says so. A batch that the store
    refuses is halved until the culprit stands alone; one that it does not answer for, until it does. It is for one run:
    whoever starts over makes another one.

    A subclass says what differs: `read`, `write`, `written` and `refused`.

    Args:
        parts: what the verbs share.
        queue: to consume, exclusively where only one process can reach the store.
        what: lies there, as the alarm names it.
        prefetch: deliveries in hand at most.
        batch: entries in a transaction at most.
        stored: the hand-over point between store and ack.
        received: the hand-over point before a delivery is read, if there is one.
    """

    def __init__(
        self,
        parts: Parts,
        queue: str,
        *,
        what: str,
        prefetch: int,
        batch: int,
        stored: str,
        received: str | None = None,
    ) -> None:
        self.parts = parts
        self.queue = queue
        self._what = what
        self._prefetch = prefetch
        self._most = batch
        #: How many of a batch the store is asked to take at once.
        self._at_once = batch
        self._at_stored = stored
        self._at_received = received
        self._subscription: Subscription | None = None
        self._received: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._batch: list[Delivery] = []
        #: Set between two batches.
        self._between = asyncio.Event()
        self._between.set()
        #: Those that must not hold up the others, each with the task that deals with it.
        self._aside: dict[asyncio.Task[None], Delivery] = {}
        #: Those whose task failed.
        self._stuck: list[Delivery] = []
        self._closing = False

    @abstractmethod
    def read(self, delivery: Delivery) -> Entry | None:
        """What a delivery says; None where it is acked or set aside instead. Whatever it says, this does not raise."""

    @abstractmethod
    async def write(self, entries: list[Entry]) -> Sequence[Written]:
        """Store these in one transaction. Returns what became of each, in their order.

        Raises:
            StoreUnavailable: there is no answer; they may have been stored.
            StoreRefused: nothing was stored.
        """

    @abstractmethod
    def written(self, entry: Entry, written: Written) -> None:
        """One is stored and acked."""

    @abstractmethod
    def refused(self, one: Taken[Entry], error: StoreRefused) -> None:
        """The store refuses this one, by itself: set it aside."""

    @property
    def begun(self) -> bool:
        """Whether the broker has given us the queue; from then on the transport sees to it that we consume."""
        return self._subscription is not None

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""
        return self._subscription is not None and self._subscription.active

    @property
    def in_hand(self) -> int:
        """Deliveries in hand, unacked."""
        return len(self._received) + len(self._batch) + len(self._aside)

    async def run(self) -> None:
        """Consume, until cancelled; then everything unacked goes back to the queue."""
        subscription = self._subscription = await self._consume()
        try:
            while True:
                await self._arrived.wait()
                if self._closing:
                    # What has arrived goes back, or has gone back already.
                    await asyncio.get_running_loop().create_future()
                self._between.clear()
                self._batch = self._next_batch()
                if not self._received:
                    self._arrived.clear()
                await self.take_in([delivery for delivery in self._batch if not delivery.stale])
                self._batch = []
                self._between.set()
        finally:
            self._between.set()
            aside: dict[asyncio.Task[None], Delivery] = dict(self._aside)
            for task in aside:
                task.cancel()
            await subscription.cancel()
            if aside:
                await asyncio.wait(aside)
            # What was settled already stays settled.
            for delivery in (*self._batch, *self._received, *aside.values(), *self._stuck):
                delivery.requeue()

    async def finish(self) -> None:
        """Take no more, and return when the batch in hand is stored and acked: what is stored must not come again."""
        self._closing = True
        if self._subscription is not None:
            # First of all: what goes back would be handed to us again at once.
            await self._subscription.cancel()
        for delivery in self._received:
            delivery.requeue()
        self._received.clear()
        await self._between.wait()

    def set_aside(self, delivery: Delivery, work: Coroutine[object, object, None]) -> None:
        """Let *work* deal with a delivery, and settle it, while the others go on (R8)."""
        task = asyncio.create_task(work, name=f"{self.queue} aside")
        self._aside[task] = delivery
        task.add_done_callback(self._dealt_with)

    def _dealt_with(self, task: asyncio.Task[None]) -> None:
        delivery = self._aside.pop(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error(
                "a message of %s could not be dealt with; it stays unacked until we stop",
                self.queue, exc_info=fault, extra={"action": "held"},
            )  # fmt: skip
            self._stuck.append(delivery)

    def _take(self, delivery: Delivery) -> None:
        # What waited when its channel went is not stored any more; whoever flaps must not fill the memory.
        while self._received and self._received[0].stale:
            self._received.popleft()
        self._received.append(delivery)
        self._arrived.set()

    def _next_batch(self) -> list[Delivery]:
        """What came first, as much as goes into the store at once."""
        received = self._received
        batch: list[Delivery] = []
        size = 0
        while received and len(batch) < self._most:
            size += len(received[0].body)
            if batch and size > BATCH_BYTES:
                break
            batch.append(received.popleft())
        return batch

    async def take_in(self, deliveries: Sequence[Delivery]) -> None:
        """Deal with one batch: when this returns each is stored and acked, set aside, or others have it by now."""
        taken: list[Taken[Entry]] = []
        for delivery in deliveries:
            if self._at_received is not None and self.parts.world.reached is not None:
                await self.parts.reach(self._at_received, delivery.properties.message_id)
            entry = self.read(delivery)
            if entry is not None:
                taken.append(Taken(delivery, entry))
        if taken:
            await self._put(taken)

    async def _put(self, taken: Sequence[Taken[Entry]]) -> None:
        """Store these, however long it takes, and ack them; what the store refuses is halved, and what it leaves open.

        It may answer for few alone, as over a slow line: what got no answer is asked for again in halves, down to one
        message; after each answer twice as many go together, until a batch is whole again.
        """
        left = list(taken)
        waits = held_backoff()
        while left:
            portion = left[: self._at_once]
            try:
                with self.asking():
                    written = await self._written_whole(portion)
            except StoreRefused as error:
                if len(portion) == 1:
                    self.refused(portion[0], error)
                else:
                    middle = len(portion) // 2
                    await self._put(portion[:middle])
                    await self._put(portion[middle:])
            except StoreUnavailable as error:
                self._at_once = max(1, len(portion) // 2)
                wait = next(waits)
                self.log_held(error, wait)
                await self.parts.world.clock.sleep(wait)
                left = [one for one in left if not one.delivery.stale]
                if not left:
                    # Others have them now, and nothing of ours is left that the store would have to take.
                    self.parts.store_condition.over_for(self.queue)
                continue
            else:
                await self.ack(portion, written)
                self._at_once = min(self._most, 2 * self._at_once)
                waits = held_backoff()
            left = [one for one in left[len(portion) :] if not one.delivery.stale]

    async def _written_whole(self, taken: Sequence[Taken[Entry]]) -> Sequence[Written]:
        """As `write`, but a write that is under way when we are ended comes to its end, and what it stored is acked.

        The next holder publishes what is stored; given back to its queue, it would be stored and published once more.
        """
        writing = asyncio.ensure_future(self.write([entry for _, entry in taken]))  # noqa: RUF006 - held right here
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait((writing,))
            if not writing.cancelled() and writing.exception() is None:
                await self.ack(taken, writing.result())
            raise

    @property
    def held_title(self) -> str:
        """What an alarm says while the store does not take what we have."""
        return f"{self._what} cannot be stored; they wait in {self.queue}"

    def asking(self) -> AbstractContextManager[None]:
        """Within the block the store is asked to take what we have."""
        return self.parts.store_condition.asking(self.queue, self.held_title)

    def log_held(self, error: StoreError, wait: float) -> None:
        """The store does not take what we have; we try again in *wait* seconds."""
        log.warning(
            "%s cannot be stored, again in %g s: %s", self._what, wait, error, extra={"action": "held"}
        )

    async def ack(self, taken: Sequence[Taken[Entry]], written: Sequence[Written]) -> None:
        """Ack what is stored."""
        for (delivery, entry), each in zip(taken, written, strict=True):
            if self.parts.world.reached is not None:
                await self.parts.reach(self._at_stored, entry.message_id)
            delivery.ack()
            self.written(entry, each)

    async def _consume(self) -> Subscription:
        """Consume a queue that one process at a time may have; where another has it, try until it lets go (R9)."""
        parts, queue = self.parts, self.queue
        clock = parts.world.clock
        since = clock.monotonic()
        told = False
        while True:
            try:
                return await parts.transport.consume(
                    queue, self._take, prefetch=self._prefetch, exclusive=not parts.store.shared
                )
            except AccessRefused as error:
                if IN_USE not in str(error):
                    # Nobody has it: we may not read it, and no waiting changes that.
                    if not told:
                        told = True
                        log.error(
                            "%s is not consumed, and what arrives lies there: %s. Tried again every %g s.",
                            queue, error, IN_USE_EVERY, extra={"action": "no_right"},
                        )  # fmt: skip
                elif not told and clock.monotonic() - since >= IN_USE_TOLD_AFTER:
                    told = True
                    log.error(
                        "another store or program consumes %s: %s. Two stores must not share one namespace's queue: "
                        "each would hide half the messages. Stop the other one, or give this one a namespace of its "
                        "own.",
                        queue, error, extra={"action": "in_use"},
                    )  # fmt: skip
            except (NotFound, BrokerError) as error:
                log.info("cannot consume %s yet: %s", queue, error, extra={"action": "consume"})
                if isinstance(error, NotFound):
                    await parts.transport.declare(parts.base)
            await clock.sleep(IN_USE_EVERY)


def portions(rows: Sequence[Sized], *, number: int, size: int) -> Iterator[list[Sized]]:
    """These rows in their order, so many at most and of so many bytes at once; a single larger one goes alone."""
    portion: list[Sized] = []
    total = 0
    for row in rows:
        if portion and (len(portion) == number or total + row.size > size):
            yield portion
            portion, total = [], 0
        portion.append(row)
        total += row.size
    if portion:
        yield portion
