"""Intake: envelopes from the retry queue into the store. Persist, then ack, then schedule (R1)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from leveret.core import envelope, handover, json_form
from leveret.core import headers as h
from leveret.core.envelope import Malformed
from leveret.core.errors import StoreRefused
from leveret.core.message import Outgoing
from leveret.core.retry_entry import Due, Lane, RetryEntry
from leveret.pipeline.batches import BatchConsumer, Taken
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import Publisher
from leveret.ports import Delivery

#: Envelopes in hand at once, and in one transaction at most.
PREFETCH = 2000
BATCH = 500


class Intake(BatchConsumer[RetryEntry, Due | None]):
    """Takes envelopes from the retry queue while the lease is held; what nobody can use becomes a dead letter."""

    def __init__(self, parts: Parts, publisher: Publisher, *, scheduled: Callable[[Due], object]) -> None:
        super().__init__(
            parts,
            parts.names.retry_queue,
            what=f"retries of {parts.names.namespace}",
            prefetch=PREFETCH,
            batch=BATCH,
            received=handover.RETRY_RECEIVED,
            stored=handover.STORED,
        )
        self._publisher = publisher
        self._scheduled = scheduled
        #: (key, failure) of rows that the store was asked to take and has not answered for.
        self._unanswered: set[tuple[str, int]] = set()
        #: How many deliveries of the batch in hand are yet to be answered for, by their row: two may bear the same.
        self._in_batch: Counter[tuple[str, int]] = Counter()

    def storing(self, key: str, failure: int) -> bool:
        """Whether this row's put has no answer yet. A put that fails may have been done: it is asked for once more."""
        return (key, failure) in self._unanswered

    async def finish(self) -> None:
        """Take no more, and return when what is in hand is stored and acked, or buried."""
        await super().finish()
        if self._aside:
            await asyncio.wait(self._aside)

    def read(self, delivery: Delivery) -> RetryEntry | None:
        """Read an envelope in either form; bury what is none."""
        entry = self._entry_of(delivery)
        if entry is not None:
            self._in_batch[entry.key, entry.failure] += 1
        return entry

    def _entry_of(self, delivery: Delivery) -> RetryEntry | None:
        namespace = self.parts.names.namespace
        try:
            if delivery.properties.header(h.ENVELOPE) is not None:
                return envelope.read_retry(delivery.body, delivery.properties, namespace=namespace)
            return json_form.read_retry(
                delivery.body,
                namespace=namespace,
                exchange=self.parts.exchange.name,
                now=self.parts.world.clock.now(),
                new_id=self.parts.world.new_id,
            )
        except Malformed as error:
            self._bury(delivery, f"malformed envelope: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a stranger writes, it must not stop the rest (R8)
            log.exception("an envelope could not be read", extra={"action": "malformed"})
            self._bury(delivery, f"unreadable envelope: {type(error).__name__}: {error}")
        return None

    async def take_in(self, deliveries: Sequence[Delivery]) -> None:
        """As every batch; after it nothing is asked for again."""
        try:
            await super().take_in(deliveries)
        finally:
            self._unanswered.clear()
            self._in_batch.clear()

    async def write(self, entries: list[RetryEntry]) -> Sequence[Due | None]:
        """Store these. Returns when each is due; None where it, or a later failure of it, has long been waiting."""
        rows = [(entry.key, entry.failure) for entry in entries]
        # What is found there may be what an earlier try has put; nobody has scheduled that.
        again = [row in self._unanswered for row in rows]
        self._unanswered.update(rows)
        return [
            Due(entry.key, entry.failure, place.due_in, entry.queue, entry.size, Lane.WRITTEN)
            if place.written or tried
            else None
            for entry, tried, place in zip(entries, again, await self.parts.store.put(entries), strict=True)
        ]

    def written(self, entry: RetryEntry, written: Due | None) -> None:
        """Schedule it."""
        self._answered(entry)
        if written is not None:
            self._scheduled(written)

    def refused(self, one: Taken[RetryEntry], error: StoreRefused) -> None:
        """Bury it: no waiting makes it fit."""
        self._answered(one.entry)
        self._bury(one.delivery, f"the store refuses it: {error}")

    def _answered(self, entry: RetryEntry) -> None:
        """The store has answered for this one; its row is settled once it has for every delivery that bears it."""
        row = (entry.key, entry.failure)
        self._in_batch[row] -= 1
        if not self._in_batch[row]:
            self._unanswered.discard(row)

    def _bury(self, delivery: Delivery, reason: str) -> None:
        self.set_aside(delivery, self._make_dead_letter(delivery, reason))

    async def _make_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Make a delivery that nobody can use a dead letter: published, confirmed, then acked."""
        body, properties = envelope.unreadable(
            delivery.body,
            delivery.properties,
            queue=self.queue,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
            reason=reason,
            at=self.parts.world.clock.now(),
            letter_id=self.parts.world.new_id(),
            where=self.parts.where,
        )
        if await self._publisher.hand_over(
            Outgoing("", self.parts.names.dead_letters, body, properties),
            stale=lambda: delivery.stale,
            message_id=properties.message_id,
        ):
            await self.parts.reach(handover.DEAD_LETTER_CONFIRMED, properties.message_id)
            delivery.ack()
