"""A queue of the memory broker: what lies in it, in which order it is handed out, and what its arguments do to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from leveret.core.message import Outgoing

if TYPE_CHECKING:
    from leveret.transports.memory_connection import Consumer

#: Why a broker gives a message up, in RabbitMQ's words.
Reason = Literal["expired", "maxlen", "delivery_limit"]


class Stored:
    """A message in one queue. Routed to several queues, it lies in each by itself."""

    __slots__ = ("expires_at", "message", "position", "redelivered", "returns", "tag")

    def __init__(self, message: Outgoing, tag: str | None, expires_at: float | None, position: int) -> None:
        self.message = message
        #: Kept apart from the properties: writing it into a table and out again would cost more than all the rest.
        self.tag = tag
        #: By the clock's monotonic time.
        self.expires_at = expires_at
        #: Where it stands among all that this queue ever held; a message that comes back comes back to its place.
        self.position = position
        self.redelivered = False
        self.returns = 0


class Queue:
    """A queue. Every method is called with the broker's lock held.

    Args:
        name: its name.
        arguments: as it was declared with.
        durable: whether it outlives a restart.
        auto_delete: as declared; only looked at when somebody declares it otherwise.
        exclusive: likewise.
        monotonic: tells the time.
        dead_letter: takes what is given up.
        expires_next: told when the first message in line expires.
        emptied: told when nothing is left, neither ready nor unsettled.
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        durable: bool,
        auto_delete: bool,
        exclusive: bool,
        monotonic: Callable[[], float],
        dead_letter: Callable[[Queue, Stored, Reason], None],
        expires_next: Callable[[float], None],
        emptied: Callable[[], None],
    ) -> None:
        self.name: Final = name
        self.arguments: Final = dict(arguments)
        self.durable: Final = durable
        self.auto_delete: Final = auto_delete
        self.exclusive: Final = exclusive
        self.quorum: Final = arguments.get("x-queue-type") == "quorum"
        self.dead_letter_exchange: Final[str | None] = arguments.get("x-dead-letter-exchange")
        self.dead_letter_key: Final[str | None] = arguments.get("x-dead-letter-routing-key")
        self.ready: deque[Stored] = deque()
        self.unsettled = 0
        self.consumers: list[Consumer] = []
        self.emptied: Final = emptied
        self._ttl: Final = _milliseconds(arguments.get("x-message-ttl"))
        self._most: Final[int | None] = arguments.get("x-max-length")
        self._rejects: Final = arguments.get("x-overflow") in {"reject-publish", "reject-publish-dlx"}
        self._delivery_limit: Final[int | None] = arguments.get("x-delivery-limit")
        self._single_active: Final = arguments.get("x-single-active-consumer") is True
        self._monotonic: Final = monotonic
        self._dead_letter: Final = dead_letter
        self._expires_next: Final = expires_next
        self._position = 0
        self._turn = 0

    def put(self, message: Outgoing, tag: str | None, ttl: float | None, *, by_force: bool = False) -> bool:
        """Append a message that may live for *ttl* seconds. False: the queue is full and refuses it.

        *by_force*: what the broker itself dead-letters is never refused.
        """
        if self._most is not None and self._rejects and len(self.ready) >= self._most and not by_force:
            return False
        if self._ttl is not None and (ttl is None or self._ttl < ttl):
            ttl = self._ttl
        self._position += 1
        expires_at = None if ttl is None else self._monotonic() + ttl
        self.ready.append(Stored(message, tag, expires_at, self._position))
        # What a consumer has room for is handed over before its time to live counts: RabbitMQ's TTL of 0 works so.
        self.hand_out(fresh=ttl is not None)
        if self._most is not None and not self._rejects:
            while len(self.ready) > self._most:
                self._dead_letter(self, self.ready.popleft(), "maxlen")
        return True

    def hand_out(self, *, fresh: bool = False) -> None:
        """Give what is ready to consumers that have room, in turn; give up what expired before its turn came."""
        ready = self.ready
        while ready:
            first = ready[0]
            if self._expired(first) and not (fresh and len(ready) == 1):
                self._dead_letter(self, ready.popleft(), "expired")
                continue
            if not self.consumers or (consumer := self._next_consumer()) is None:
                if first.expires_at is not None:
                    self._expires_next(first.expires_at)
                return
            consumer.take(ready.popleft())
        if not self.unsettled:
            self.emptied()

    def take_back(self, stored: Stored, *, redelivered: bool = True) -> None:
        """Put a message that was handed over back to its place."""
        if redelivered:
            stored.redelivered = True
            stored.returns += 1
            limit = self._delivery_limit
            if self.quorum and limit is not None and 0 <= limit < stored.returns:
                self._dead_letter(self, stored, "delivery_limit")
                return
        ready, position = self.ready, stored.position
        if not ready or position < ready[0].position:
            ready.appendleft(stored)
        elif position > ready[-1].position:
            ready.append(stored)
        else:
            ready.insert(next(i for i, other in enumerate(ready) if other.position > position), stored)

    def restart(self) -> None:
        """Lose what a restart of the broker loses: a quorum queue nothing, others what is not persistent."""
        if not self.quorum:
            kept = [stored for stored in self.ready if stored.message.properties.delivery_mode == 2]
            self.ready.clear()
            self.ready.extend(kept)

    def exclusively_consumed(self) -> bool:
        """Whether somebody consumes it as the only one. On a quorum queue nobody can, as in RabbitMQ."""
        return not self.quorum and any(consumer.exclusive for consumer in self.consumers)

    def _expired(self, stored: Stored) -> bool:
        return stored.expires_at is not None and stored.expires_at <= self._monotonic()

    def _next_consumer(self) -> Consumer | None:
        consumers = self.consumers
        if self._single_active or len(consumers) == 1:
            return consumers[0] if consumers[0].room > 0 else None
        for step in range(len(consumers)):
            place = (self._turn + step) % len(consumers)
            if consumers[place].room > 0:
                self._turn = place + 1
                return consumers[place]
        return None


def _milliseconds(value: Any) -> float | None:
    return None if value is None else int(value) / 1000
