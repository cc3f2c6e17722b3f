"""Noting: a transport and a store that write down what passes them, at the edge between leveret and what is outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, cast

from leveret.core import headers as h
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import PublishRefused, Unroutable
from leveret.core.message import Outgoing, unwrap
from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter, RetryEntry
from leveret.ports import Delivery, Grant, Lease, Store, Subscription, Transport
from leveret.proof.record import Answer, Confirmed, LeaseTaken, Record, Sent, Settled, Taken
from leveret.proof.shop import subject_of

Subject = Callable[[bytes, Properties], str | None]

#: The term under which the running task has taken what is due. What it publishes afterwards, it publishes in that term.
_term: ContextVar[int | None] = ContextVar("term", default=None)
#: Whether the running task has claimed dead letters. What it publishes afterwards are these.
_replays: ContextVar[bool] = ContextVar("replays", default=False)


def noted_transport(
    transport: Transport, record: Record, subject: Subject = lambda body, _: subject_of(body)
) -> Transport:
    """The same transport, but for the record, which says what it hands over, settles, sends and hears of it.

    Args:
        subject: what the record calls a message, by its original body and its properties; None: it is not followed.
    """
    return cast("Transport", _NotedTransport(transport, record, subject))


def noted_store(store: Store, record: Record) -> Store:
    """The same store, but for the record, which says when this process is told that it holds the retry lease."""
    return cast("Store", _NotedStore(store, record))


class _NotedTransport:
    def __init__(self, transport: Transport, record: Record, subject: Subject) -> None:
        self._transport: Final = transport
        self._record: Final = record
        self._subject: Final = subject
        self._numbers: Final = count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def consume(
        self, queue: str, on_delivery: Callable[[Delivery], object], *, prefetch: int, exclusive: bool = False
    ) -> Subscription:
        def noted(delivery: Delivery) -> object:
            return on_delivery(self._taken(delivery))

        return await self._transport.consume(queue, noted, prefetch=prefetch, exclusive=exclusive)

    async def get(self, queue: str) -> Delivery | None:
        delivery = await self._transport.get(queue)
        return None if delivery is None else self._taken(delivery)

    def _taken(self, delivery: Delivery) -> Delivery:
        record, name = self._record, f"d{next(self._numbers)}"
        record.write(
            Taken(
                at=record.now(), by=record.by, delivery=name, queue=delivery.queue,
                subject=self._subject_of(delivery), redelivered=delivery.redelivered,
            )
        )  # fmt: skip
        return _NotedDelivery(delivery, name, record)

    def _subject_of(self, message: Delivery | Outgoing) -> str | None:
        body, properties = message.body, message.properties
        # Few are wrapped, and reading all headers of each would take longer than all else here.
        if properties.header(h.WRAPPED) is not None:
            body = unwrap(body, properties)[0]
        return self._subject(body, properties)

    def send(self, message: Outgoing) -> asyncio.Future[None]:
        if not message.mandatory:
            return self._transport.send(message)
        record, name = self._record, f"p{next(self._numbers)}"
        record.write(
            Sent(
                at=record.now(), by=record.by, publish=name, exchange=message.exchange, routing_key=message.routing_key,
                subject=self._subject_of(message), term=_term.get(), replay=_replays.get(),
            )
        )  # fmt: skip

        def answered(answer: asyncio.Future[None]) -> None:
            record.write(Confirmed(at=record.now(), by=record.by, publish=name, answer=_told(answer)))

        sent = self._transport.send(message)
        sent.add_done_callback(answered)
        return sent


class _NotedDelivery:
    __slots__ = (
        "_delivery", "_name", "_record", "body", "exchange", "properties", "queue", "redelivered", "routing_key", "tag",
    )  # fmt: skip

    def __init__(self, delivery: Delivery, name: str, record: Record) -> None:
        self._delivery: Final = delivery
        self._name: Final = name
        self._record: Final = record
        self.queue: Final = delivery.queue
        self.exchange: Final = delivery.exchange
        self.routing_key: Final = delivery.routing_key
        self.body: Final = delivery.body
        self.properties: Final = delivery.properties
        self.tag: Final = delivery.tag
        self.redelivered: Final = delivery.redelivered

    @property
    def stale(self) -> bool:
        return self._delivery.stale

    def ack(self) -> bool:
        settled = self._delivery.ack()
        if settled:
            self._record.write(
                Settled(at=self._record.now(), by=self._record.by, delivery=self._name, how="ack")
            )
        return settled

    def requeue(self) -> bool:
        settled = self._delivery.requeue()
        if settled:
            self._record.write(
                Settled(at=self._record.now(), by=self._record.by, delivery=self._name, how="requeue")
            )
        return settled


def _told(answer: asyncio.Future[None]) -> Answer:
    """What the transport has told of a publish."""
    if answer.cancelled():
        # Whoever forgot it does not know.
        return "unknown"
    match answer.exception():
        case None:
            return "accepted"
        case Unroutable():
            return "unroutable"
        case PublishRefused():
            return "refused"
        case _:
            return "unknown"


class _NotedStore:
    def __init__(self, store: Store, record: Record) -> None:
        self._store: Final = store
        self._record: Final = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def lease(self, name: str) -> Lease:
        lease = self._store.lease(name)
        return cast("Lease", _NotedLease(lease, name, self._record)) if name.endswith("/retry") else lease

    async def take(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        grant: Grant | None = None,
        held: bool = False,
    ) -> list[RetryEntry]:
        entries = await self._store.take(namespace, rows, grant=grant, held=held)
        _term.set(None if grant is None else grant.term)
        return entries

    async def claim(
        self, wanted: Filter, *, replay_id: str, limit: int, grant: Grant | None = None
    ) -> list[DeadLetter]:
        letters = await self._store.claim(wanted, replay_id=replay_id, limit=limit, grant=grant)
        _replays.set(True)
        return letters


class _NotedLease:
    def __init__(self, lease: Lease, name: str, record: Record) -> None:
        self._lease: Final = lease
        self._name: Final = name
        self._record: Final = record
        self._term = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    async def grant(self, holder_id: str) -> Grant | None:
        grant = await self._lease.grant(holder_id)
        if grant is not None and grant.term != self._term:
            self._term = grant.term
            self._record.write(
                LeaseTaken(at=self._record.now(), by=self._record.by, lease=self._name, term=grant.term)
            )
        return grant
