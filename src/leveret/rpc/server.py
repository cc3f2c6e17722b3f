"""Answering: requests of one queue, given out to be handled wherever, and their replies (T6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from leveret.core import envelope, handover
from leveret.core import headers as h
from leveret.core.dead_letter import Ending
from leveret.core.envelope import Cause
from leveret.core.errors import BadPayload, PublishRefused, PublishTimeout, Unroutable
from leveret.core.message import Outgoing, Received, count_header, text_header
from leveret.core.payload import Decode, Undecodable, check_content, decoder
from leveret.core.policy import describe
from leveret.pipeline.consumer import FAULT_PAUSE
from leveret.pipeline.deadlines import Deadlines
from leveret.pipeline.delivery import message_in, traceback_tail
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import FINAL_CODES, Publisher, held_backoff
from leveret.pipeline.recall import mark
from leveret.ports import Clock, Delivery, Subscription
from leveret.rpc import wire
from leveret.rpc.known import Known

_JSON_OBJECT: Final = decoder(dict)


class Outcome(NamedTuple):
    """What a request ended in, and what is to be done about it."""

    #: For whoever waits for it.
    reply: Outgoing | None = None
    #: Why it failed; it becomes a dead letter.
    cause: Cause | None = None
    ending: Ending = "hard failure"


class Request:
    """A request in this process's hands. What it says may be read in any thread; its end is told to its server.

    Attributes:
        payload: decoded; an empty body is an empty object.
        received: the message as it came.
        correlation_id: the caller's name for it.
        reply_to: where the reply goes; None: nobody waits for one.
        redelivered: it may have been run before, here or elsewhere.
    """

    def __init__(self, delivery: Delivery, message: Received, clock: Clock) -> None:
        found = message.properties.headers
        #: A replay is sent by somebody who looks at dead letters: its caller has long given up.
        self.replayed: Final = message.replays > 0
        self.payload: Any = None
        self.received: Final = message
        self.correlation_id: Final = message.properties.correlation_id
        self.reply_to: Final = None if self.replayed else message.properties.reply_to or None
        self.redelivered: Final = message.redelivered
        #: What makes two deliveries of it one message; None where they cannot be told apart from others.
        self.mark: Final = None if delivery.tag is None else mark(delivery)
        #: The newest delivery of it: after a reconnect the redelivery takes the old one's place.
        self.delivery = delivery
        self.outcome: Outcome | None = None
        #: Whether its dead letter is confirmed, so that a repeat does not write another one.
        self.buried = False
        #: Minted once, so that a repeated publish repeats it.
        self.letter_id = ""
        self.accepts_errors: Final = text_header(found, h.ACCEPTS) == h.ACCEPTS_ERROR
        patience = None if self.replayed else count_header(found, h.TIMEOUT_MS)
        #: When its caller gives up at the latest, by the monotonic clock; None: that is not known.
        self.deadline: Final = None if patience is None else clock.monotonic() + patience / 1000
        self._clock: Final = clock

    @property
    def stale(self) -> bool:
        """Whether the broker has it back, and not given it to us again."""
        return self.delivery.stale

    @property
    def headers(self) -> Mapping[str, Any]:
        """Its headers, without leveret's bookkeeping."""
        return h.for_handlers(self.received.properties.headers)

    def expired(self) -> bool:
        """Whether its caller has given up. To be asked right before a handler starts: what is so is not started."""
        return self.deadline is not None and self._clock.monotonic() >= self.deadline

    def remaining(self) -> float | None:
        """Seconds until its caller gives up, at least 0; None where that is not known."""
        return None if self.deadline is None else max(0.0, self.deadline - self._clock.monotonic())


