"""Line: carries alarms to the alerts exchange on a connection of its own, and to people while nobody answers there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from leveret.alarms.carrying import carrying
from leveret.core.errors import BrokerError, LeveretError, PublishRefused
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Names, RMQExchangeConfig, Topology
from leveret.ports import Clock, Timer, Transport

log = logging.getLogger("leveret.alarms")

#: Parcels that wait for a broker or for people. Past that the oldest goes.
MOST_WAITING: Final = 1000
#: Seconds that a connection, and then the broker's answer, may take before people are told directly.
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
#: Seconds that a connection may take once the process wants to end.
_LAST_SECONDS: Final = 1.0
#: Seconds that a parcel which is no alarm may wait: it is told now or not at all.
MESSAGE_SECONDS: Final = 10.0
#: Seconds between tries while nobody answers.
_TRIES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: Messages that are sent before the first answer is waited for.
_BATCH: Final = 100
#: AMQP's delivery mode for messages that the broker keeps in memory only.
_TRANSIENT: Final = 1


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes to the alerts exchange, or to people."""

    routing_key: str
    body: bytes
    #: False: a message of the user's, which is tried once.
    is_alarm: bool


class _Waiting(NamedTuple):
    """A parcel, and since when it waits."""

    since: float
    parcel: Parcel


class People(Protocol):
    """Who is told where there is no broker: the URLs of `[notify]`."""

    @property
    def free_in(self) -> float:
        """Seconds until the rate lets another one through; 0: now."""

    async def tell(self, routing_key: str, body: bytes) -> bool:
        """Tell them, bounded in time; False where nobody could be told."""

    def close(self) -> None:
        """Tell nobody any more."""


