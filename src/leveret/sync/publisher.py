"""Publishing from any thread: sent, confirmed, and tried once more over a new connection where there is doubt (T2, T3).

The calling thread writes the message and waits; what touches the connection happens on the portal's loop. Where the
first try is confirmed, as nearly all are, no task and no coroutine is made for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from _thread import allocate_lock
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from typing import Any, Final, Literal, NamedTuple

from leveret.core.alarm import DLQ_PUBLISH_FAILED, PUBLISH_UNAVAILABLE, Alarm
from leveret.core.errors import (
    BadPayload,
    BrokerError,
    ConfigError,
    LeveretError,
    PublishRefused,
    PublishTimeout,
    TransportUnavailableError,
    Unroutable,
)
from leveret.core.message import Outgoing
from leveret.core.payload import encode
from leveret.core.properties import Properties, check_short
from leveret.core.topology import Names
from leveret.ports import Alarms, Random
from leveret.runtime.world import uuid_text
from leveret.sync.line import RENEWAL, Line, as_sentence
from leveret.sync.portal import Portal

log = logging.getLogger("leveret.sync")

#: Events of one `publish_events` that go out together, and how many such batches are under way at once: as many as the
#: confirm window lets out. The next ones are written meanwhile.
AT_ONCE: Final = 500
BATCHES: Final = 2
#: After so many of them the loop has a turn: answers are read, and other threads have not waited for long.
_LOOK_UP_EVERY: Final = 50
#: Seconds by which the calling thread waits longer than the loop, which normally ends by itself: it may be busy.
_SLACK: Final = 0.25
#: The broker's words for "this message, never": another connection would hear the same.
_FINAL: Final = frozenset({403, 404, 406, 501, 502, 505, 541})


class EventOutcome(NamedTuple):
    """What became of one event of `publish_events`.

    `confirmed`: the broker has it. `dead`: nobody was bound for it, and it lies in the dead letters. `refused`: it was
    not sent, or the broker does not have it. `unknown`: it may have arrived, or not.
    """

    state: Literal["confirmed", "dead", "refused", "unknown"]
    routing_key: str
    message_id: str
    #: Why, where it is neither confirmed nor dead.
    error: Exception | None = None


@dataclass(slots=True)
class Event:
    """One event on its way out."""

    out: Outgoing
    payload: Mapping[str, Any]
    message_id: str
    #: The first try: what came of it, or will.
    first: asyncio.Future[None] | None = None
    #: New publishing connections that were made before it went out.
    renewals: int = 0
    #: Whether any try may have reached the broker.
    sent: bool = False


class _Refused(Exception):
    """No further try would end otherwise; the text is why."""


class SyncPublisher:
    """Publishes events for any number of threads.

    Args:
        portal: whose loop it is.
        line: made on the loop when first needed.
        names: of the namespace.
        timeout: seconds; a publish ends within these and two more.
        alarms: told of what could not be published; on the loop.
        random: of this process alone, for ids. The system's own would be asked for each with the interpreter's lock
            let go, and threads that publish would take turns at it.
    """

    def __init__(
        self,
        portal: Portal,
        line: Line,
        names: Names,
        *,
        timeout: float,
        alarms: Alarms,
        random: Random,
    ) -> None:
        self._portal: Final = portal
        self._random: Final = random
        self._line: Final = line
        self._names: Final = names
        self._timeout: Final = timeout
        self._alarms: Final = alarms

    # ── On the calling thread ─────────────────────────────────────────────────────────────────────────────────────────

    def compose(self, routing_key: str, payload: Mapping[str, Any], *, mandatory: bool) -> Event:
        """An event as bytes.

        Raises:
            BadPayload: key or payload cannot be written; says where. Nothing was sent.
        """
        if not isinstance(routing_key, str) or not routing_key:
            raise BadPayload(
                f"routing key {routing_key!r}: expected text of at least one character. Nothing was sent."
            )
        if not isinstance(payload, dict):
            raise BadPayload(
                f"the payload of {routing_key!r} is of type {type(payload).__name__}: expected a dict. "
                "Nothing was sent."
            )
        id = uuid_text(self._random.getrandbits(128))
        before, after = _properties(routing_key)
        properties = Properties(before + id.encode() + after)
        out = Outgoing(
            self._names.events, routing_key, encode(payload, type=routing_key), properties, mandatory
        )
        return Event(out, payload, id)

    def publish(self, event: Event) -> None:
        """Publish an event, and return once the broker has it, or it lies in the dead letters as nobody takes it.

        Raises:
            TransportUnavailableError: it ends so within the timeout and two seconds.
        """
        until = monotonic() + self._timeout + RENEWAL
        done = allocate_lock()
        done.acquire()
        self._portal.submit(lambda: self._first(event).add_done_callback(lambda _: done.release()))
        if done.acquire(timeout=self._timeout / 2):
            first = event.first
            if first is not None and not first.cancelled() and first.exception() is None:
                self._alarms.resolved(PUBLISH_UNAVAILABLE, self._line.display)
                return
        self._rest(event, until)

    def _rest(self, event: Event, until: float) -> None:
        try:
            self._portal.call(self._settled(event, until), within=until - monotonic() + _SLACK)
        except TimeoutError:
            raise TransportUnavailableError(
                f'no answer about "{event.out.routing_key}" (id {event.message_id}): the I/O thread is held up. '
                "Unknown whether it arrived: publish it again"
            ) from None
        except TransportUnavailableError as error:
            if event.sent and self._portal.closed:
                raise TransportUnavailableError(
                    f'the transport was closed before an answer came about "{event.out.routing_key}" '
                    f"(id {event.message_id}). Unknown whether it arrived"
                ) from error
            raise

    def publish_many(
        self, events: Iterable[tuple[str, Mapping[str, Any]]], *, mandatory: bool
    ) -> list[EventOutcome]:
        """Publish many events, pipelined; what became of each, in order.

        Raises:
            TransportUnavailableError: it was closed.
        """
        outcomes: list[EventOutcome | None] = []
        under_way: deque[Future[list[tuple[int, EventOutcome]]]] = deque()
        given_up = False
        batch: list[tuple[int, Event]] = []
        turn = asyncio.Lock()

        def collect(most: int) -> bool:
            """Put down what became of batches, until so many are under way; False where the broker took none of one."""
            good = True
            while len(under_way) > most:
                found = under_way.popleft().result()
                for position, outcome in found:
                    outcomes[position] = outcome
                good &= any(outcome.state in {"confirmed", "dead"} for _, outcome in found)
            return good

        for routing_key, payload in events:
            outcomes.append(None)
            try:
                event = self.compose(routing_key, payload, mandatory=mandatory)
            except BadPayload as error:
                outcomes[-1] = EventOutcome("refused", str(routing_key), "", error)
                continue
            if given_up:
                why = TransportUnavailableError(
                    f'"{routing_key}" was not sent: events before it got no answer from the broker'
                )
                outcomes[-1] = EventOutcome("refused", routing_key, event.message_id, why)
                continue
            batch.append((len(outcomes) - 1, event))
            if len(batch) == AT_ONCE:
                given_up = not collect(BATCHES - 1)
                under_way.append(self._started(batch, turn))
                batch = []
        if batch:
            under_way.append(self._started(batch, turn))
        collect(0)
        return [outcome for outcome in outcomes if outcome is not None]

    def _started(
        self, batch: list[tuple[int, Event]], turn: asyncio.Lock
    ) -> Future[list[tuple[int, EventOutcome]]]:
        work = self._batch(batch, turn)
        try:
            return self._portal.start(work)
        except BaseException:
            work.close()
            raise

    # ── On the loop ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _first(self, event: Event) -> asyncio.Future[None]:
        line = self._line
        event.renewals = line.renewals
        if line.sendable:
            event.sent = True
            event.first = answer = line.transport.send(event.out)
        else:
            event.first = answer = asyncio.ensure_future(self._when_ready(event))
        return answer

    async def _when_ready(self, event: Event) -> None:
        """Publish once a publish would go out."""
        await self._line.connected()
        await self._line.transport.ready()
        # Nothing may be awaited between: the place in the window is this one's.
        answer = self._line.transport.send(event.out)
        before, event.sent = event.sent, True
        try:
            await answer
        except PublishRefused as error:
            if error.code is None:
                # Of this try; one before it may have reached the broker all the same.
                event.sent = before
            raise

    async def _settled(self, event: Event, until: float) -> Literal["confirmed", "dead"]:
        """Bring an event to its end whose first try was not simply confirmed."""
        try:
            # Its steps end by themselves; where one does not, as on a half-open connection, it is ended just behind.
            async with asyncio.timeout(until - monotonic() + _SLACK / 2):
                await self._twice(event, until)
        except Unroutable:
            await self._bury(event, until)
            self._alarms.resolved(PUBLISH_UNAVAILABLE, self._line.display)
            return "dead"
        except (_Refused, LeveretError) as error:
            raise self._unavailable(event, str(error)) from error
        except TimeoutError as error:
            raise self._unavailable(event, f"no answer came from {self._line.display}") from error
        else:
            self._alarms.resolved(PUBLISH_UNAVAILABLE, self._line.display)
        finally:
            # Nobody waits for it any more; where it was not sent yet, it never will be.
            if event.first is not None:
                event.first.cancel()
        return "confirmed"

    async def _twice(self, event: Event, until: float) -> None:
        """The rest of the first try, and a second one where it is due.

        Raises:
            Unroutable: nobody takes it.
            _Refused, LeveretError: it failed.
        """
        # Where the loop was too busy even to begin, it begins now.
        first = event.first or self._first(event)
        if first.done():
            try:
                first.result()
            except Unroutable:
                raise
            except PublishRefused as error:
                event.sent = False
                if error.code == 404:
                    # An exchange of ours was deleted.
                    await self._line.declare_needs()
                    await self._when_ready(event)
                    return
                if error.code in _FINAL:
                    raise _Refused(f"it was refused: {error}") from error
            except PublishTimeout as unknown:
                log.debug("%s: %s", event.out.routing_key, unknown)
            else:
                return
        elif self._line.blocked:
            await asyncio.wait((first,), timeout=until - RENEWAL - monotonic())
            if first.done():
                first.result()
                return
            raise _Refused(f"{self._line.why}. No new connection was made: it would be blocked as well")
        await self._second(event, first, until)

    async def _second(self, event: Event, first: asyncio.Future[None], until: float) -> None:
        """Over a new connection, under the same message id; a late answer to the first try counts as well."""
        late = event.sent
        if not late:
            # It waits for a connection, and must not go out beside the second one once there is one.
            first.cancel()
        # The connection went and is there again already: that one is new enough.
        if not (first.done() and self._line.sendable):
            try:
                await self._line.renewed(event.renewals)
            except (BrokerError, ConfigError, TimeoutError) as error:
                if _confirmed(event):
                    return
                why = str(error) or f"no new connection to {self._line.display} in {RENEWAL:g} s"
                raise _Refused(why) from error
            if first.done() and not first.cancelled() and not isinstance(first.exception(), PublishTimeout):
                # Its answer came while the new connection was made.
                first.result()
                return
        second = asyncio.ensure_future(self._when_ready(event))
        trying = {first, second} if late and not first.done() else {second}
        try:
            while trying:
                done, trying = await asyncio.wait(
                    trying, timeout=max(0.0, until - monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    raise _Refused(f"no answer came from {self._line.display}, not over a new connection")
                # What the second one came to counts, unless the first one is confirmed after all.
                for answer in sorted(done, key=lambda each: each is second):
                    failed = answer.exception()
                    if failed is None:
                        return
                    if answer is second:
                        raise failed
        finally:
            for answer in trying:
                answer.cancel()

    def _unavailable(self, event: Event, why: str) -> TransportUnavailableError:
        key = event.out.routing_key
        self._alarms.emit(
            Alarm(
                code=PUBLISH_UNAVAILABLE,
                title=f"{key} could not be published: {why}",
                # One condition, whatever was to be published: a daemon has hundreds of keys, and one broker.
                about=self._line.display,
                fields={"routing_key": key, "error": why},
            )
        )
        known = (
            "Unknown whether it arrived: publish it again, and whoever takes it may see it twice"
            if event.sent
            else "The broker does not have it"
        )
        return TransportUnavailableError(f'"{key}" (id {event.message_id}): {as_sentence(why)} {known}')

    async def _bury(self, event: Event, until: float) -> None:
        """Nobody takes it: to the dead letters (T3)."""
        key = event.out.routing_key
        log.error(
            "unroutable: no queue is bound for %s; it goes to the dead letters. Payload keys: %s",
            key,
            ", ".join(map(str, event.payload)) or "none",
            extra={
                "action": "unroutable", "reason": "unroutable", "routing_key": key,
                "payload_keys": list(event.payload), "message_id": event.message_id,
            },
        )  # fmt: skip
        # Put together of what is written already: a payload of the deepest kind allowed would be one level too deep.
        body = b"".join((
            b'{"reason":"unroutable","original_routing_key":', json.dumps(key).encode(),
            b',"payload":', event.out.body, b"}",
        ))  # fmt: skip
        letter = Event(
            Outgoing("", self._names.dead_letters, body, event.out.properties),
            event.payload,
            event.message_id,
        )
        try:
            sending = asyncio.ensure_future(self._when_ready(letter))
            await asyncio.wait((sending,), timeout=max(0.0, until - monotonic()))
            if not sending.done():
                sending.cancel()
                raise _Refused("no answer came in time")
            sending.result()
            self._alarms.resolved(DLQ_PUBLISH_FAILED, self._names.dead_letters)
        except (_Refused, LeveretError) as error:
            log.error(
                "unroutable: no queue is bound for %s, and the dead letters did not take it: %s. Payload keys: %s",
                key,
                error,
                ", ".join(map(str, event.payload)) or "none",
                extra={
                    "action": "dead_letter_failed", "reason": "unroutable", "routing_key": key,
                    "payload_keys": list(event.payload), "message_id": event.message_id,
                },
            )  # fmt: skip
            self._alarms.emit(
                Alarm(
                    code=DLQ_PUBLISH_FAILED,
                    title=f"{self._names.dead_letters} did not take an unroutable event: {error}",
                    about=self._names.dead_letters,
                    fields={"routing_key": key, "error": str(error)},
                )
            )
            raise TransportUnavailableError(
                f'nobody takes "{key}" (id {event.message_id}), and {self._names.dead_letters} did not take it either: '
                f"{error}. Declare the queue of whoever is to take it, and publish it again"
            ) from error

    async def _batch(
        self, batch: list[tuple[int, Event]], turn: asyncio.Lock
    ) -> list[tuple[int, EventOutcome]]:
        """Publish a batch, pipelined: all first tries, then whatever has to be brought to its end."""
        left = len(batch)
        all_answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(_: object) -> None:
            nonlocal left
            left -= 1
            if not left and not all_answered.done():
                all_answered.set_result(None)

        # One batch after the other goes out, so that events arrive in their order.
        async with turn:
            for number, (_, event) in enumerate(batch, 1):
                self._first(event).add_done_callback(answered)
                if not number % _LOOK_UP_EVERY:
                    await asyncio.sleep(0)
        await asyncio.wait((all_answered,), timeout=self._timeout / 2)
        until = monotonic() + self._timeout / 2 + RENEWAL
        found: list[tuple[int, EventOutcome]] = []
        late = [event for _, event in batch if not _confirmed(event)]
        ends = await asyncio.gather(*(self._settled(event, until) for event in late), return_exceptions=True)
        if len(late) < len(batch):
            self._alarms.resolved(PUBLISH_UNAVAILABLE, self._line.display)
        ended = {event.message_id: end for event, end in zip(late, ends, strict=True)}
        for position, event in batch:
            key, id = event.out.routing_key, event.message_id
            end = ended.get(id, "confirmed")
            if isinstance(end, Exception):
                found.append((position, EventOutcome("unknown" if event.sent else "refused", key, id, end)))
            elif isinstance(end, BaseException):
                raise end
            else:
                found.append((position, EventOutcome(end, key, id)))
        return found


#: Stands for a message id while the properties of a routing key are written.
_NO_ID: Final = "0" * 36


# A daemon publishes under the same keys again and again, and nothing but the id differs.
@lru_cache(maxsize=1024)
def _properties(routing_key: str) -> tuple[bytes, bytes]:
    """The bytes of an event's properties before and behind its id.

    Raises:
        BadPayload: AMQP cannot carry the key.
    """
    check_short(routing_key, "routing key")
    written = Properties.build(content_type="application/json", message_id=_NO_ID, type=routing_key)
    # The id stands before the key, which might look the same.
    before, _, after = written.raw.partition(_NO_ID.encode())
    return before, after


def _confirmed(event: Event) -> bool:
    first = event.first
    return first is not None and first.done() and not first.cancelled() and first.exception() is None
