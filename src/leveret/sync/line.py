"""Line: the loop's side of a transport. It connects when first needed, and tries on until it is connected."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, Final

from leveret.core.errors import (
    AccessRefused,
    BrokerError,
    ConfigError,
    NotFound,
    TransportUnavailableError,
)
from leveret.core.topology import Topology
from leveret.ports import CallChannel, Transport, World

log = logging.getLogger("leveret.sync")

#: Seconds before each further try to connect for the first time; afterwards the transport comes back by itself.
FIRST_DELAYS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: Seconds that a new publishing connection may take (T2).
RENEWAL: Final = 2.0
#: Seconds that outcomes of handlers have to reach the broker at the end.
LAST_MOMENT: Final = 1.0


class TransportHealth(Enum):
    """Where a sync transport stands."""

    #: Never connected yet, or closed.
    DISCONNECTED = "disconnected"
    #: The connection is away, and is being made again.
    RECONNECTING = "reconnecting"
    #: Connected, also where the broker takes no messages for now.
    CONNECTED = "connected"


class Line:
    """A transport that is opened when first needed. On its portal's loop only, but for `health`.

    Args:
        transport: not open yet.
        world: clock and randomness.
        needs: declared once connected, and again after each reconnect.
        opened: told when it has been connected for the first time.

    Attributes:
        display: the broker's address as it may be shown.
        renewals: how many new publishing connections were made because of a doubt.
    """

    def __init__(
        self, transport: Transport, *, world: World, needs: Topology, opened: Callable[[], object]
    ) -> None:
        self.transport: Final = transport
        self.display: Final = transport.display
        self.renewals = 0
        self._world: Final = world
        self._needs: Final = needs
        self._open = False
        self._closed = False
        self._attempt: asyncio.Task[None] | None = None
        self._trying_on: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._kept: set[asyncio.Future[Any]] = set()
        self._opened: Final = opened
        #: What the last try came to.
        self._failed: BrokerError | ConfigError | None = None

    @property
    def health(self) -> TransportHealth:
        """Where it stands; any thread may ask."""
        if self._closed:
            return TransportHealth.DISCONNECTED
        if not self._open:
            return TransportHealth.DISCONNECTED if self._trying_on is None else TransportHealth.RECONNECTING
        connected = self.transport.state in {"connected", "blocked"}
        return TransportHealth.CONNECTED if connected else TransportHealth.RECONNECTING

    @property
    def is_open(self) -> bool:
        """Whether it has been connected, and keeps itself so."""
        return self._open

    @property
    def sendable(self) -> bool:
        """Whether a publish would go out now."""
        return self._open and self.transport.sendable

    @property
    def blocked(self) -> bool:
        """Whether the broker is known to take no messages for now."""
        return self._open and self.transport.state == "blocked"

    @property
    def why(self) -> str:
        """Why nothing goes out, in words."""
        if self.blocked:
            return f"{self.transport.display} is blocked by an alarm of the broker (memory or disk)"
        if not self._open and self._failed is not None:
            return str(self._failed)
        return f"the connection to {self.transport.display} is {self.transport.state}"

    async def connected(self) -> None:
        """Return when it has been connected; without end, where nobody answers.

        Raises:
            TransportUnavailableError: the broker does not let us in, with its words; or it is closed.
        """
        if self._open:
            return
        self.try_on()
        if self._open:
            return
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[arrived] = None
        try:
            await arrived
        finally:
            # Whoever gave up leaves nothing behind: the broker may be away for days.
            self._waiting.pop(arrived, None)

    async def call_channel(self, **told: Any) -> CallChannel:
        """As the transport's, once it has been connected."""
        await self.connected()
        return await self.transport.call_channel(**told)

    async def attempt(self) -> None:
        """Try to connect, once; a try that is under way is shared.

        Raises:
            BrokerError, ConfigError: it failed.
        """
        if self._open:
            return
        if self._attempt is None:
            self._attempt = asyncio.create_task(self._connect(), name="leveret connect")
            self._attempt.add_done_callback(self._attempted)
        await asyncio.shield(self._attempt)

    def _attempted(self, attempt: asyncio.Task[None]) -> None:
        self._attempt = None
        if not attempt.cancelled():
            # Looked at, so that asyncio does not complain where all who shared it have given up.
            attempt.exception()

    async def _connect(self) -> None:
        try:
            await self.transport.open()
        except (BrokerError, ConfigError) as error:
            self._failed = error
            raise
        await self.declare_needs()
        self._open = True
        self._opened()
        for arrived in self._waiting:
            if not arrived.done():
                arrived.set_result(None)

    async def declare_needs(self) -> None:
        """Make sure that exchanges and dead-letter queue are there. Who may not declare may yet publish."""
        try:
            for sentence in await self.transport.declare(self._needs):
                log.warning("%s", sentence, extra={"action": "declare"})
        except (BrokerError, NotFound) as error:
            log.error("declaring exchanges and dead letters: %s", error, extra={"action": "declare"})

    def try_on(self) -> None:
        """See to it that it connects, sooner or later."""
        if self._trying_on is None and not self._open and not self._closed:
            self._trying_on = asyncio.create_task(self._try_on(), name="leveret first connection")

    async def _try_on(self) -> None:
        try:
            tries = 0
            while not self._open:
                try:
                    await self.attempt()
                except (AccessRefused, ConfigError) as error:
                    log.error("%s", error, extra={"action": "connect"})
                    self._turn_away(TransportUnavailableError(f"{as_sentence(str(error))} Nothing was sent"))
                    return
                except Exception as error:
                    fault = not isinstance(error, BrokerError)
                    log.log(
                        logging.ERROR if fault else logging.WARNING,
                        "%s; trying again", error, exc_info=fault, extra={"action": "connect"},
                    )  # fmt: skip
                    delay = FIRST_DELAYS[min(tries, len(FIRST_DELAYS) - 1)]
                    tries += 1
                    await self._world.clock.sleep(delay * self._world.random.uniform(0.5, 1.0))
        finally:
            self._trying_on = None

    def _turn_away(self, error: TransportUnavailableError) -> None:
        for arrived in self._waiting:
            if not arrived.done():
                arrived.set_exception(error)

    async def renewed(self, seen: int) -> None:
        """Return when publishes go over another connection than the one that was in use at *seen* renewals.

        One attempt is shared by all who ask.

        Raises:
            BrokerError, ConfigError: none could be made.
            TimeoutError: it took too long.
        """
        if self.renewals != seen:
            return
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew(), name="leveret new publishing connection")
            self._renewing.add_done_callback(self._renewal_ended)
        await asyncio.shield(self._renewing)

    def _renewal_ended(self, renewing: asyncio.Task[None]) -> None:
        self._renewing = None
        if not renewing.cancelled():
            renewing.exception()

    async def _renew(self) -> None:
        async with asyncio.timeout(RENEWAL):
            if self._open:
                await self.transport.renew_publishing()
            else:
                await self.attempt()
        self.renewals += 1

    def keep(self, work: Coroutine[Any, Any, object]) -> None:
        """Let *work* go on by itself."""
        task = asyncio.ensure_future(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def close(self) -> None:
        """Disconnect, for good. What goes on by itself gets a moment to come to its end."""
        self._closed = True
        if self._kept:
            await asyncio.wait(self._kept, timeout=LAST_MOMENT)
        self._turn_away(TransportUnavailableError("the transport was closed: nothing was sent"))
        for task in (self._trying_on, self._attempt, self._renewing):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
        await self.transport.close()


def as_sentence(why: str) -> str:
    """*why* with a full stop, unless it asks something.

    Example:
        >>> as_sentence("nobody answers"), as_sentence("Is RabbitMQ running there?")
        ('nobody answers.', 'Is RabbitMQ running there?')
    """
    return why if why.endswith((".", "?", "!")) else f"{why}."
