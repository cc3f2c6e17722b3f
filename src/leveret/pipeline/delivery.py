"""The road of one message, as named steps: recall, count, decode, run, settle, obey, ack."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import traceback
from collections.abc import Callable, Iterable
from typing import Any, cast

from msgspec.structs import replace

from leveret.core import envelope, handover, json_form
from leveret.core import headers as h
from leveret.core.alarm import POISON_MESSAGE, RETRIES_EXHAUSTED, Alarm
from leveret.core.dead_letter import Ending
from leveret.core.envelope import Cause
from leveret.core.errors import BadPayload, Failure, PublishRefused, SoftFailure, StoreError, Unroutable
from leveret.core.message import Message, Outgoing, Received, derived_id, received, result_id, retry_id
from leveret.core.outcome import (
    ONLY_ACK,
    RETURNED_NOTHING,
    Bury,
    Done,
    NotDecoded,
    Raised,
    Result,
    Retry,
    Returned,
    WorkerDied,
    is_unexpected,
    settle,
)
from leveret.core.payload import Undecodable, check_content
from leveret.core.policy import RetryAt, RetryPolicy
from leveret.core.properties import Properties, check_short
from leveret.core.run import Outcome, Run
from leveret.pipeline.context import Context
from leveret.pipeline.gate import Gate
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import Publisher, held_backoff
from leveret.pipeline.recall import InHand, Recall
from leveret.pipeline.worker import WorkerSpec
from leveret.ports import Delivery, Random, Threads

#: Frames of a traceback that are kept: the last ones tell, and a RecursionError has a thousand.
FRAMES = 20


class Road:
    """Takes one worker's deliveries from hand to hand."""

    def __init__(
        self,
        spec: WorkerSpec,
        parts: Parts,
        publisher: Publisher,
        gate: Gate,
        *,
        policy: RetryPolicy,
        threads: Threads | None,
        state: Any,
        random: Random | None,
    ) -> None:
        self.spec = spec
        self.queue = parts.names.queue(spec.name)
        self.recall = Recall(parts.world.clock)
        #: Messages whose publishes fail and are kept in hand.
        self.held = 0
        #: Tasks whose handler runs now, and when its timeout strikes, by the monotonic clock; None: never.
        self.inside: dict[asyncio.Task[Any], float | None] = {}
        #: Called when a message was moved to the suspects queue.
        self.suspected: Callable[[], object] = lambda: None
        self._parts = parts
        self._clock = parts.world.clock
        self._publisher = publisher
        self._gate = gate
        self._policy = policy
        self._policy_header = policy.to_header()
        self._threads = threads
        self._state = state
        #: Spreads the delays; None: no jitter.
        self._random = random
        self._told: set[str] = set()
        #: Messages that are being moved to the end of their queue or to the suspects, until their originals are acked.
        self._moving: dict[tuple[str | None, int], asyncio.Future[None]] = {}

    # ── The road ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def travel(self, delivery: Delivery, *, freed: Callable[[], object] = lambda: None) -> None:
        """Take one delivery from here to its ack.

        Args:
            delivery: the message; from the worker's queue or its suspects.
            freed: called once, when its handler no longer runs (or will not): the next one may start.
        """
        message = message_in(delivery, self.queue)
        if self._parts.world.reached is not None:
            await self._parts.reach(handover.DELIVERED, message.properties.message_id)
        died: WorkerDied | None = None
        counted_as: str | None = None
        if delivery.redelivered:
            if self.recall.running(delivery) is not None:
                freed()
                return
            known = self.recall.ended(delivery)
            if known is not None:
                freed()
                try:
                    await self._conclude(known)
                except BaseException as error:
                    self._abandon(known, delivery, error)
                    raise
                return
            if self.spec.ordered:
                died, counted_as = await self._counted(delivery, message)
                if delivery.stale:
                    # While it was counted the broker took it back, and may have given it to somebody else.
                    freed()
                    return
            else:
                died = self._died(message.starts + 1)
                if died is None:
                    freed()
                    await self._move(delivery, message)
                    return
        elif message.starts:
            await self._original_acked(message)
            if delivery.stale:
                freed()
                return
        hand = self.recall.begin(delivery, message)
        hand.counted_as = counted_as
        try:
            result: Result = died or await self._run(hand)
        except BaseException as error:
            self._abandon(hand, delivery, error)
            raise
        finally:
            freed()
        try:
            if self._parts.world.reached is not None:
                await self._parts.reach(handover.HANDLER_DONE, message.properties.message_id)
            hand.decision = settle(
                result,
                message,
                worker=self.spec.name,
                policy=self._policy,
                now=self._clock.now(),
                unexpected=self.spec.unexpected,
                random=self._random,
            )
            if isinstance(result, Raised):
                hand.error = result.error
                hand.unexpected = is_unexpected(result, self._policy)
            await self._conclude(hand)
        except BaseException as error:
            self._abandon(hand, delivery, error)
            raise

    def _abandon(self, hand: InHand, delivery: Delivery, error: BaseException) -> None:
        """It ends without being settled; *delivery* is the one that its caller gives back."""
        if isinstance(error, Exception):
            # A fault of our own. What was decided would meet it again and again, so it is forgotten, and the message
            # counted among the suspects. A redelivery that took the first one's place has nobody else to give it back.
            hand.decision = None
            if hand.delivery is not delivery:
                hand.delivery.requeue()
        self.recall.end(hand, acked=False)

    async def _conclude(self, hand: InHand) -> None:
        """Do what was decided, all of it confirmed, then ack; on a channel that is gone the broker has the message."""
        while not hand.stale:
            if not (hand.confirmed or hand.decision is ONLY_ACK or await self._obey(hand)):
                # It went stale meanwhile. Where its redelivery has taken the place, nobody else would settle that.
                continue
            hand.confirmed = True
            if hand.delivery.ack():
                # At once: a redelivery that still found it in hand would take its place, and never be acked.
                self.recall.end(hand, acked=True)
                if hand.counted_as is not None:
                    await self._forget_start(hand.counted_as)
                if hand.message.queue:
                    self._tell(hand)
                return
            break
        log.info(
            "%s: the channel of %s went while it was in hand; the broker delivers it again",
            self.spec.name, hand.mark.tag or "a message", extra={"action": "stale", "worker": self.spec.name},
        )  # fmt: skip
        self.recall.end(hand, acked=False)
        self._tell(hand, "stale")

    async def _obey(self, hand: InHand) -> bool:
        """Publish what the decision asks for; False where the delivery went stale first."""
        decision = hand.decision
        if isinstance(decision, Done):
            return not decision.results or await self._publish_results(hand, decision.results)
        if isinstance(decision, Retry):
            return await self._send_back(hand, decision)
        if isinstance(decision, Bury):
            return await self._bury(hand, decision)
        raise AssertionError(decision)

    # ── Flagged deliveries ────────────────────────────────────────────────────────────────────────────────────────────

    def _died(self, starts: int) -> WorkerDied | None:
        return WorkerDied(starts) if starts >= self.spec.max_deliveries else None

    async def _counted(self, delivery: Delivery, message: Received) -> tuple[WorkerDied | None, str | None]:
        """An ordered queue cannot send a message to its end: count its starts before the next one."""
        if not self._parts.store.lasting:
            # A count in the store would end with us. That of a quorum queue does not; it has the lost connections too.
            found = message.properties.headers
            by_broker = [
                found[name]
                for name in ("x-delivery-count", "x-acquired-count")
                if isinstance(found.get(name), int)
            ]
            if by_broker:
                return self._died(max(by_broker)), None
        # The same in every process; Python's own hash is not.
        name = retry_id(message) or f"{delivery.tag or ''}/{hashlib.sha256(delivery.body).hexdigest()}"
        for wait in held_backoff():
            try:
                starts = await self._parts.store.count_start(self._parts.names.namespace, self.queue, name)
            except StoreError as error:
                log.warning(
                    "%s: cannot count a start, waiting: %s", self.spec.name, error, extra={"action": "held"}
                )
                await self._clock.sleep(wait)
                if delivery.stale:
                    return None, None
            else:
                return self._died(starts), name
        raise AssertionError("the backoff never ends")

    async def _forget_start(self, counted_as: str) -> None:
        try:
            await self._parts.store.forget_starts(self._parts.names.namespace, self.queue, [counted_as])
        except StoreError as error:
            # The count is only a bound; a left-over row can make a later copy of the same id die one start sooner.
            log.warning(
                "%s: a start could not be forgotten: %s", self.spec.name, error, extra={"action": "starts"}
            )

    async def _original_acked(self, message: Received) -> None:
        """Return when the original of a moved message is out of our hands.

        The broker hands the moved one over as soon as it has it. One that kills us at once would leave both, each with
        all its starts before it.
        """
        while (moving := self._moving.get(_same(message))) is not None:
            await asyncio.wait((moving,))

    async def _move(self, delivery: Delivery, message: Received) -> None:
        """Publish it again, counted, then ack; whoever takes the new one here waits for that."""
        same = _same(message)
        moving = self._moving[same] = asyncio.get_running_loop().create_future()
        try:
            await self._publish_counted(delivery, message)
        finally:
            moving.set_result(None)
            if self._moving.get(same) is moving:
                del self._moving[same]

    async def _publish_counted(self, delivery: Delivery, message: Received) -> None:
        """A first flag proves nothing: to the end of its own queue, counted. Flagged again: to the suspects."""
        first = message.starts == 0 and self.spec.max_deliveries >= 3
        target = self.queue if first else self._parts.names.suspects(self.spec.name)
        body, properties = envelope.restarted(
            delivery.body,
            delivery.properties,
            starts=message.starts + 1,
            exchange=message.exchange,
            routing_key=message.routing_key,
            where=self._parts.where,
        )
        if not await self._publisher.hand_over(
            Outgoing("", target, body, properties),
            stale=lambda: delivery.stale,
            message_id=message.properties.message_id,
            holding=self._holding(None),
        ):
            return
        await self._parts.reach(handover.SUSPECT_MOVED, message.properties.message_id)
        delivery.ack()
        if not first:
            self.suspected()
        log.info(
            "%s: %s was started %d times without being settled; moved to %s",
            self.spec.name, message.properties.message_id, message.starts + 1, target, extra={"action": "moved"},
        )  # fmt: skip
        self._watch(message, "moved", message.attempt)

    # ── The run ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self, hand: InHand) -> Result:
        """Decode the body and call the handler."""
        message = hand.message
        properties = message.properties
        spec = self.spec
        payload: Any = message.body
        if not spec.raw:
            try:
                if not properties.is_plain_json:
                    check_content(properties.content_type, properties.content_encoding)
                payload = spec.decode(message.body)
            except Undecodable as error:
                return NotDecoded(str(error))
        if message.starts and message.starts >= spec.max_deliveries - 1:
            # Its last start: if the process dies of it once more, nothing else may be in doubt.
            async with self._gate.alone():
                return await self._handle(hand, payload)
        if not self._gate.try_enter():
            await self._gate.enter()
        try:
            return await self._handle(hand, payload)
        finally:
            self._gate.leave()

    async def _handle(self, hand: InHand, payload: Any) -> Result:
        # Made only now: its deadline counts from the start, not from the wait for a turn.
        arguments = [payload if name == "payload" else self._context(hand) for name in self.spec.takes]
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        timeout = self.spec.timeout
        self.inside[task] = None if timeout is None else self._clock.monotonic() + timeout
        try:
            if self.spec.is_async:
                return await self._call(arguments, task)
            return await self._call_in_thread(arguments)
        finally:
            del self.inside[task]

    def _context(self, hand: InHand) -> Context:
        message = hand.message
        timeout = self.spec.timeout
        known = RetryPolicy.from_header(message.policy) if message.policy else None
        return Context(
            message,
            worker=self.spec.name,
            max_attempts=message.attempts_allowed or (known or self._policy).max_attempts,
            deadline=None if timeout is None else self._clock.monotonic() + timeout,
            state=self._state,
            clock=self._clock,
        )

    async def _call(self, arguments: list[Any], task: asyncio.Task[Any]) -> Result:
        timeout = self.spec.timeout
        timer = None
        late = False

        def expire() -> None:
            nonlocal late
            late = True
            task.cancel()

        if timeout is not None:
            timer = self._clock.call_later(timeout, expire)
        try:
            value = self.spec.handler(*arguments)
            if inspect.isasyncgen(value):
                result = self._collected([item async for item in value])
            else:
                result = self._collected(await value)
            # One that has swallowed its end has run too long all the same, as a plain def has.
            return self._timed_out() if late else result
        except asyncio.CancelledError as error:
            # Beyond our own call for its end somebody else wants it too.
            if task.cancelling() > late:
                raise
            return self._timed_out() if late else Raised(error, traceback_tail(error))
        except (KeyboardInterrupt, GeneratorExit):
            # The end of the process, or of this coroutine: whoever runs it gives the message back.
            raise
        except BaseException as error:  # noqa: BLE001 — whatever a handler raises is its message's failure (A22)
            return Raised(error, traceback_tail(error))
        finally:
            if timer is not None:
                timer.cancel()
            if late:
                task.uncancel()

    async def _call_in_thread(self, arguments: list[Any]) -> Result:
        """A plain `def`: its thread cannot be stopped, so a timeout counts when it ends, and its slot stays taken."""

        def call() -> Result:
            try:
                return self._collected(self.spec.handler(*arguments))
            except BaseException as error:  # noqa: BLE001 — as above; a thread's SystemExit ends nothing but the run
                return Raised(error, traceback_tail(error))

        timeout = self.spec.timeout
        late = False
        timer = None

        def overrun() -> None:
            nonlocal late
            late = True
            log.warning(
                "%s (%s) runs longer than its timeout of %g s; a plain def cannot be stopped, so its slot stays taken",
                self.spec.name, self.spec.location, timeout, extra={"action": "overrun", "worker": self.spec.name},
            )  # fmt: skip

        if timeout is not None:
            timer = self._clock.call_later(timeout, overrun)
        try:
            result = await cast("Threads", self._threads).run(call)
        finally:
            if timer is not None:
                timer.cancel()
        return self._timed_out() if late else result

    def _timed_out(self) -> Raised:
        error = TimeoutError(f"the handler ran longer than its timeout of {self.spec.timeout:g} s")
        return Raised(error, timed_out=True)

    def _collected(self, value: Any) -> Result:
        """What a handler's return value means."""
        if value is None:
            return RETURNED_NOTHING
        if isinstance(value, Message):
            return Returned((value,))
        if isinstance(value, Failure):
            self._tell_once(
                f"returned a {type(value).__name__}; it counts as raised. Write: raise {type(value).__name__}(…)"
            )
            return Raised(value)
        if inspect.iscoroutine(value):
            value.close()
            return Raised(
                RuntimeError(
                    f"{self.spec.name} returned a coroutine that nobody awaited: is an await missing?"
                )
            )
        if isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, memoryview, dict)):
            return Returned(tuple(value))
        self._tell_once(
            f"returned a {type(value).__name__}, which is ignored; a handler returns None, a Message, or several"
        )
        return Returned()

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning("%s (%s) %s", self.spec.name, self.spec.location, text, extra={"action": "returned"})

    # ── What was decided ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _publish_results(self, hand: InHand, results: tuple[Message | object, ...]) -> bool:
        """All results confirmed, or dead letters of their own."""
        if hand.result_ids is None or hand.results_out is None:
            hand.result_ids, hand.results_out = {}, set()
        out = hand.results_out
        sends = [
            self._publish_result(hand, position, result, hand.result_ids)
            for position, result in enumerate(results)
            if position not in out
        ]
        done = [await sends[0]] if len(sends) == 1 else await asyncio.gather(*sends)
        if not all(done):
            return False
        await self._parts.reach(handover.RESULTS_CONFIRMED, hand.message.properties.message_id)
        return True

    async def _publish_result(
        self, hand: InHand, position: int, result: Message | object, minted: dict[int, str]
    ) -> bool:
        given = result.id if isinstance(result, Message) else None
        id = given or result_id(hand.message.properties.message_id, self.spec.name, position)
        if id is None:
            id = minted[position] = minted.get(position) or self._parts.world.new_id()
        try:
            if not isinstance(result, Message):
                raise BadPayload(f"result {position} is a {type(result).__name__}, not a Message")
            out = self._publisher.compose(result, id)
            done = await self._publisher.hand_over(
                out, stale=lambda: hand.stale, message_id=id, holding=self._holding(hand), final=True
            )
        except (BadPayload, Unroutable, PublishRefused) as error:
            done = await self._bury_result(hand, position, result, id, error)
        if done and hand.results_out is not None:
            hand.results_out.add(position)
        return done

    async def _bury_result(
        self, hand: InHand, position: int, result: Message | object, id: str, error: Exception
    ) -> bool:
        """A result that nobody takes, or that cannot be written, becomes a dead letter of its own."""
        kind = result.type if isinstance(result, Message) and isinstance(result.type, str) else ""
        try:
            if not isinstance(result, Message):
                raise BadPayload
            out = self._publisher.compose(result if kind else replace(result, headers={}), id)
            body, properties = out.body, out.properties
        except BadPayload:
            body = _shown(result.payload if isinstance(result, Message) else result)
            properties = Properties.build(
                content_type="text/plain", message_id=_short_or_none(id), type=_short_or_none(kind)
            )
        cause = Cause(
            reason=f"unroutable result: {error}",
            worker=self.spec.name,
            at=self._clock.now(),
            error=type(error).__name__,
        )
        subject = Received(
            queue="",
            exchange=self._parts.exchange.name,
            routing_key=properties.type or "",
            body=body,
            properties=properties,
        )
        hand.retry_id = hand.retry_id or retry_id(hand.message) or self._parts.world.new_id()
        # The same for a repeat, and for no other: results may share an id, and none swallows another's letter.
        letter_id = derived_id("letter", hand.retry_id, str(position), hashlib.sha256(body).hexdigest())
        return await self._to_dead_letters(
            hand, subject, cause, "unroutable result", attempts=0, letter_id=letter_id
        )

    async def _send_back(self, hand: InHand, decision: Retry) -> bool:
        """A soft failure with tries left: an envelope to the retry queue; a copy for whoever watches."""
        message = hand.message
        hand.retry_id = hand.retry_id or retry_id(message) or self._parts.world.new_id()
        body, properties = envelope.soft_failure(
            message,
            decision.plan,
            decision.cause,
            retry_id=hand.retry_id,
            policy=decision.policy,
            through_exchange=self.spec.replay == "exchange",
            where=self._parts.where,
        )
        if not await self._publisher.hand_over(
            Outgoing("", self._parts.names.retry_queue, body, properties),
            stale=lambda: hand.stale,
            message_id=message.properties.message_id,
            sent_at=handover.ENVELOPE_SENT,
            holding=self._holding(hand),
        ):
            return False
        await self._parts.reach(handover.ENVELOPE_CONFIRMED, message.properties.message_id)
        self._observe(
            message,
            lambda: json_form.soft_failure(
                message, decision.cause, decision.plan, decision.max_attempts, hand.retry_id
            ),
        )
        return True

    async def _bury(self, hand: InHand, decision: Bury) -> bool:
        """A hard failure, or tries used up: a dead letter; a copy for whoever watches."""
        message = hand.message
        hand.retry_id = hand.retry_id or retry_id(message) or self._parts.world.new_id()
        hand.letter_id = hand.letter_id or self._parts.world.new_id()
        if not await self._to_dead_letters(
            hand,
            message,
            decision.cause,
            decision.ending,
            attempts=decision.attempts,
            letter_id=hand.letter_id,
        ):
            return False
        if decision.ending in {"hard failure", "retries exhausted"}:
            self._observe(message, lambda: json_form.hard_failure(message, decision.cause))
        code = {"retries exhausted": RETRIES_EXHAUSTED, "worker died": POISON_MESSAGE}.get(decision.ending)
        if code is not None:
            self._parts.alarms.emit(
                Alarm(
                    code=code,
                    title=f"{self.spec.name}: {decision.cause.reason}",
                    about=self.queue,
                    fields={"queue": self.queue, "message_id": message.properties.message_id},
                )
            )
        return True

    async def _to_dead_letters(
        self, hand: InHand, message: Received, cause: Cause, ending: Ending, *, attempts: int, letter_id: str
    ) -> bool:
        body, properties = envelope.dead_letter(
            message,
            cause,
            ending,
            letter_id=letter_id,
            retry_id=hand.retry_id if message is hand.message else "",
            attempts=attempts,
            where=self._parts.where,
        )
        if not await self._publisher.hand_over(
            Outgoing("", self._parts.names.dead_letters, body, properties),
            stale=lambda: hand.stale,
            message_id=message.properties.message_id,
            holding=self._holding(hand),
        ):
            return False
        await self._parts.reach(handover.DEAD_LETTER_CONFIRMED, message.properties.message_id)
        return True

    def _observe(self, message: Received, write: Callable[[], bytes]) -> None:
        """A copy to the observer exchange, best effort: nothing depends on anyone listening."""
        if not self._publisher.observed:
            return
        try:
            body = write()
            # The JSON form has no place for id and attempt, and whoever watches wants to know them.
            properties = Properties.build(
                content_type="application/json",
                delivery_mode=1,
                message_id=message.properties.message_id,
                headers={h.ATTEMPT: message.attempt},
            )
        except Exception:  # noqa: BLE001 - a stranger's payload must not stop its own envelope
            log.exception("a copy for observers could not be written", extra={"action": "observer"})
            return
        if len(body) <= json_form.MOST_OBSERVED:
            self._publisher.observe(body, properties)

    def _holding(self, hand: InHand | None) -> Callable[[bool], None]:
        def note(held: bool) -> None:
            self.held += 1 if held else -1
            if hand is not None:
                hand.held = held

        return note

    # ── For whoever watches ───────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, hand: InHand, outcome: Outcome | None = None) -> None:
        decision = hand.decision
        message = hand.message
        if outcome is None:
            outcome = (
                "done" if isinstance(decision, Done) else "soft" if isinstance(decision, Retry) else "dead"
            )
        if outcome == "soft" and isinstance(decision, Retry):
            log.info(
                "soft  %s  %s  attempt %d of %d, again in %s: %s",
                self.spec.name, _ending(message), message.attempt, decision.max_attempts, _wait(decision.plan),
                decision.cause.reason, extra={"action": "soft", "worker": self.spec.name},
            )  # fmt: skip
        elif outcome == "dead" and isinstance(decision, Bury):
            log.warning(
                "dead  %s  %s  attempt %d  %s",
                self.spec.name, _ending(message), decision.attempts, decision.cause.reason,
                extra={"action": "dead", "worker": self.spec.name},
            )  # fmt: skip
        if self._parts.watchers and outcome is not None:
            self._watch(message, outcome, message.attempt, hand)

    def _watch(self, message: Received, outcome: Outcome, attempt: int, hand: InHand | None = None) -> None:
        decision = hand.decision if hand is not None else None
        run = Run(
            worker=self.spec.name,
            outcome=outcome,
            message_id=message.properties.message_id,
            type=message.type,
            attempt=attempt,
            max_attempts=decision.max_attempts if isinstance(decision, Retry) else self._policy.max_attempts,
            reason=decision.cause.reason if isinstance(decision, (Retry, Bury)) else "",
            delay=decision.plan.delay if isinstance(decision, Retry) else 0.0,
            counted=decision.plan.counted if isinstance(decision, Retry) else True,
            seconds=0.0 if hand is None else self._clock.monotonic() - hand.since,
            error=hand.error if hand is not None else None,
            unexpected=hand is not None and hand.unexpected,
        )
        for watcher in self._parts.watchers:
            watcher(run)


