"""NotifyService: takes alerts off a queue of its own and tells every address, until each has it (A3)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict, deque
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.alarms.people import Rate
from leveret.core.alarm import read_alert
from leveret.core.topology import Binding, Names, Queue, RMQExchangeConfig, Topology
from leveret.ports import Delivery, Subscription, Threads, Transport, World

if TYPE_CHECKING:
    from leveret.alarms.notify import Notifier

log = logging.getLogger("leveret.alarms")

#: Alarms that wait while nobody runs `leveret notify`; the oldest make room for new ones.
MOST_QUEUED: Final = 1000
#: Alerts in hand, unacked.
PREFETCH: Final = 100
#: Seconds between two tries at an address that does not take an alarm.
BACKOFF: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 60.0)
#: Seconds after which an address is given up for an alarm: it would be news no longer.
GIVE_UP_AFTER: Final = 3600.0
#: Seconds that a message which is being sent gets at the end.
LAST_SECONDS: Final = 10.0
#: Alerts that an address is known to have: those that come again after a lost connection are not told twice.
_REMEMBERED: Final = 1000


class NotifyService:
    """Tells people what comes through the alerts exchange.

    The queue `<namespace>.alerts.notify` keeps up to 1000 alerts while this is down, which disturbs nobody. Each
    address has a rate and retries of its own, so that one which is down holds up no other. An alert is acked once every
    address has it, or was given up for it.

    Args:
        names: of the namespace.
        transport: connected.
        notifier: who is told.
        world: clock and threads.
    """

    def __init__(self, names: Names, transport: Transport, notifier: Notifier, *, world: World) -> None:
        self._names = names
        self._transport = transport
        self._notifier = notifier
        self._threads = world.threads(max(1, len(notifier.shown)), "leveret-notify")
        self._lanes = [_Lane(notifier, number, self._threads, world) for number in range(len(notifier.shown))]
        self._subscription: Subscription | None = None

    @property
    def queue(self) -> str:
        """Where alerts wait for it."""
        return f"{self._names.alerts}.notify"

    async def start(self) -> None:
        """Declare the queue, and begin to tell.

        Raises:
            QueueMismatch, AccessRefused: as `Transport.declare` says.
        """
        for sentence in await self._transport.declare(self._topology()):
            log.warning("%s", sentence)
        for lane in self._lanes:
            lane.start()
        self._subscription = await self._transport.consume(self.queue, self._take, prefetch=PREFETCH)

    async def stop(self) -> None:
        """Take no more. What not everybody has goes back to the queue."""
        if self._subscription is not None:
            await self._subscription.cancel()
        await asyncio.gather(*(lane.stop() for lane in self._lanes))
        self._threads.close()

    def _topology(self) -> Topology:
        return Topology(
            exchanges=(RMQExchangeConfig(self._names.alerts, "topic"),),
            queues=(Queue(self.queue, "classic", {"x-max-length": MOST_QUEUED}),),
            bindings=(Binding(self._names.alerts, self.queue, "#"),),
        )

    def _take(self, delivery: Delivery) -> None:
        told = read_alert(delivery.routing_key, delivery.body)
        if not self._notifier.wants(told):
            delivery.ack()
            return
        letter = _Letter(delivery, told, len(self._lanes))
        for lane in self._lanes:
            lane.put(letter)


class _Letter:
    """An alert, and how many addresses are still to have it."""

    __slots__ = ("_left", "delivery", "mark", "told")

    def __init__(self, delivery: Delivery, told: Mapping[str, Any], addresses: int) -> None:
        self.delivery = delivery
        self.told = told
        self.mark = hashlib.sha256(delivery.routing_key.encode() + b"\0" + delivery.body).digest()
        self._left = addresses

    def done(self) -> None:
        """One address has it, or never will."""
        self._left -= 1
        if self._left == 0:
            # Where the connection went meanwhile it comes again, and nobody is told twice.
            self.delivery.ack()


class _Lane:
    """One address: tells it one alert after another."""

    def __init__(self, notifier: Notifier, number: int, threads: Threads, world: World) -> None:
        self._notifier = notifier
        self._number = number
        self._threads = threads
        self._clock = world.clock
        self._rate = Rate(world.clock)
        self._letters: deque[_Letter] = deque()
        self._arrived = asyncio.Event()
        self._has: OrderedDict[bytes, None] = OrderedDict()
        self._telling: asyncio.Task[None] | None = None
        self._sending = False
        self._closing = False

    def start(self) -> None:
        """Begin to tell."""
        self._telling = asyncio.create_task(
            self._tell(), name=f"leveret notify {self._notifier.shown[self._number]}"
        )

    async def stop(self) -> None:
        """Tell no more; what is being sent is waited for, so that it is not sent again by the next one."""
        self._closing = True
        if self._telling is None:
            return
        if self._sending:
            await asyncio.wait([self._telling], timeout=LAST_SECONDS)
        self._telling.cancel()
        await asyncio.wait([self._telling])

    def put(self, letter: _Letter) -> None:
        """Tell it when those before are told."""
        # After a lost connection the broker hands over again what is still being told here.
        for waiting in self._letters:
            if waiting.mark == letter.mark:
                self._letters.remove(waiting)
                break
        self._letters.append(letter)
        self._arrived.set()

    async def _tell(self) -> None:
        while not self._closing:
            await self._arrived.wait()
            self._arrived.clear()
            while self._letters and not self._closing:
                letter = self._letters.popleft()
                if letter.mark not in self._has and not await self._settled(letter):
                    return
                self._has[letter.mark] = None
                if len(self._has) > _REMEMBERED:
                    self._has.popitem(last=False)
                letter.done()

    async def _settled(self, letter: _Letter) -> bool:
        """Whether the address has it, or is given up for it; False: we stop before either."""
        try:
            return await self._until_told(letter)
        except Exception:
            # A fault of ours must not silence the address for good.
            log.exception("an alarm could not be told")
            return True

    async def _until_told(self, letter: _Letter) -> bool:
        clock = self._clock
        until = clock.monotonic() + GIVE_UP_AFTER
        tries = 0
        while True:
            await clock.sleep(self._rate.free_in)
            self._rate.count()
            self._sending = True
            try:
                sent = await self._threads.run(partial(self._notifier.send, self._number, letter.told))
            finally:
                self._sending = False
            if not sent.why:
                if tries:
                    log.info("%s", sent)
                return True
            wait = BACKOFF[min(tries, len(BACKOFF) - 1)]
            tries += 1
            if clock.monotonic() + wait > until:
                log.error("%s; given up for %s", sent, letter.told["code"])
                return True
            log.warning("%s; again in %g s", sent, wait)
            if self._closing:
                return False
            await clock.sleep(wait)
