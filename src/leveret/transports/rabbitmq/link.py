"""A connection that is kept up: made, lost, and made again, each time from scratch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from leveret.core.errors import AccessRefused, BrokerError, BrokerUnreachable, ConfigError
from leveret.ports import World
from leveret.transports.rabbitmq.connection import RawConnection
from leveret.transports.rabbitmq.errors import Gone

log = logging.getLogger("leveret.transports.rabbitmq")

#: Seconds to wait before each try to connect again.
DELAYS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: A connection that has lasted so many seconds was a good one: the next loss begins with the first delay again.
STABLE: Final = 10.0


class Backoff:
    """How long to wait before the next try: longer each time, and never in step with others.

    Example:
        >>> import random
        >>> from leveret.testing.worlds import fake_world
        >>> backoff = Backoff(fake_world())
        >>> all(delay / 2 <= backoff.next() <= delay for delay in (*DELAYS, 30.0))
        True
    """

    def __init__(self, world: World) -> None:
        self._clock: Final = world.clock
        self._random: Final = world.random
        self._tries = 0
        self._up_since: float | None = None

    def up(self) -> None:
        """It worked."""
        self._up_since = self._clock.monotonic()

    def next(self) -> float:
        """Seconds to wait now."""
        if self._up_since is not None and self._clock.monotonic() - self._up_since >= STABLE:
            self._tries = 0
        self._up_since = None
        delay = DELAYS[min(self._tries, len(DELAYS) - 1)]
        self._tries += 1
        return delay * self._random.uniform(0.5, 1.0)

    def slow(self) -> None:
        """Nothing will be better soon: wait the longest from here on."""
        self._tries = len(DELAYS)


class Link:
    """A connection that comes back by itself.

    Args:
        connect: makes a connection, or raises a BrokerError.
        world: clock and randomness.
        name: what it is for, in logs.
        built: builds on a new connection what belongs there; the connection counts as up when it returns.
        lost: told at once when the connection is gone.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[RawConnection]],
        *,
        world: World,
        name: str,
        built: Callable[[RawConnection], Awaitable[None]],
        lost: Callable[[Gone], object],
    ) -> None:
        self._connect: Final = connect
        self._clock: Final = world.clock
        self._backoff: Final = Backoff(world)
        self._name: Final = name
        self._built: Final = built
        self._lost: Final = lost
        self._keeping: asyncio.Task[None] | None = None
        #: The wait before the next try, while there is one.
        self._pause: asyncio.Future[None] | None = None
        self._waiting: list[asyncio.Future[RawConnection]] = []
        #: The connection, once all is built on it.
        self.connection: RawConnection | None = None
        #: Why the last try to connect again failed; None where there was none since the loss.
        self.failed: BrokerError | ConfigError | None = None
        self.trying = False

    @property
    def up(self) -> bool:
        """Whether it is connected, and all is built."""
        return self.connection is not None

    @property
    def is_open(self) -> bool:
        """Whether it is kept up: from `open` to `close`."""
        return self._keeping is not None

    @property
    def on_its_way(self) -> bool:
        """Whether it is being made, or was lost just now."""
        return self.trying or (self.is_open and self.connection is None and self.failed is None)

    async def open(self) -> None:
        """Connect, build, and keep it up from here on.

        Raises:
            BrokerError: the first connection could not be made.
        """
        try:
            connection = await self._made()
        except Gone as gone:
            raise BrokerUnreachable(f"{self._name}: {gone.words}, while it was being set up") from gone
        self._keeping = asyncio.create_task(self._keep(connection), name=f"leveret {self._name}")

    async def arrived(self) -> RawConnection:
        """The connection; where it was lost just now, the next one.

        Raises:
            BrokerUnreachable, AccessRefused: why there is none.
        """
        if self.connection is not None:
            return self.connection
        if self._keeping is None:
            raise BrokerUnreachable(f"{self._name} is not open. Open it first: await transport.open()")
        if self.failed is not None:
            raise type(self.failed)(str(self.failed))
        arrived: asyncio.Future[RawConnection] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        return await arrived

    async def attempted(self) -> None:
        """Return once it is up, or a try to connect again has failed, or it is closed."""
        if self._keeping is not None and self.connection is None and self.failed is None:
            arrived: asyncio.Future[RawConnection] = asyncio.get_running_loop().create_future()
            self._waiting.append(arrived)
            try:
                await asyncio.wait((arrived,))
            finally:
                # Whoever was cancelled meanwhile looks at no answer.
                arrived.cancel()
            if not arrived.cancelled():
                arrived.exception()

    async def close(self) -> None:
        """Take leave, for good."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            await asyncio.wait((keeping,))
        self._turn_away(BrokerUnreachable(f"{self._name} was closed"))
        if self.connection is not None:
            await self.connection.goodbye()

    async def cut(self) -> None:
        """End it without a word, and return when it has ended."""
        connection = self.connection
        self.abort()
        if connection is not None:
            await asyncio.wait((connection.gone,))

    def abort(self) -> None:
        """End it without a word, for good."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
        self._turn_away(BrokerUnreachable(f"{self._name} was closed"))
        if self.connection is not None:
            self.connection.abort()

    def hurry(self) -> None:
        """Try again at once, where it waits before its next try: somebody needs it now."""
        if self._pause is not None:
            self._pause.cancel()

    def retire(self) -> RawConnection | None:
        """Keep it up no longer. The connection, which goes on until whoever takes it ends it; None where it is down."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
        self._turn_away(BrokerUnreachable(f"{self._name} was replaced"))
        return self.connection

    def discard(self) -> None:
        """Forget what a loop left behind that is closed, or that runs in the process this one was forked off."""
        self._keeping = None
        if self.connection is not None:
            self.connection.discard()

    async def _keep(self, connection: RawConnection) -> None:
        while True:
            gone = await asyncio.shield(connection.gone)
            log.warning("%s: %s; connecting again", self._name, gone.words, extra={"action": "disconnected"})
            connection = await self._again()

    async def _again(self) -> RawConnection:
        while True:
            self._pause = asyncio.ensure_future(self._clock.sleep(self._backoff.next()))
            try:
                await asyncio.wait((self._pause,))
            finally:
                self._pause.cancel()
                self._pause = None
            try:
                connection = await self._made()
            except (BrokerError, ConfigError) as error:
                if isinstance(error, AccessRefused):
                    self._backoff.slow()
                self._fail(error)
            except Gone as gone:
                self._fail(BrokerUnreachable(f"{self._name}: {gone.words}, while it was being set up"))
            except Exception as error:
                # Whatever it is, whoever stops trying is gone for good.
                log.exception("%s: a fault of leveret's own", self._name, extra={"action": "connect"})
                self._fail(BrokerUnreachable(f"{self._name}: {error!r}, while it was being set up"))
            else:
                log.info("%s: connected again", self._name, extra={"action": "connected"})
                return connection

    async def _made(self) -> RawConnection:
        """A new connection, with all that belongs on it.

        Raises:
            BrokerError, ConfigError: why there is none.
            Gone: it went before all was built.
        """
        self.trying = True
        try:
            connection = await self._connect()
            connection.on_gone = self._gone
            try:
                await self._built(connection)
                if connection.gone.done():
                    raise connection.gone.result()
            except BaseException:
                connection.abort()
                raise
        finally:
            self.trying = False
        self._backoff.up()
        self.failed = None
        self.connection = connection
        waiting, self._waiting = self._waiting, []
        for arrived in waiting:
            if not arrived.done():
                arrived.set_result(connection)
        return connection

    def _fail(self, error: BrokerError | ConfigError) -> None:
        level = logging.ERROR if isinstance(error, AccessRefused) else logging.WARNING
        log.log(level, "%s: %s", self._name, error, extra={"action": "connect"})
        self._turn_away(error)
        self.failed = error

    def _turn_away(self, error: BrokerError | ConfigError) -> None:
        waiting, self._waiting = self._waiting, []
        for arrived in waiting:
            if not arrived.done():
                arrived.set_exception(error)

    def _gone(self, gone: Gone) -> None:
        self.connection = None
        self._lost(gone)