class Line:
    """Carries parcels in their order, for ever trying, with bounded memory. It never raises and never emits.

    Args:
        names: of the namespace.
        clock: the world's.
        transport: makes the connection, in the loop that carries; it is made with the first parcel.
        borrowed: the connection is the app's own (memory://, tests): it is neither opened nor closed here, and as no
            other process can listen there, people are told as well.
        people: who is told where the broker does not answer; None: nobody, parcels wait for the broker.
    """

    def __init__(
        self,
        names: Names,
        *,
        clock: Clock,
        transport: Callable[[], Transport] | None,
        borrowed: bool = False,
        people: People | None = None,
    ) -> None:
        self._names = names
        self._clock = clock
        self._make_transport = transport
        self._borrowed = borrowed
        self._people = people
        self._transport: Transport | None = None
        self._opened = borrowed
        self._declared = False
        self._closing = False
        #: Answers that are overdue. Nothing is sent while one is: it would be overdue too, and might arrive twice.
        self._unsettled: set[asyncio.Future[None]] = set()
        #: Alarms, and messages of the user's, which must not push alarms out nor keep people from them.
        self._waiting: deque[_Waiting] = deque()
        self._messages: deque[_Waiting] = deque()
        #: What the broker has, and people are to be told as well.
        self._also_for_people: deque[_Waiting] = deque(maxlen=MOST_WAITING)
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._tries = 0
        #: When the broker is tried again, by the monotonic clock: a storm of alarms is no storm of connections.
        self._try_at = 0.0
        self._timer: Timer | None = None
        self._told_why = ""
        #: Parcels that were given up: too many, or a message that nobody took in time.
        self.dropped = 0

    def put(self, parcel: Parcel) -> None:
        """Carry it when those before are carried; where there is neither a broker nor anybody to tell, forget it."""
        if self._make_transport is None and self._people is None:
            return
        waiting = self._waiting if parcel.is_alarm else self._messages
        if len(waiting) >= MOST_WAITING:
            waiting.popleft()
            self.dropped += 1
        waiting.append(_Waiting(self._clock.monotonic(), parcel))
        self._empty.clear()
        self._arrived.set()

    async def run(self) -> None:
        """Carry, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            try:
                wait = await self._carry()
            except Exception:
                log.exception("alarms could not be carried; tried again")
                wait = _TRIES[-1]
            if self._closing or not (self._waiting or self._messages or self._also_for_people):
                self._empty.set()
            else:
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = self._clock.call_later(wait, self._arrived.set)

    async def flush(self) -> None:
        """Return when all is carried, or one more try has shown that it cannot be."""
        self._closing = True
        if not self._empty.is_set():
            self._arrived.set()
            await self._empty.wait()

    def discard(self) -> None:
        """Let go of the connection without a word: in a process that was forked off, where it is the parent's."""
        if self._transport is not None and not self._borrowed:
            self._transport.discard()

    async def close(self) -> None:
        """Let go of the connection."""
        if self._people is not None:
            self._people.close()
        if self._transport is not None and not self._borrowed:
            await self._transport.close()

    async def _carry(self) -> float:
        """Carry what waits; seconds until the next try where something is left."""
        why = await self._to_broker()
        if why:
            self._say(why)
            self._give_up_messages()
            await self._to_people(self._waiting)
        elif self._told_why:
            log.info("alarms reach %s again", self._names.alerts)
            self._told_why = ""
        await self._to_people(self._also_for_people)
        now = self._clock.monotonic()
        if not why:
            self._tries = 0
        elif now >= self._try_at:
            self._tries += 1
            self._try_at = now + _TRIES[min(self._tries, len(_TRIES)) - 1]
        return max(self._try_at - now, _TRIES[0])

    def _say(self, why: str) -> None:
        if why == self._told_why:
            return
        self._told_why = why
        then = (
            "they go to people directly"
            if self._people is not None
            else "they wait here, and stand in this log"
        )
        log.warning("alarms cannot be published to %s; %s: %s", self._names.alerts, then, why)

    # ── To the broker ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _to_broker(self) -> str:
        """Send what waits; why that did not work, empty where it did."""
        sendable = self._opened and self._transport is not None and self._transport.sendable
        if self._told_why and not sendable and not self._closing and self._clock.monotonic() < self._try_at:
            return self._told_why
        try:
            transport = await self._connected()
        except (LeveretError, OSError, TimeoutError) as error:
            return str(error) or type(error).__name__
        if transport is None:
            return "there is no broker"
        while self._waiting or self._messages:
            if not transport.sendable:
                return f"{transport.display} is {transport.state}"
            if why := await self._send(transport):
                return why
        return ""

    async def _connected(self) -> Transport | None:
        if self._make_transport is None:
            return None
        if self._transport is None:
            self._transport = self._make_transport()
        transport = self._transport
        patience = _LAST_SECONDS if self._closing else CONNECT_SECONDS
        if not self._opened:
            async with asyncio.timeout(patience):
                await transport.open()
            self._opened = True
        if not transport.sendable and not self._borrowed:
            # It reconnects by itself; a restart of the broker should not wake anybody.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await transport.ready()
        if not self._declared and transport.sendable:
            await self._declare(transport)
        return transport

    async def _declare(self, transport: Transport) -> None:
        try:
            await transport.declare(Topology(exchanges=(RMQExchangeConfig(self._names.alerts, "topic"),)))
        except BrokerError as error:
            # Somebody else may have declared it: whether it is there, the first message tells.
            log.warning("the exchange %s cannot be declared: %s", self._names.alerts, error)
        self._declared = True

    async def _send(self, transport: Transport) -> str:
        """Send some of what waits; why the broker has not all of it, and what it has not waits again."""
        if self._unsettled:
            return f"{transport.display} does not answer"
        sent: list[tuple[_Waiting, asyncio.Future[None]]] = []
        lost: list[str] = []
        for waiting in (self._waiting, self._messages):
            while waiting and len(sent) < _BATCH:
                one = waiting.popleft()
                try:
                    sent.append((one, transport.send(self._outgoing(one.parcel))))
                except (LeveretError, TypeError, ValueError) as error:
                    lost.append(str(error))
        # By real time, as everything here that waits for a broker.
        await asyncio.wait([answer for _, answer in sent] or [_done()], timeout=ANSWER_SECONDS)
        why = ""
        for one, answer in reversed(sent):
            if not answer.done():
                why = f"{transport.display} does not answer"
                self._unsettled.add(answer)
                answer.add_done_callback(partial(self._answered_late, one))
            elif (fault := answer.exception()) is not None:
                why = str(fault)
                # Somebody has deleted the exchange: it is declared again.
                self._declared = self._declared and not isinstance(fault, PublishRefused)
            else:
                if self._borrowed and self._people is not None and one.parcel.is_alarm:
                    self._also_for_people.append(one)
                continue
            if one.parcel.is_alarm:
                self._waiting.appendleft(one)
            else:
                lost.append(why)
        self._give_up(lost)
        while len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        return why

    def _answered_late(self, one: _Waiting, answer: asyncio.Future[None]) -> None:
        self._unsettled.discard(answer)
        if not answer.cancelled() and answer.exception() is None and one in self._waiting:
            self._waiting.remove(one)

    def _outgoing(self, parcel: Parcel) -> Outgoing:
        properties = Properties.build(
            content_type="application/json", delivery_mode=_TRANSIENT, timestamp=int(self._clock.now())
        )
        return Outgoing(self._names.alerts, parcel.routing_key, parcel.body, properties, mandatory=False)

    # ── To people ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _to_people(self, waiting: deque[_Waiting]) -> None:
        people = self._people
        while people is not None and waiting and people.free_in <= 0:
            one = waiting.popleft()
            with carrying():
                told = await people.tell(one.parcel.routing_key, one.parcel.body)
            if not told:
                waiting.appendleft(one)
                return

    def _give_up_messages(self) -> None:
        old = self._clock.monotonic() - MESSAGE_SECONDS
        lost: list[str] = []
        while self._messages and self._messages[0].since <= old:
            self._messages.popleft()
            lost.append(f"nobody took it in {MESSAGE_SECONDS:g} s")
        self._give_up(lost)

    def _give_up(self, lost: Sequence[str]) -> None:
        if lost:
            self.dropped += len(lost)
            log.warning(
                "messages to %s were dropped: %d, the last one because: %s",
                self._names.alerts,
                len(lost),
                lost[-1],
            )


def _done() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done
