"""Publishing: a user's message with a deadline, and a hand-over that is repeated until it succeeds."""

from __future__ import annotations

import asyncio
import contextvars
import difflib
import itertools
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from datetime import datetime

from leveret.core import envelope, handover
from leveret.core import headers as h
from leveret.core.alarm import DLQ_PUBLISH_FAILED, Alarm
from leveret.core.errors import (
    BadPayload,
    BrokerError,
    LeveretError,
    PublishError,
    PublishFailures,
    PublishRefused,
    PublishTimeout,
    Unroutable,
)
from leveret.core.message import NO_HEADERS, Message, Outgoing, identified
from leveret.core.payload import encode
from leveret.core.properties import Properties, check_short
from leveret.core.seconds import Seconds, due_moment, seconds
from leveret.pipeline.deadlines import Deadlines
from leveret.pipeline.parts import Parts, log

#: Waits between repeats of a step that is kept in hand, in seconds; the last one goes on.
HELD_BACKOFF = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: The broker's words for "this message, never": another try would be answered alike.
FINAL_CODES = frozenset({403, 404, 406, 501, 502, 505, 541})
#: Seconds without copies for observers once their exchange has refused one.
UNOBSERVED = 60.0
#: How many publishes of one `publish_many` are under way at once.
MANY_AT_ONCE = 1000
#: After so many of them the loop has a turn: answers are read, and others have not waited for long.
LOOK_UP_EVERY = 50


def held_backoff() -> Iterator[float]:
    """1, 2, 4, 8, 16, 30, 30 … seconds."""
    return itertools.chain(HELD_BACKOFF, itertools.repeat(HELD_BACKOFF[-1]))