def _same(message: Received) -> tuple[str | None, int]:
    """What a message and its moved copy have in common."""
    return message.properties.message_id, hash(message.body)


def _ending(message: Received) -> str:
    id = message.properties.message_id
    return id[-6:] if id else "-"


def _wait(plan: RetryAt) -> str:
    """The wait for a log line: three digits tell enough, and whole seconds where it is long."""
    told = [f"{s:.3g} s" if s < 1000 else f"{s:.0f} s" for s in (plan.delay, plan.shortened_from or 0.0)]
    if plan.shortened_from is None:
        return told[0]
    return f"{told[0]} ({told[1]} were asked for, and max_retry_after allows no more)"


def _shown(payload: object) -> bytes:
    """A payload that cannot be written, as a person may still recognise it."""
    try:
        return repr(payload).encode("utf-8", "backslashreplace")
    except Exception as failing:  # noqa: BLE001 — this runs the user's own __repr__
        return f"(a {type(payload).__name__} that cannot be shown: {type(failing).__name__})".encode()


def _short_or_none(text: object) -> str | None:
    """*text* where a property can carry it."""
    try:
        return check_short(text, "text") or None if isinstance(text, str) else None
    except BadPayload:
        return None


def message_in(delivery: Delivery, queue: str) -> Received:
    """The message that a delivery holds; *queue* is the worker's own, also where it came by way of the suspects."""
    return received(
        queue=queue,
        exchange=delivery.exchange,
        routing_key=delivery.routing_key,
        body=delivery.body,
        properties=delivery.properties,
        redelivered=delivery.redelivered,
    )


def traceback_tail(error: BaseException) -> str:
    """The traceback as text, ending in the user's own line; nothing for a plain soft failure, whose reason says it."""
    if isinstance(error, SoftFailure) and error.__cause__ is None and error.__context__ is None:
        return ""
    # The first frame is ours.
    own = error.__traceback__.tb_next if error.__traceback__ is not None else None
    try:
        return "".join(traceback.format_exception(type(error), error, own, limit=-FRAMES))
    except KeyboardInterrupt:
        raise
    except BaseException as failing:  # noqa: BLE001 — formatting runs the user's own __str__ and __repr__
        return f"(the traceback cannot be shown: {type(failing).__name__})"
