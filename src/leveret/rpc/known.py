"""The requests that this process knows, so that one that is delivered again is not run twice (P8)."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from leveret.pipeline.recall import REMEMBERED, REMEMBERED_SECONDS, Mark, mark
from leveret.ports import Clock, Delivery

if TYPE_CHECKING:
    from leveret.rpc.server import Request


class Known:
    """Requests in hand, and those that have ended lately, by what makes two deliveries one message.

    A request without a tag cannot be told from its twin, and is not known.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock: Final = clock
        self._running: dict[Mark, Request] = {}
        #: When each ended. None: it was acked, so that only the ack may have to be sent again.
        self._ended: OrderedDict[Mark, tuple[float, Request | None]] = OrderedDict()

    def begin(self, request: Request) -> None:
        """It is in hand."""
        if request.mark is not None:
            self._running[request.mark] = request

    def end(self, request: Request, *, acked: bool) -> None:
        """It is out of hand. What came of it is kept; one that was not run leaves nothing, unless it was acked."""
        known = request.mark
        if known is None:
            return
        if self._running.get(known) is request:
            del self._running[known]
        if acked or request.outcome is not None:
            self._remember(known, None if acked else request)

    def takes_over(self, delivery: Delivery) -> bool:
        """Whether a flagged delivery is a request in hand whose channel went; it takes the old delivery's place."""
        request = self._running.get(mark(delivery))
        if request is None or not request.stale:
            return False
        request.delivery = delivery
        return True

    def was_acked(self, delivery: Delivery) -> bool:
        """Whether a flagged delivery is a request that was acked already: only the ack was lost."""
        return self._found(delivery) == (True, None)

    def to_conclude(self, delivery: Delivery) -> Request | None:
        """The request of a flagged delivery that ended while its channel was gone; it is out of memory now."""
        request = self._found(delivery)[1]
        if request is not None:
            del self._ended[mark(delivery)]
            request.delivery = delivery
        return request

    def _found(self, delivery: Delivery) -> tuple[bool, Request | None]:
        when, request = self._ended.get(mark(delivery), (None, None))
        if when is None or self._clock.monotonic() - when > REMEMBERED_SECONDS:
            return False, None
        return True, request

    def _remember(self, known: Mark, request: Request | None) -> None:
        now = self._clock.monotonic()
        self._ended[known] = (now, request)
        self._ended.move_to_end(known)
        while len(self._ended) > REMEMBERED or now - next(iter(self._ended.values()))[0] > REMEMBERED_SECONDS:
            self._ended.popitem(last=False)
