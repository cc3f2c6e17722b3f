"""LetterIntake: dead letters from the dead-letter queue into the store. Stored, then acked (D2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leveret.core import handover
from leveret.core.alarm import RETRY_STORE_UNAVAILABLE, Alarm
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import StoreRefused, StoreUnavailable
from leveret.dead_letters.reading import is_expired_request, read
from leveret.pipeline.batches import BatchConsumer, Taken
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import held_backoff
from leveret.ports import Delivery

#: Letters in hand at once, and in one transaction at most.
PREFETCH = 1000
BATCH = 200


class LetterIntake(BatchConsumer[DeadLetter, DeadLetter]):
    """Takes dead letters into the store while the lease is held; what cannot be read is kept as it is.

    Args:
        parts: what the verbs share.
        kept: told of each letter that is stored and acked.
        expired: told of each RPC request that expired in its queue: nobody waits for it, and it is not kept.
    """

    def __init__(
        self, parts: Parts, *, kept: Callable[[DeadLetter], object], expired: Callable[[], object]
    ) -> None:
        super().__init__(
            parts,
            parts.names.dead_letters,
            what="dead letters",
            prefetch=PREFETCH,
            batch=BATCH,
            stored=handover.KEEPER_STORED,
        )
        self._kept = kept
        self._expired = expired
        #: What the alarm about refused letters is about: a store that is away is one condition, whoever meets it;
        #: one that refuses is the keeper's own.
        self._refusal = f"{parts.names.namespace} keeper"

    def read(self, delivery: Delivery) -> DeadLetter | None:
        """Read a letter of whatever form, a broken one too; ack a request that expired."""
        clock, new_id = self.parts.world.clock, self.parts.world.new_id
        namespace = self.parts.names.namespace
        try:
            if is_expired_request(delivery):
                self._expired()
                delivery.ack()
                return None
            return read(
                delivery, namespace=namespace, events=self.parts.exchange.name, now=clock.now(), new_id=new_id
            )
        except Exception as error:  # noqa: BLE001 - whatever lies there is kept, and must not stop the rest (R8)
            log.exception(
                "a dead letter could not be read; it is kept as it is", extra={"action": "malformed"}
            )
            return DeadLetter(
                namespace=namespace,
                id=new_id(),
                ending="foreign",
                exchange=delivery.exchange,
                routing_key=delivery.routing_key,
                type=delivery.properties.type or delivery.routing_key,
                message_id=delivery.properties.message_id,
                reason=f"could not be read: {type(error).__name__}: {error}",
                first_failed_at=clock.now(),
                died_at=clock.now(),
                size=len(delivery.body),
                body=delivery.body,
                properties=delivery.properties.raw,
            )

    async def write(self, entries: list[DeadLetter]) -> Sequence[DeadLetter]:
        """Store these; one that is there already stays as it is."""
        await self.parts.store.keep(entries)
        if not self._aside:
            self._no_more_refused()
        return entries

    def written(self, entry: DeadLetter, written: DeadLetter) -> None:
        """Tell that it is kept."""
        self._kept(written)

    def refused(self, one: Taken[DeadLetter], error: StoreRefused) -> None:
        """Keep it in hand: there is no other place for a dead letter."""
        self.set_aside(one.delivery, self._insist(one))

    async def _insist(self, one: Taken[DeadLetter]) -> None:
        """Try this one again and again, apart from the others."""
        for wait in held_backoff():
            try:
                with self.asking():
                    letters = await self.write([one.entry])
            except StoreRefused as error:
                self._tell_refused(error)
                self.log_held(error, wait)
            except StoreUnavailable as error:
                self.log_held(error, wait)
            else:
                self._no_more_refused()
                await self.ack([one], letters)
                return
            await self.parts.world.clock.sleep(wait)
            if one.delivery.stale:
                return

    def _tell_refused(self, error: StoreRefused) -> None:
        self.parts.alarms.emit(
            Alarm(
                code=RETRY_STORE_UNAVAILABLE,
                title=self.held_title,
                about=self._refusal,
                fields={"store": self.parts.store.display, "error": str(error)},
            )
        )

    def _no_more_refused(self) -> None:
        self.parts.alarms.resolved(RETRY_STORE_UNAVAILABLE, self._refusal)
