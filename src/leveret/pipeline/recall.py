"""What this process remembers of its deliveries, so that a redelivery of one that it knows is not run twice (P8)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from leveret.core.message import Received
from leveret.core.outcome import ONLY_ACK, Decision
from leveret.core.properties import Properties
from leveret.ports import Clock, Delivery

#: So many outcomes are remembered, for so many seconds. The ack of an older one has reached the broker, or the
#: connection that carried it is long gone and so was its redelivery.
REMEMBERED = 10_000
REMEMBERED_SECONDS = 600.0


#: What a quorum queue writes into a message at each return.
_COUNTS = ("x-delivery-count", "x-acquired-count")
_DELIVERY_COUNT, _ACQUIRED_COUNT = (name.encode() for name in _COUNTS)


class Mark(NamedTuple):
    """What makes two deliveries one message: queue, tag, body and properties, without the queue's own counts."""

    queue: str
    tag: str | None
    body: int
    properties: int


def mark(delivery: Delivery) -> Mark:
    """The mark of a delivery. Hashes stand for the bytes: a tag is unique already, and a flag is needed besides."""
    properties = delivery.properties
    raw = properties.raw
    # A quorum queue counts in a header from the first return on, and sorts the others as it does, so that no two
    # deliveries of a message bear the same bytes.
    if _DELIVERY_COUNT in raw or _ACQUIRED_COUNT in raw:
        properties = properties.edit(drop=_COUNTS)
    return Mark(delivery.queue, delivery.tag, hash(delivery.body), hash(properties.in_order()))


#: Stands for the message of an outcome whose ack was sent: only the ack may have to be sent again.
_FORGOTTEN = Received(queue="", exchange="", routing_key="", body=b"", properties=Properties.build())


@dataclass(slots=True, eq=False)
class InHand:
    """One message in this process's hands, from delivery to ack."""

    mark: Mark
    message: Received
    #: The newest delivery of it: after a reconnect the redelivery takes the old one's place.
    delivery: Delivery
    since: float
    decision: Decision | None = None
    #: What the handler raised, for whoever watches.
    error: BaseException | None = None
    unexpected: bool = False
    #: Whether all that the decision asks for has been confirmed, so that only the ack is missing.
    confirmed: bool = False
    #: Whether a step has failed and is being repeated.
    held: bool = False
    #: Minted once, so that a repeated step repeats them.
    retry_id: str = ""
    letter_id: str = ""
    #: Ids minted for its results by position, and the positions that are confirmed: only the others go again.
    result_ids: dict[int, str] | None = None
    results_out: set[int] | None = None
    #: Counted in the store before its start (ordered queues); to be forgotten once settled.
    counted_as: str | None = None

    @property
    def stale(self) -> bool:
        """Whether the broker has the message back, and not given it to us again."""
        return self.delivery.stale


class Recall:
    """The memory of one worker: what runs now, and what came of it lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[Mark, InHand] = {}
        #: Further ones in hand that look just the same, as messages without tag and id may: each is a copy of its own.
        self._twins: dict[Mark, list[InHand]] = {}
        #: When, and what is still to be done; None where that was all done and acked: only the ack may have to be sent
        #: again, and ten thousand bodies that nobody needs are not kept.
        self._ended: OrderedDict[Mark, tuple[float, InHand | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running) + sum(map(len, self._twins.values()))

    def begin(self, delivery: Delivery, message: Received) -> InHand:
        """Note that this message is in hand."""
        hand = InHand(mark(delivery), message, delivery, self._clock.monotonic())
        self._begin(hand)
        return hand

    def _begin(self, hand: InHand) -> None:
        twin = self._running.get(hand.mark)
        if twin is not None:
            self._twins.setdefault(hand.mark, []).append(twin)
        self._running[hand.mark] = hand

    def running(self, delivery: Delivery) -> InHand | None:
        """The message of a flagged delivery, where it is still in hand; the new delivery takes the old one's place."""
        known = mark(delivery)
        hand = self._running.get(known)
        if hand is not None and not hand.delivery.stale:
            hand = next((twin for twin in self._twins.get(known, ()) if twin.delivery.stale), None)
        if hand is not None:
            hand.delivery = delivery
        return hand

    def ended(self, delivery: Delivery) -> InHand | None:
        """The message of a flagged delivery, where its outcome is remembered; it is in hand again."""
        found = self._ended.pop(mark(delivery), None)
        if found is None or self._clock.monotonic() - found[0] > REMEMBERED_SECONDS:
            return None
        hand = found[1]
        if hand is None:
            hand = InHand(mark(delivery), _FORGOTTEN, delivery, found[0], decision=ONLY_ACK, confirmed=True)
        hand.delivery = delivery
        self._begin(hand)
        return hand

    def end(self, hand: InHand, *, acked: bool) -> None:
        """Note that this message is out of hand. Its outcome is kept, once acked only where its tag makes it unique."""
        twins = self._twins.get(hand.mark)
        if self._running.get(hand.mark) is hand:
            if twins:
                self._running[hand.mark] = twins.pop()
            else:
                del self._running[hand.mark]
        elif twins and hand in twins:
            twins.remove(hand)
        if twins is not None and not twins:
            del self._twins[hand.mark]
        if hand.decision is None or (acked and hand.mark.tag is None):
            return
        now = self._clock.monotonic()
        self._ended[hand.mark] = (now, None if acked else hand)
        self._ended.move_to_end(hand.mark)
        while len(self._ended) > REMEMBERED or (
            self._ended and now - next(iter(self._ended.values()))[0] > REMEMBERED_SECONDS
        ):
            self._ended.popitem(last=False)
