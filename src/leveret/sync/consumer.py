"""Consuming on the calling thread: the loop fills an inbox, and the thread handles one message after the other (T8).

The I/O thread goes on meanwhile, so that heartbeats are answered however long a handler takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from leveret.core.errors import BrokerUnreachable, LeveretError, NotFound, TransportUnavailableError
from leveret.core.topology import Topology
from leveret.ports import World
from leveret.sync.line import Line
from leveret.sync.portal import Portal

log = logging.getLogger("leveret.sync")

#: Seconds between looks whether the thread is to stop.
POLL: Final = 0.1
#: Seconds that leaving may take once `stop` is set and no handler runs; what is left is done behind its back.
LEAVE: Final = 0.3
#: Seconds before another try to consume, for as long as it fails.
AGAIN: Final = (1.0, 2.0, 4.0, 5.0)
#: Seconds between looks at what runs.
LOOK_EVERY: Final = 60.0
#: Seconds after which a run is told of: RabbitMQ wants its ack within 30 minutes, unless it is set otherwise.
LONG: Final = 25 * 60.0


class Work(Protocol):
    """A message that was given out."""

    @property
    def stale(self) -> bool:
        """Whether the broker has it back."""

    def expired(self) -> bool:
        """Whether nobody waits for it any more."""


W = TypeVar("W", bound=Work)
W_contra = TypeVar("W_contra", bound=Work, contravariant=True)


class Server(Protocol[W_contra]):
    """Who takes messages of a queue from the broker, and settles them; on the loop."""

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""

    async def start(self) -> None:
        """Take messages."""

    async def stop(self) -> None:
        """Take no more."""

    async def finish(self, work: W_contra, result: object, /) -> None:
        """Its handler has ended."""

    def skip(self, work: W_contra, /) -> None:
        """It was not started, as nobody waits for it, or the broker has it back."""

    def give_back(self, work: W_contra, /) -> None:
        """It was not started: back to its queue."""


class Consumer(Generic[W]):
    """One loop of a thread over one queue.

    Args:
        portal: whose loop it is.
        line: of the transport.
        world: clock.
        queue: whose messages.
        topology: declared first.
        server: made of the inbox's `put`.
        run: handles one; what it returns or raises is the result.
    """

    def __init__(
        self,
        portal: Portal,
        line: Line,
        world: World,
        *,
        queue: str,
        topology: Topology,
        server: Callable[[Callable[[W], object]], Server[W]],
        run: Callable[[W], object],
    ) -> None:
        self.queue: Final = queue
        self._portal: Final = portal
        self._line: Final = line
        self._clock: Final = world.clock
        self._topology: Final = topology
        self._inbox: Final[SimpleQueue[W]] = SimpleQueue()
        self._server: Final = server(self._inbox.put)
        self._run: Final = run
        #: Since when a handler has been running, by the system's monotonic clock.
        self._running_since: float | None = None
        self._watching: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""
        return self._server.consuming

    def until(self, stop: threading.Event) -> None:
        """Handle messages until *stop* is set, whatever happens to the broker.

        Raises:
            TransportUnavailableError: the broker does not let us in; or the transport was closed before *stop*.
            BrokerError: the queue cannot be used as it is, or somebody else consumes it alone.
        """
        begun = self._portal.start(self._begin())
        try:
            while not stop.is_set():
                try:
                    work = self._inbox.get(timeout=POLL)
                except Empty:
                    if begun.done():
                        begun.result()
                    if self._portal.closed:
                        raise self._closed() from None
                    continue
                if stop.is_set():
                    self._on_loop(partial(self._server.give_back, work))
                elif work.stale or work.expired():
                    self._on_loop(partial(self._server.skip, work))
                else:
                    self._handle(work)
        except TransportUnavailableError:
            if not (stop.is_set() and self._portal.closed):
                raise
        finally:
            self._leave(begun)

    def _handle(self, work: W) -> None:
        self._running_since = monotonic()
        result: object
        try:
            result = self._run(work)
        except BaseException as error:
            if _ends_the_thread(error):
                self._on_loop(partial(self._server.give_back, work))
                raise
            trace = error.__traceback__
            # It begins with the user's own lines: whoever writes the dead letter leaves out one more of ours.
            result = error.with_traceback(None if trace is None else trace.tb_next)
        finally:
            self._running_since = None
        self._on_loop(partial(self._finish, work, result))

    def _finish(self, work: W, result: object) -> None:
        self._line.keep(self._server.finish(work, result))

    def _on_loop(self, call: Callable[[], object]) -> None:
        try:
            self._portal.submit(call)
        except TransportUnavailableError:
            if self._portal.closed:
                # With its connection the broker got the message back.
                raise self._closed() from None
            raise

    def _closed(self) -> TransportUnavailableError:
        return TransportUnavailableError(
            f"the transport was closed while {self.queue} was consumed. What was unsettled is back in its queue"
        )

    def _leave(self, begun: Future[None]) -> None:
        """Give back what was not started. What has ended may still be on its way to the broker."""
        begun.cancel()
        with contextlib.suppress(LeveretError, TimeoutError):
            self._quietly(self._end()).result(LEAVE)

    def _quietly(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        try:
            return self._portal.start(work)
        except BaseException:
            work.close()
            raise

    # ── On the loop ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> None:
        self._watching = asyncio.create_task(self._watch(), name="leveret long runs")
        tries = 0
        while True:
            try:
                await self._line.connected()
                for sentence in await self._line.transport.declare(self._topology):
                    log.warning("%s", sentence, extra={"action": "declare"})
                # Finished once begun: a consumer that nobody knows of would hand out messages for ever.
                self._starting = asyncio.ensure_future(self._server.start())
                await asyncio.shield(self._starting)
            except (BrokerUnreachable, NotFound) as error:
                wait = AGAIN[min(tries, len(AGAIN) - 1)]
                log.warning("%s is not consumed for now: %s", self.queue, error, extra={"action": "consume"})
                tries += 1
                await self._clock.sleep(wait)
            else:
                return

    async def _end(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._starting is not None and not self._starting.done():
            await asyncio.wait((self._starting,))
        # Before the broker has heard of it, so that no more is put in behind.
        stopping = asyncio.ensure_future(self._server.stop())
        await asyncio.sleep(0)
        self._empty()
        await stopping
        self._empty()
        # What has just been handled is acked before its thread goes on.
        await asyncio.sleep(0)

    def _empty(self) -> None:
        while True:
            try:
                work = self._inbox.get_nowait()
            except Empty:
                return
            self._server.give_back(work)

    async def _watch(self) -> None:
        told: float | None = None
        while True:
            since = self._running_since
            if since is not None and since != told and monotonic() - since >= LONG:
                told = since
                log.warning(
                    "a handler of %s has been running for %.0f min. The broker waits 30 min for an ack (its "
                    "consumer_timeout, unless it is set otherwise); then it hands the message out again, which is not "
                    "run twice by this process. Have more time: consumer_timeout in rabbitmq.conf",
                    self.queue, LONG / 60, extra={"action": "long_run", "queue": self.queue},
                )  # fmt: skip
            await self._clock.sleep(LOOK_EVERY)


def _ends_the_thread(error: BaseException) -> bool:
    """Whether the program is to end, as by Ctrl+C, and the handler that was at work has not failed.

    What handles a signal, and may exit, runs on the main thread alone. Anywhere else a SystemExit is the handler's own:
    the thread would end without a word, and so would the next one that is given the message.
    """
    if isinstance(error, SystemExit):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt)