class RpcServer:
    """Takes the requests of one queue, gives them out, and replies. Each is settled once, by one of three.

    `finish` where a handler has ended, `skip` where it is not started as its caller has given up or the broker has it
    back, and `give_back` where it is not started for any other reason. All of it on the loop of the transport.

    Args:
        parts: of the app; `base` names the dead-letter queue.
        publisher: publishes dead letters.
        queue: whose requests; it exists.
        prefetch: so many are given out at a time, unsettled.
        on_request: told of each, a plain function.
        name: who answers, in logs and dead letters.
        decode: what becomes of a body; a body that it refuses is a dead letter, and not given out.
        raw: take bodies of any content type.

    Attributes:
        answered, failed, lapsed: requests that were replied to, failed, or were not started as their callers had given
            up.

    Example:
        ```
        server = RpcServer(
            parts, publisher, "shop.price.req", prefetch=8, on_request=inbox.put_nowait, name="price"
        )
        await server.start()
        request = await inbox.get()
        if request.stale or request.expired():
            server.skip(request)
        else:
            await server.finish(request, {"cents": 500})  # or the exception that the handler raised
        ```
    """

    def __init__(
        self,
        parts: Parts,
        publisher: Publisher,
        queue: str,
        *,
        prefetch: int,
        on_request: Callable[[Request], object],
        name: str,
        decode: Decode = _JSON_OBJECT,
        raw: bool = False,
    ) -> None:
        self.queue: Final = queue
        self.name: Final = name
        self.answered = self.failed = self.lapsed = 0
        #: Requests whose publishes fail and are repeated.
        self.held = 0
        self._parts: Final = parts
        self._clock: Final = parts.world.clock
        self._publisher: Final = publisher
        self._prefetch: Final = prefetch
        self._on_request: Final = on_request
        self._decode: Final = decode
        self._raw: Final = raw
        self._by: Final = "/".join(parts.holder.split("/")[:2])
        self._deadlines: Final = Deadlines(self._clock)
        self._subscription: Subscription | None = None
        self._stopping = False
        #: What came after `pause`; it goes back once the broker hands out no more.
        self._late: list[Delivery] = []
        self._in_hand: dict[Request, None] = {}
        self._known: Final = Known(self._clock)
        #: What goes on by itself: refusals of bodies, and outcomes that are done again.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def in_hand(self) -> int:
        """Requests given out, or being settled."""
        return len(self._in_hand)

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""
        return self._subscription is not None and self._subscription.active

    async def start(self) -> None:
        """Take requests.

        Raises:
            NotFound, AccessRefused: as the transport says.
        """
        self._stopping = False
        self._subscription = await self._parts.transport.consume(
            self.queue, self._take, prefetch=self._prefetch
        )

    def pause(self) -> None:
        """Give out no more, and let nobody else have the queue yet; `stop` does that."""
        self._stopping = True

    async def stop(self) -> None:
        """Take no more. What was given out can still be settled."""
        self._stopping = True
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.cancel()
        for delivery in self._late:
            delivery.requeue()
        self._late.clear()

    async def settled(self) -> None:
        """Return when what goes on by itself has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drop(self) -> None:
        """End what goes on by itself, unacked. It goes back, with all that was given out, before `stop` lets go."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for request in list(self._in_hand):
            self.give_back(request)

    # ── What comes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, delivery: Delivery) -> None:
        if self._stopping:
            if self._subscription is None:
                delivery.requeue()
            else:
                self._late.append(delivery)
            return
        if delivery.redelivered and delivery.tag is not None and self._recognised(delivery):
            return
        message = message_in(delivery, self.queue)
        request = Request(delivery, message, self._clock)
        self._begin(request)
        try:
            if not self._raw and not message.properties.is_plain_json:
                check_content(message.properties.content_type, message.properties.content_encoding)
            request.payload = self._decode(message.body or b"{}")
        except Undecodable as error:
            cause = Cause(reason=str(error), worker=self.name, at=self._clock.now(), error="Undecodable")
            request.outcome = self._failed(request, cause, "undecodable")
            self._spawn(request)
        else:
            self._on_request(request)

    def _recognised(self, delivery: Delivery) -> bool:
        """Whether a flagged delivery is a request that this process knows: it is not run twice."""
        if self._known.takes_over(delivery):
            return True
        if self._known.was_acked(delivery):
            delivery.ack()
            return True
        request = self._known.to_conclude(delivery)
        if request is None:
            return False
        self._begin(request)
        self._spawn(request)
        return True

    def _begin(self, request: Request) -> None:
        self._in_hand[request] = None
        self._known.begin(request)

    def _end(self, request: Request, *, acked: bool) -> None:
        self._in_hand.pop(request, None)
        self._known.end(request, acked=acked)

    def _spawn(self, request: Request) -> None:
        task = asyncio.create_task(self._conclude_alone(request), name=self.queue)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── How it ends ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def finish(self, request: Request, result: object) -> None:
        """A handler has ended. Replies, confirmed, then acks; a failed request becomes a dead letter first.

        It returns once the request is settled, or its channel is gone: then the broker delivers it again, and where
        that is to us, what came of it is done without another run.

        Args:
            request: that was handled.
            result: the exception that was raised, or what was returned: a dict, a dataclass, a pydantic model, or None
                for an empty object. Anything else is a failure.
        """
        try:
            request.outcome = self._outcome(request, result)
            await self._conclude(request)
        except Exception:  # noqa: BLE001 - a fault of leveret's own, logged with all that is known
            await self._give_up(request)

    def skip(self, request: Request) -> None:
        """It was not started: its caller has given up, or the broker has it back.

        Where the broker has handed it over again meanwhile, and its caller still waits, it is given out once more.
        """
        if request.expired():
            self.lapsed += 1
            log.info(
                "%s: a request was not started, its caller has given up: correlation id %s",
                self.name, request.correlation_id, extra={"action": "lapsed"},
            )  # fmt: skip
            self._end(request, acked=request.delivery.ack())
        elif request.stale:
            self._end(request, acked=False)
        else:
            self._on_request(request)

    def give_back(self, request: Request) -> None:
        """It was not started: back to its queue."""
        request.delivery.requeue()
        self._end(request, acked=False)

    def _outcome(self, request: Request, result: object) -> Outcome:
        error: BaseException
        if isinstance(result, BaseException):
            error = result
        else:
            try:
                body = wire.written(result, f'"{self.name}" answers with')
            except BadPayload as bad:
                error = bad
            else:
                if request.reply_to is None:
                    return Outcome()
                return Outcome(
                    wire.reply(request.reply_to, body, correlation_id=request.correlation_id, by=self._by)
                )
        cause = Cause(
            reason=describe(error),
            worker=self.name,
            at=self._clock.now(),
            error=type(error).__name__,
            traceback=traceback_tail(error),
        )
        return self._failed(request, cause, "hard failure")

    def _failed(self, request: Request, cause: Cause, ending: Ending) -> Outcome:
        if request.reply_to is None or not request.accepts_errors:
            return Outcome(None, cause, ending)
        told = wire.error_reply(request.reply_to, cause, correlation_id=request.correlation_id, by=self._by)
        return Outcome(told, cause, ending)

    async def _conclude(self, request: Request) -> None:
        """Dead letter, reply, ack; each confirmed before the next."""
        acked = False
        try:
            outcome = request.outcome or Outcome()
            if outcome.cause is not None and not request.buried:
                request.buried = not request.stale and await self._bury(
                    request, outcome.cause, outcome.ending
                )
            if outcome.reply is not None and (outcome.cause is None or request.buried):
                await self._reply(request, outcome.reply)
            acked = (outcome.cause is None or request.buried) and request.delivery.ack()
        finally:
            self._end(request, acked=acked)
        if not acked:
            log.info(
                "%s: the channel of a request went while it was in hand; the broker delivers it again: "
                "correlation id %s",
                self.name, request.correlation_id, extra={"action": "stale"},
            )  # fmt: skip
        elif outcome.cause is None:
            self.answered += 1
        else:
            self.failed += 1
            log.warning(
                "dead  %s  correlation id %s  %s", self.name, request.correlation_id, outcome.cause.reason,
                extra={"action": "dead", "worker": self.name},
            )  # fmt: skip

    async def _conclude_alone(self, request: Request) -> None:
        try:
            await self._conclude(request)
        except Exception:  # noqa: BLE001 - as in `finish`
            await self._give_up(request)

    async def _give_up(self, request: Request) -> None:
        """It could not be settled; it goes back, after a pause, so that it cannot spin."""
        log.exception("%s: a request could not be settled; it goes back to its queue", self.name)
        request.outcome = None
        await self._clock.sleep(FAULT_PAUSE)
        self.give_back(request)

    async def _bury(self, request: Request, cause: Cause, ending: Ending) -> bool:
        request.letter_id = request.letter_id or self._parts.world.new_id()
        message = request.received
        body, properties = envelope.dead_letter(
            message,
            cause,
            ending,
            letter_id=request.letter_id,
            retry_id=message.retry_id or "",
            attempts=0 if ending == "undecodable" else 1,
            where=self._parts.where,
            rpc=True,
        )
        if not await self._publisher.hand_over(
            Outgoing("", self._parts.names.dead_letters, body, properties),
            stale=lambda: request.stale,
            message_id=message.properties.message_id,
            holding=self._holding,
        ):
            return False
        await self._parts.reach(handover.DEAD_LETTER_CONFIRMED, message.properties.message_id)
        return True

    async def _reply(self, request: Request, reply: Outgoing) -> None:
        """Have the broker confirm the reply, for as long as anybody waits for it."""
        transport = self._parts.transport
        held = False
        try:
            for wait in held_backoff():
                if request.stale or request.expired():
                    return
                try:
                    if not transport.sendable and not await self._sendable(request):
                        return
                    await transport.send(reply)
                except Unroutable:
                    log.debug("%s: nobody waits for a reply any more", self.name, extra={"action": "reply"})
                    return
                except (PublishRefused, PublishTimeout) as error:
                    if isinstance(error, PublishRefused) and error.code in FINAL_CODES:
                        log.warning(
                            "%s: a reply was refused, its caller learns nothing: %s", self.name, error,
                            extra={"action": "reply"},
                        )  # fmt: skip
                        return
                    log.info(
                        "%s: a reply failed, tried again in %g s: %s", self.name, wait, error,
                        extra={"action": "held"},
                    )  # fmt: skip
                else:
                    return
                if not held:
                    held = True
                    self._holding(True)
                await self._clock.sleep(wait)
        finally:
            if held:
                self._holding(False)

    async def _sendable(self, request: Request) -> bool:
        """Wait until a reply can go out; False where nobody waits for it by then."""
        ready = asyncio.ensure_future(self._parts.transport.ready())
        left = request.remaining()
        try:
            if left is None:
                await ready
            elif not await self._deadlines.met(ready, left):
                return False
        finally:
            ready.cancel()
        return not request.stale

    def _holding(self, held: bool) -> None:
        self.held += 1 if held else -1