class Publisher:
    """Publishes through one transport: confirmed, persistent, mandatory."""

    def __init__(self, parts: Parts, *, timeout: float, known_types: Callable[[], dict[str, str]]) -> None:
        self._parts = parts
        self._transport = parts.transport
        self._clock = parts.world.clock
        self._timeout = timeout
        self._deadlines = Deadlines(self._clock)
        #: How many steps are held, by the place they publish to; a place stays until the alarm about it is over.
        self._held: dict[str, int] = {}
        #: Until when no copies go to observers, by the monotonic clock, and who declares their exchange again.
        self._unobserved_until = float("-inf")
        self._declaring: set[asyncio.Task[None]] = set()
        #: Message type to worker, for "did you mean".
        self._known_types = known_types

    # ── What goes out ─────────────────────────────────────────────────────────────────────────────────────────────────

    def compose(self, message: Message, id: str | None) -> Outgoing:
        """The bytes of a message under that id. Without a payload it has an empty object.

        Raises:
            BadPayload: payload, headers or a name cannot be written; nothing was sent.
        """
        if not isinstance(message.type, str) or not message.type:
            raise BadPayload(
                f"message type {message.type!r}: expected text of at least one character. Nothing was sent."
            )
        check_short(message.type, "message type")
        if message.headers is not NO_HEADERS:
            _check_headers(message.headers)
        body = encode({} if message.payload is None else message.payload, type=message.type)
        expiration = None
        if message.expiration is not None:
            try:
                expiration = str(round(seconds(message.expiration, "expiration") * 1000))
            except ValueError as error:
                raise BadPayload(f"{error}. Nothing was sent.") from None
        # No timestamp: a publish that is repeated, or the result of a run that is, must be the same message to the last
        # byte, or its retry id would be another (R5).
        properties = Properties.build(
            content_type=message.content_type,
            headers=message.headers or None,
            delivery_mode=2 if message.persistent else 1,
            priority=message.priority,
            correlation_id=message.correlation_id,
            reply_to=message.reply_to,
            expiration=expiration,
            message_id=id,
            type=message.type,
        )
        key = "" if self._parts.exchange.type == "fanout" else message.type
        return Outgoing(self._parts.exchange.name, key, body, properties, message.mandatory)

    # ── A user's publish ──────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(self, message: Message, *, timeout: float | None = None) -> str:
        """Publish a message with an id, and return the id once the broker has it.

        Raises:
            BadPayload: it cannot be written; nothing was sent.
            Unroutable, PublishRefused: the broker does not have it.
            PublishTimeout: unknown; `.message` is to be sent again under the same id.
        """
        out = self.compose(message, message.id)
        await self.deliver(out, message, timeout=timeout)
        return message.id or ""

    async def deliver(self, out: Outgoing, message: Message, *, timeout: float | None = None) -> None:
        """Publish bytes under a deadline; the errors carry *message*."""
        limit = left = self._timeout if timeout is None else timeout
        try:
            if not self._transport.sendable:
                since = self._clock.monotonic()
                ready = asyncio.ensure_future(self._transport.ready())
                if not await self._deadlines.met(ready, limit):
                    raise PublishTimeout(self._why_late(message, limit, sent=False), message=message)
                # One deadline for both waits.
                left = max(0.0, limit - (self._clock.monotonic() - since))
            answer = self._transport.send(out)
            if self._parts.world.reached is not None:
                await self._parts.reach(handover.PUBLISH_SENT, message.id)
            if not await self._deadlines.met(answer, left):
                raise PublishTimeout(self._why_late(message, limit, sent=True), message=message)
        except PublishError as error:
            if error.message is not None:
                raise
            raise self._explained(error, out, message) from error

    async def publish_later(
        self, message: Message, *, delay: Seconds | None, at: datetime | None, timeout: float | None = None
    ) -> str:
        """Have a message with an id wait in the retry store before it is published (P11); one of *delay* and *at*.

        Raises:
            ValueError: both are given, or with an expiration, or one that cannot be meant; nothing was sent.
            PublishError: as `publish` says, of the message to the retry queue.
        """
        if delay is not None and at is not None:
            raise ValueError("publish(delay=…, at=…): one of them. Nothing was sent.")
        if at is not None and not isinstance(at, datetime):
            raise ValueError(
                f"at={at!r}: expected an aware datetime, such as datetime.now(UTC). Nothing was sent."
            )
        if message.expiration is not None:
            raise ValueError(
                "publish(expiration=…) with delay or at: it would wait longer than it lives. Nothing was sent."
            )
        out = self.compose(message, message.id)
        body, properties = envelope.delayed(
            out.body,
            out.properties,
            exchange=out.exchange,
            routing_key=out.routing_key,
            retry_id=self._parts.world.new_id(),
            at=self._clock.now(),
            wait=None if delay is None else seconds(delay, "delay"),
            due_at=None if at is None else due_moment(at, "at"),
            where=self._parts.where,
        )
        later = Outgoing("", self._parts.names.retry_queue, body, properties)
        await self.deliver(later, message, timeout=timeout)
        return message.id or ""

    async def publish_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], *, timeout: float | None = None
    ) -> list[str]:
        """Publish many messages, pipelined; their ids in order, minted where they have none.

        Raises:
            PublishFailures: some were not confirmed; the others are.
        """
        limit = self._timeout if timeout is None else timeout
        ids: list[str] = []
        failed: dict[int, PublishError | BadPayload] = {}
        faults: list[Exception] = []
        # No task for each message, unless it has to wait: that would take as long as all else that is done for it.
        under_way: dict[asyncio.Future[None], tuple[int, Outgoing, Message]] = {}
        new_id = self._parts.world.new_id
        # One for all, where each callback would make a copy.
        context = contextvars.copy_context()
        most = MANY_AT_ONCE - 1
        room: asyncio.Future[None] | None = None

        def settled(answer: asyncio.Future[None]) -> None:
            position, out, message = under_way.pop(answer)
            self._deadlines.release(answer, limit)
            if answer.cancelled() or answer.exception() is not None:
                not_confirmed(answer, position, out, identified(message, ids[position]))
            if room is not None and len(under_way) <= most and not room.done():
                room.set_result(None)

        def not_confirmed(
            answer: asyncio.Future[None], position: int, out: Outgoing, message: Message
        ) -> None:
            error = None if answer.cancelled() else answer.exception()
            if error is None:
                failed[position] = PublishTimeout(self._why_late(message, limit, sent=True), message=message)
            elif isinstance(error, PublishError):
                told = error if error.message is not None else self._explained(error, out, message)
                failed[position] = told
            elif isinstance(error, Exception):
                # What nobody foresaw is never taken for a confirm: raised below.
                faults.append(error)

        def put(message: Message) -> bool:
            """Publish it, and say whether the loop is to have a turn."""
            position = len(ids)
            ids.append(id := new_id() if message.id is None else message.id)
            try:
                out = self.compose(message, id)
            except BadPayload as error:
                failed[position] = error
                return False
            except Exception as fault:  # noqa: BLE001 - as above
                faults.append(fault)
                return False
            answer = self._sent(out, message, id, limit)
            under_way[answer] = (position, out, message)
            answer.add_done_callback(settled, context=context)
            return len(under_way) > most or not (position + 1) % LOOK_UP_EVERY

        async def turn() -> None:
            nonlocal room
            if len(under_way) > most:
                room = asyncio.get_running_loop().create_future()
                await room
            else:
                await asyncio.sleep(0)

        try:
            # Two loops, since an asynchronous generator around what is none would take a twentieth of the time.
            if isinstance(messages, AsyncIterable):
                async for message in messages:
                    if put(message):
                        await turn()
            else:
                for message in messages:
                    if put(message):
                        await turn()
            most = 0
            if under_way:
                await turn()
        finally:
            for answer in under_way:
                answer.remove_done_callback(settled)
                self._deadlines.release(answer, limit)
                answer.cancel()
        if faults:
            raise faults[0]
        if failed:
            confirmed = [id for position, id in enumerate(ids) if position not in failed]
            raise PublishFailures(confirmed, dict(sorted(failed.items())))
        return ids

    def _sent(self, out: Outgoing, message: Message, id: str, limit: float) -> asyncio.Future[None]:
        """Publish now where a send would go out; else a task waits until it would."""
        if self._parts.world.reached is not None or not self._transport.sendable:
            return asyncio.create_task(self.deliver(out, identified(message, id), timeout=limit))
        answer = self._transport.send(out)
        self._deadlines.bound(answer, limit)
        return answer

    def _why_late(self, message: Message, limit: float, *, sent: bool) -> str:
        state = self._transport.state
        blocked = (
            "; the connection is blocked by an alarm of the broker (memory or disk)"
            if state == "blocked"
            else ""
        )
        about = f'"{message.type}" (id {_short(message.id)})'
        if not sent:
            return (
                f"{about} could not be sent in {limit:g} s: the connection to {self._transport.display} is {state}"
                f"{blocked}."
                " It was not sent. Publish it again under the same id:  await app.publish(error.message)"
            )
        return (
            f"no answer about {about} in {limit:g} s{blocked}. Unknown whether it arrived: it may be in the queue, "
            "or not. Send it again under the same id, so that a second copy can be told:  "
            "await app.publish(error.message)"
        )

    def _explained(self, error: PublishError, out: Outgoing, message: Message) -> PublishError:
        about = f"(id {_short(message.id)})"
        if isinstance(error, Unroutable):
            types = self._known_types()
            near = difflib.get_close_matches(message.type, types, 1, cutoff=0.7)
            meant = f' Did you mean "{near[0]}" (worker {types[near[0]]})?' if near else ""
            place = (
                f"exchange {out.exchange} ({self._parts.exchange.type})"
                if out.exchange
                else "the default exchange"
            )
            return Unroutable(
                f'nobody takes "{message.type}": {place} has no queue bound for it (312 NO_ROUTE), so it was not '
                f"accepted {about}.{meant} A worker that has never run has no queue yet: start it once, "
                "or run  leveret topology apply MODULE:APP. "
                "If nobody has to take it: publish(..., mandatory=False).",
                message=message,
            )
        if isinstance(error, PublishRefused):
            return PublishRefused(
                f'"{message.type}" {about} was refused: {error}', message=message, code=error.code
            )
        return PublishTimeout(
            # The transport's own words say that it is unknown, and what to do; how it is done here follows.
            f'"{message.type}" {about}: {error}:  await app.publish(error.message)',
            message=message,
        )

    # ── A step that is kept in hand ───────────────────────────────────────────────────────────────────────────────────

    async def hand_over(
        self,
        out: Outgoing,
        *,
        stale: Callable[[], bool],
        message_id: str | None,
        sent_at: str | None = None,
        holding: Callable[[bool], object] = lambda _: None,
        final: bool = False,
    ) -> bool:
        """Publish until the broker has it, with backoff; False once *stale* says that the broker has the original.

        Args:
            out: what to publish.
            stale: whether the delivery this belongs to is gone.
            message_id: for logs and hand-over points.
            sent_at: the hand-over point right after each send.
            holding: told True when it has failed and is held, False when it is over.
            final: raise Unroutable and refusals by code instead of repeating.

        An unknown publish is repeated only once its connection is closed: until then its answer is awaited.
        """
        held = counted = False
        place = out.routing_key
        try:
            for wait in held_backoff():
                if stale():
                    return False
                error: LeveretError
                try:
                    if not self._transport.sendable:
                        await self._transport.ready()
                        # While the connection was away the broker may have given the original to somebody else.
                        if stale():
                            return False
                    answer = self._transport.send(out)
                    if sent_at is not None and self._parts.world.reached is not None:
                        await self._parts.reach(sent_at, message_id)
                    await answer
                except Unroutable as unroutable:
                    if final:
                        raise
                    error = unroutable
                    await self._declare_again()
                except PublishRefused as refused:
                    if final and refused.code in FINAL_CODES:
                        raise
                    error = refused
                except PublishTimeout as unknown:
                    error = unknown
                else:
                    if place in self._held and self._held[place] == held:
                        # Nobody else is held; whoever was may have gone stale, and come back as this one.
                        del self._held[place]
                        self._parts.alarms.resolved(DLQ_PUBLISH_FAILED, place)
                        counted = False
                    return True
                if not held:
                    held = counted = True
                    self._held[place] = self._held.get(place, 0) + 1
                    holding(True)
                log.warning(
                    "publish to %s failed, kept in hand and tried again in %g s: %s",
                    out.routing_key, wait, error, extra={"action": "held", "message_id": message_id},
                )  # fmt: skip
                self._parts.alarms.emit(
                    Alarm(
                        code=DLQ_PUBLISH_FAILED,
                        title=f"cannot publish to {out.routing_key}; what should go there is kept unacked",
                        about=out.routing_key,
                        fields={"queue": out.routing_key, "error": str(error)},
                    )
                )
                await self._clock.sleep(wait)
        finally:
            if counted:
                self._held[place] -= 1
            if held:
                holding(False)
        raise AssertionError("the backoff never ends")

    # ── For whoever watches ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def observed(self) -> bool:
        """Whether a copy for observers would go out now."""
        return self._transport.sendable and self._clock.monotonic() >= self._unobserved_until

    def observe(self, body: bytes, properties: Properties) -> None:
        """Publish a copy to the observer exchange, best effort.

        A refusal closes the channel, and costs all that is under way on it a copy. So then none goes there for a while,
        and the exchange, which somebody may have deleted, is declared again.
        """
        copy = Outgoing(self._parts.names.observer, "", body, properties, mandatory=False)
        self._transport.send(copy).add_done_callback(self._observed)

    def _observed(self, answer: asyncio.Future[None]) -> None:
        error = None if answer.cancelled() else answer.exception()
        if not isinstance(error, PublishRefused) or error.code not in FINAL_CODES:
            return
        now = self._clock.monotonic()
        if now < self._unobserved_until:
            # Of several that were under way one has told.
            return
        self._unobserved_until = now + UNOBSERVED
        log.warning(
            "failures cannot be copied to exchange %s for those who watch; no copies for %g s: %s",
            self._parts.names.observer, UNOBSERVED, error, extra={"action": "observer"},
        )  # fmt: skip
        task = asyncio.create_task(self._declare_again())
        self._declaring.add(task)
        task.add_done_callback(self._declaring.discard)

    async def _declare_again(self) -> None:
        """Something of ours was deleted under us: we need it, so we declare it."""
        try:
            await self._transport.declare(self._parts.base)
        except BrokerError as error:
            log.warning("declaring our queues again failed: %s", error, extra={"action": "declare"})


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise BadPayload(f"headers={headers!r}: expected a mapping. Nothing was sent.")
    for name in headers:
        if isinstance(name, str) and (h.is_ours(name) or h.is_broker_owned(name)):
            owner = "leveret" if h.is_ours(name) else "the broker"
            raise BadPayload(f"header {name!r} belongs to {owner}; choose another name. Nothing was sent.")


def _short(id: str | None) -> str:
    return "none" if id is None else f"…{id[-6:]}"
