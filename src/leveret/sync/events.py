"""Events of one queue, given out to be handled wherever; then each is acked, or becomes a dead letter (T7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from leveret.core import envelope
from leveret.core.dead_letter import Ending
from leveret.core.envelope import Cause
from leveret.core.message import Outgoing, retry_id
from leveret.core.outcome import ONLY_ACK, Bury
from leveret.core.payload import Undecodable, check_content, decoder
from leveret.core.policy import describe
from leveret.pipeline.consumer import FAULT_PAUSE
from leveret.pipeline.delivery import message_in, traceback_tail
from leveret.pipeline.parts import Parts
from leveret.pipeline.publishing import Publisher
from leveret.pipeline.recall import InHand, Recall
from leveret.ports import Delivery, Subscription

log = logging.getLogger("leveret.sync")

_JSON_OBJECT: Final = decoder(dict)


class Event:
    """An event in this process's hands. What it says may be read in any thread; its end is told to its server.

    Attributes:
        payload: decoded; an empty body is an empty object.
        hand: the message as it came, and what is to be done about it.
    """

    def __init__(self, hand: InHand) -> None:
        self.hand: Final = hand
        self.payload: dict[str, Any] = {}

    @property
    def routing_key(self) -> str:
        """The key it was published with."""
        return self.hand.message.routing_key

    @property
    def stale(self) -> bool:
        """Whether the broker has it back, and not given it to us again."""
        return self.hand.stale

    def expired(self) -> bool:
        """Never: an event waits for ever."""
        return False


class EventServer:
    """Takes the events of one queue and gives them out. Each is settled once, on the loop of the transport.

    `finish` where a handler has ended, `skip` where the broker has it back, and `give_back` where it is not started for
    any other reason. A flagged delivery whose handler has ended here before is not run twice (P8).

    Args:
        parts: of the transport; `base` names the dead-letter queue.
        publisher: publishes dead letters.
        queue: whose events; it exists.
        prefetch: so many are given out at a time, unsettled.
        on_event: told of each, a plain function.
    """

    def __init__(
        self,
        parts: Parts,
        publisher: Publisher,
        queue: str,
        *,
        prefetch: int,
        on_event: Callable[[Event], object],
    ) -> None:
        self.queue: Final = queue
        self._parts: Final = parts
        self._publisher: Final = publisher
        self._prefetch: Final = prefetch
        self._on_event: Final = on_event
        #: The name in dead letters: the queue without its namespace.
        self._name: Final = queue.removeprefix(f"{parts.names.namespace}.")
        self._recall: Final = Recall(parts.world.clock)
        self._subscription: Subscription | None = None
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""
        return self._subscription is not None and self._subscription.active

    async def start(self) -> None:
        """Take events.

        Raises:
            NotFound, AccessRefused: as the transport says.
        """
        self._subscription = await self._parts.transport.consume(
            self.queue, self._take, prefetch=self._prefetch
        )

    async def stop(self) -> None:
        """Take no more. What was given out can still be settled."""
        self._stopping = True
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.cancel()

    def _take(self, delivery: Delivery) -> None:
        if self._stopping:
            delivery.requeue()
            return
        if delivery.redelivered:
            if self._recall.running(delivery) is not None:
                return
            known = self._recall.ended(delivery)
            if known is not None:
                self._spawn(self._conclude(known))
                return
            log.warning(
                "%s: an event was handed over before and not settled; it may have been handled in part: id %s",
                self.queue, delivery.properties.message_id, extra={"action": "redelivered"},
            )  # fmt: skip
        message = message_in(delivery, self.queue)
        event = Event(self._recall.begin(delivery, message))
        try:
            if not message.properties.is_plain_json:
                check_content(message.properties.content_type, message.properties.content_encoding)
            event.payload = _JSON_OBJECT(message.body or b"{}")
        except Undecodable as error:
            cause = Cause(
                reason=str(error), worker=self._name, at=self._parts.world.clock.now(), error="Undecodable"
            )
            event.hand.decision = Bury("undecodable", cause, message.attempt - 1)
            self._spawn(self._conclude(event.hand))
        else:
            self._on_event(event)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work, name=self.queue)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, event: Event, result: object) -> None:
        """A handler has ended: acked, or a dead letter where *result* is the exception that it raised."""
        hand = event.hand
        if isinstance(result, BaseException):
            cause = Cause(
                reason=describe(result),
                worker=self._name,
                at=self._parts.world.clock.now(),
                error=type(result).__name__,
                traceback=traceback_tail(result),
            )
            ending: Ending = "hard failure"
            hand.decision = Bury(ending, cause, hand.message.attempt)
        else:
            hand.decision = ONLY_ACK
        await self._conclude(hand)

    def skip(self, event: Event) -> None:
        """It was not started as the broker has it back; where it was handed over again, it is given out once more."""
        if event.stale:
            self._recall.end(event.hand, acked=False)
        else:
            self._on_event(event)

    def give_back(self, event: Event) -> None:
        """It was not started: back to its queue."""
        event.hand.delivery.requeue()
        self._recall.end(event.hand, acked=False)

    async def _conclude(self, hand: InHand) -> None:
        """Dead letter, confirmed, where it is one; then ack."""
        acked = False
        try:
            decision = hand.decision
            if isinstance(decision, Bury) and not hand.confirmed:
                hand.confirmed = await self._bury(hand, decision)
            acked = (hand.confirmed or not isinstance(decision, Bury)) and hand.delivery.ack()
        except Exception:
            log.exception("%s: an event could not be settled; it goes back to its queue", self.queue)
            hand.decision = None
            await self._parts.world.clock.sleep(FAULT_PAUSE)
            hand.delivery.requeue()
        finally:
            self._recall.end(hand, acked=acked)

    async def _bury(self, hand: InHand, decision: Bury) -> bool:
        message = hand.message
        hand.retry_id = hand.retry_id or retry_id(message) or self._parts.world.new_id()
        hand.letter_id = hand.letter_id or self._parts.world.new_id()
        body, properties = envelope.dead_letter(
            message,
            decision.cause,
            decision.ending,
            letter_id=hand.letter_id,
            retry_id=hand.retry_id,
            attempts=decision.attempts,
            where=self._parts.where,
        )
        if not await self._publisher.hand_over(
            Outgoing("", self._parts.names.dead_letters, body, properties),
            stale=lambda: hand.stale,
            message_id=message.properties.message_id,
        ):
            return False
        log.warning(
            "dead  %s  %s  %s", self.queue, message.properties.message_id, decision.cause.reason,
            extra={"action": "dead", "queue": self.queue},
        )  # fmt: skip
        return True
