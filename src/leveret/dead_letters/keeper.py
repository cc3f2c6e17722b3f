"""Keeper: moves dead letters from the dead-letter queue into the store, and replays what people ask for (D2, D3)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from leveret.core import handover
from leveret.core.alarm import RETRY_STORE_UNAVAILABLE, Alarm
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import StoreRefused, StoreUnavailable
from leveret.dead_letters.reading import is_expired_request, read
from leveret.dead_letters.replay import Replays
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import held_backoff
from leveret.ports import Delivery, Grant, Subscription
from leveret.retry.intake import consume_exclusively
from leveret.retry.service import ACTS_EVERY, TermService, all_until_one_ends

PREFETCH = 1000
BATCH = 200


class Keeper(TermService):
    """Keeps the dead letters of one namespace, while it holds the keeper lease."""

    def __init__(self, parts: Parts, *, ttl: float, acts_every: float = ACTS_EVERY) -> None:
        super().__init__(parts, lease="keeper", ttl=ttl)
        self._acts_every = acts_every
        self._received: list[Delivery] = []
        self._arrived = asyncio.Event()
        self._replays = Replays(parts, self.keeper)
        #: Letters in hand, unacked.
        self.in_hand = 0
        #: RPC requests that expired in their queue: nobody waits for them, so they are counted and not kept.
        self.expired_requests = 0
        #: Letters that the store refuses, each tried again by itself.
        self._refused: dict[asyncio.Task[None], Delivery] = {}
        self._subscription: Subscription | None = None
        self._closing = False
        #: Set between two batches.
        self._between = asyncio.Event()
        self._between.set()

    @property
    def quiet(self) -> bool:
        """Whether it works, and nothing is in hand."""
        return self._subscription is not None and self.in_hand == 0 and not self._replays.busy

    async def work(self, grant: Grant) -> None:
        """Take letters in, obey replays."""
        await all_until_one_ends([
            asyncio.create_task(self._keep()),
            asyncio.create_task(self.act_when_asked(self._replays.obey, self._acts_every)),
        ])  # fmt: skip

    async def _keep(self) -> None:
        self._received, self.in_hand = [], 0
        self._arrived.clear()
        subscription = await consume_exclusively(
            self.parts, self.parts.names.dead_letters, self._take, prefetch=PREFETCH
        )
        self._subscription = subscription
        batch: list[Delivery] = []
        try:
            while True:
                await self._arrived.wait()
                if self._closing:
                    # What has arrived goes back, or has gone back already.
                    await asyncio.get_running_loop().create_future()
                batch = self._received[:BATCH]
                del self._received[:BATCH]
                if not self._received:
                    self._arrived.clear()
                self._between.clear()
                await self._store([delivery for delivery in batch if not delivery.stale])
                self.in_hand -= len(batch)
                self._between.set()
        finally:
            self._subscription = None
            self._between.set()
            refused = dict(self._refused)
            for task in refused:
                task.cancel()
            await subscription.cancel()
            if refused:
                await asyncio.wait(refused)
            # What was settled already stays settled.
            for delivery in (*batch, *self._received, *refused.values()):
                delivery.requeue()

    async def finish(self) -> None:
        """Keep and ack the batch in hand, finish the replay window in hand."""
        self._closing = True
        if self._subscription is not None:
            # First of all: what goes back would be handed to us again at once.
            await self._subscription.cancel()
        self.in_hand -= len(self._received)
        for delivery in self._received:
            delivery.requeue()
        self._received.clear()
        await asyncio.gather(self._between.wait(), self._replays.finish())

    def _take(self, delivery: Delivery) -> None:
        if self._closing:
            delivery.requeue()
            return
        self.in_hand += 1
        self._received.append(delivery)
        self._arrived.set()

    async def _store(self, deliveries: Sequence[Delivery]) -> None:
        taken: list[tuple[Delivery, DeadLetter]] = []
        for delivery in deliveries:
            if is_expired_request(delivery):
                self.expired_requests += 1
                delivery.ack()
                continue
            taken.append((delivery, self._read(delivery)))
        if taken:
            await self._put(taken)

    def _read(self, delivery: Delivery) -> DeadLetter:
        clock, new_id = self.parts.world.clock, self.parts.world.new_id
        namespace = self.parts.names.namespace
        try:
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

    def _hold(self, one: tuple[Delivery, DeadLetter]) -> None:
        """Try this one again and again, apart from the others."""
        task = asyncio.create_task(
            self._put([one], alone=True), name=f"{self.parts.names.dead_letters} refused"
        )
        self.in_hand += 1
        self._refused[task] = one[0]
        task.add_done_callback(self._held_ended)

    def _held_ended(self, task: asyncio.Task[None]) -> None:
        del self._refused[task]
        self.in_hand -= 1
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error(
                "a dead letter could not be kept; it stays unacked", exc_info=fault, extra={"action": "held"}
            )

    async def _put(self, taken: Sequence[tuple[Delivery, DeadLetter]], *, alone: bool = False) -> None:
        """Store these, then ack; what the store refuses is halved until the culprit stands alone, and stays in hand."""
        alarms, namespace = self.parts.alarms, self.parts.names.namespace
        refused = f"{namespace} keeper"
        for wait in held_backoff():
            try:
                await self.parts.store.keep([letter for _, letter in taken])
            except (StoreUnavailable, StoreRefused) as error:
                if isinstance(error, StoreRefused) and len(taken) > 1:
                    middle = len(taken) // 2
                    await self._put(taken[:middle])
                    await self._put(taken[middle:])
                    return
                if isinstance(error, StoreRefused) and not alone:
                    self._hold(taken[0])
                    return
                alarms.emit(
                    Alarm(
                        code=RETRY_STORE_UNAVAILABLE,
                        title=f"dead letters cannot be stored; they wait in {self.parts.names.dead_letters}",
                        # A store that is away is one condition, whoever meets it; one that refuses is the keeper's own.
                        about=refused if isinstance(error, StoreRefused) else namespace,
                        fields={"store": self.parts.store.display, "error": str(error)},
                    )
                )
                log.warning(
                    "dead letters cannot be stored, again in %g s: %s", wait, error, extra={"action": "held"}
                )
                await self.parts.world.clock.sleep(wait)
                taken = [one for one in taken if not one[0].stale]
                if not taken:
                    return
            else:
                break
        alarms.resolved(RETRY_STORE_UNAVAILABLE, namespace)
        if alone or not self._refused:
            alarms.resolved(RETRY_STORE_UNAVAILABLE, refused)
        for delivery, letter in taken:
            if self.parts.world.reached is not None:
                await self.parts.reach(handover.KEEPER_STORED, letter.message_id)
            delivery.ack()
            self._replays.kept(letter)
