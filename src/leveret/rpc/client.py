"""Calling: a request to a queue, and its answer, told apart from every way in which there can be none (T5)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from leveret.core.errors import (
    BadPayload,
    BrokerError,
    LeveretError,
    PublishError,
    PublishRefused,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    TransportUnavailableError,
)
from leveret.core.message import Outgoing
from leveret.core.properties import Properties, check_short
from leveret.core.seconds import Seconds, seconds
from leveret.pipeline.parts import log
from leveret.ports import CallChannel, World
from leveret.rpc.wire import Answer, read, request, written

#: Seconds that a call waits for its answer, where its caller does not say.
TIMEOUT: Final = 5.0
#: Correlation ids that callers gave lately: a late answer to one of them must not be taken for that of another call.
REMEMBERED: Final = 10_000
#: A broker that finds a body too large closes the channel over it. One of so many bytes travels on a channel of its
#: own, so that no other call pays for it.
LARGE: Final = 1_000_000


class CallsOut(Protocol):
    """What calls need of a transport; see `leveret.ports.Transport`."""

    @property
    def display(self) -> str:
        """The broker's address as it may be shown."""

    async def call_channel(
        self,
        *,
        on_reply: Callable[[bytes, Properties], object],
        on_return: Callable[[str], object],
        on_gone: Callable[[PublishError], object],
    ) -> CallChannel:
        """A new channel for calls."""


class RpcClient:
    """Calls queues through one transport. All calls share one channel, and one connection that is theirs alone.

    Args:
        transport: open, or to be opened before the first call.
        world: clock and ids.

    Example:
        ```
        client = RpcClient(transport, world)
        await client.call("shop.price.req", {"id": 1}, timeout=2)
        ```
    """

    def __init__(self, transport: CallsOut, world: World) -> None:
        self._transport: Final = transport
        self._clock: Final = world.clock
        self._new_id: Final = world.new_id
        self._shared: _Way | None = None
        self._opening: asyncio.Task[_Way] | None = None
        self._used: OrderedDict[str, None] = OrderedDict()
        #: Channels of single calls.
        self._apart: set[_Way] = set()

    @property
    def waiting(self) -> int:
        """Calls without an answer."""
        return sum(len(way.calls) for way in (self._shared, *self._apart) if way is not None)

    async def call(
        self,
        queue: str,
        payload: Any,
        *,
        correlation_id: str | None = None,
        timeout: Seconds = TIMEOUT,
    ) -> dict[str, Any]:
        """As `ask`, but only what the answer says."""
        answer = await self.ask(queue, payload, correlation_id=correlation_id, timeout=timeout)
        return answer.payload

    async def ask(
        self,
        queue: str,
        payload: Any,
        *,
        correlation_id: str | None = None,
        timeout: Seconds = TIMEOUT,
    ) -> Answer:
        """Send a request, and return its answer.

        Cancelling it leaves nothing behind; the request may be obeyed all the same.

        Args:
            queue: who is called.
            payload: what JSON carries, as an object: a dict, a dataclass, a pydantic model; None: an empty one.
            correlation_id: minted where it is None. One that is in use already is no fault.
            timeout: seconds until the call is given up. Nobody starts on the request after that.

        Raises:
            ValueError: queue, id or timeout cannot be meant; nothing was sent.
            BadPayload: the payload cannot be written as a JSON object; nothing was sent.
            RpcUnreachableError: nobody has such a queue; told at once.
            RpcTimeoutError: no answer in time.
            RpcRemoteError: it was answered with an error.
            RpcUnknownError: the connection went; the request may be obeyed, or not.
            TransportUnavailableError: not connected, or the broker takes no messages; nothing was sent.
        """
        limit = patience(timeout)
        if not isinstance(queue, str) or not queue:
            raise BadPayload(f"queue {queue!r}: expected text of at least one character. Nothing was sent.")
        check_short(queue, "queue")
        given = correlation_id is not None
        if correlation_id is not None and (not isinstance(correlation_id, str) or not correlation_id):
            raise BadPayload(f"correlation_id={correlation_id!r}: expected text. Nothing was sent.")
        id = self._new_id() if correlation_id is None else check_short(correlation_id, "correlation_id")
        body = written(payload, f'"{queue}" is called with')
        since = self._clock.monotonic()
        call = _Call(queue, id, limit, asyncio.get_running_loop().create_future())
        timer = self._clock.call_later(limit, call.late)
        way: _Way | None = None
        try:
            if len(body) >= LARGE or (given and self._in_use(id)):
                way = await self._own_way(call)
            else:
                way = self._shared or await self._shared_way(call)
            sent_at = self._clock.monotonic()
            left = limit - (sent_at - since)
            way.send(call, request(queue, body, correlation_id=id, message_id=self._new_id(), seconds=left))
            reply = await call.answer
        finally:
            timer.cancel()
            call.forget()
            if way is not None:
                way.forget(call)
                if way is not self._shared and way in self._apart:
                    self._apart.discard(way)
                    way.channel.leave()
        return read(queue, *reply, seconds=self._clock.monotonic() - sent_at)

    def _in_use(self, id: str) -> bool:
        """Whether that id was given lately; noted."""
        known = id in self._used or (self._shared is not None and id in self._shared.calls)
        self._used[id] = None
        self._used.move_to_end(id)
        if len(self._used) > REMEMBERED:
            self._used.popitem(last=False)
        return known

    # ── Ways out ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _shared_way(self, call: _Call) -> _Way:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="leveret calls")
            self._opening.add_done_callback(self._opened)
        # Others may wait for it, so that it goes on where this call is given up.
        return await _or_late(self._opening, call)

    def _opened(self, opening: asyncio.Task[_Way]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None and opening.result().gone is None:
            self._shared = opening.result()

    async def _own_way(self, call: _Call) -> _Way:
        opening = asyncio.create_task(self._open(), name="leveret call")
        try:
            way = await _or_late(opening, call)
        except BaseException:
            opening.add_done_callback(_close_unused)
            raise
        self._apart.add(way)
        return way

    async def _open(self) -> _Way:
        way = _Way(self._transport.display)
        try:
            way.channel = await self._transport.call_channel(
                on_reply=way.replied, on_return=way.returned, on_gone=partial(self._lost, way)
            )
        except BrokerError as error:
            raise TransportUnavailableError(f"not connected, so nothing was sent: {error}") from error
        return way

    def _lost(self, way: _Way, error: PublishError) -> None:
        if way is self._shared:
            self._shared = None
            # Nothing that was called over it can be answered any more.
            self._used.clear()
        self._apart.discard(way)
        way.lost(error)


class _Call:
    """A call under way."""

    def __init__(
        self, queue: str, id: str, limit: float, answer: asyncio.Future[tuple[bytes, Properties]]
    ) -> None:
        self.queue: Final = queue
        self.id: Final = id
        self.limit: Final = limit
        self.answer: Final = answer
        #: By what name its channel speaks of the request; None while it was not sent.
        self.sent: str | None = None

    @property
    def about(self) -> str:
        """The call in words."""
        return f"{self.queue} (correlation id {self.id})"

    def fail(self, error: LeveretError) -> None:
        """It ends so, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def late(self) -> None:
        """Its time is up."""
        if self.sent is None:
            self.fail(
                TransportUnavailableError(
                    f"no connection for calls in {self.limit:g} s: nothing was sent to {self.about}"
                )
            )
        else:
            self.fail(
                RpcTimeoutError(
                    f"no answer from {self.about} in {self.limit:g} s. Nobody starts on the request any more, but "
                    "somebody may be at it, or done with it"
                )
            )

    def forget(self) -> None:
        """Nobody waits any more."""
        if not self.answer.cancel() and not self.answer.cancelled():
            # Looked at, so that asyncio does not complain where the caller was cancelled meanwhile.
            self.answer.exception()


#: Reply codes of AMQP 0-9-1 (constants: access-refused, internal-error).
_ACCESS_REFUSED: Final = 403
_INTERNAL_ERROR: Final = 541


class _Way:
    """A call channel, and the calls that wait for replies on it."""

    channel: CallChannel

    def __init__(self, display: str) -> None:
        #: By correlation id, and by the name under which a request may come back.
        self.calls: Final[dict[str, _Call]] = {}
        self._sent: Final[dict[str, _Call]] = {}
        self.gone: PublishError | None = None
        self._display: Final = display

    def send(self, call: _Call, request: Outgoing) -> None:
        """Have the request go out, and replies with its id reach the call."""
        if call.answer.done():
            return
        if self.gone is not None:
            call.fail(TransportUnavailableError(f"nothing was sent to {call.about}: {self.gone}"))
        elif self.channel.blocked:
            # Read once the alarm is over, it would be obeyed long after its caller has given up.
            call.fail(
                TransportUnavailableError(
                    f"{self._display} is blocked by a memory or disk alarm: nothing was sent to {call.about}"
                )
            )
        else:
            try:
                call.sent = self.channel.send(request)
            except PublishRefused as error:
                call.fail(TransportUnavailableError(f"the request to {call.about} cannot be sent: {error}"))
            else:
                self.calls[call.id] = self._sent[call.sent] = call

    def forget(self, call: _Call) -> None:
        """Nobody waits for that call any more."""
        if call.sent is not None:
            self.calls.pop(call.id, None)
            self._sent.pop(call.sent, None)

    def replied(self, body: bytes, properties: Properties) -> None:
        """A reply came."""
        id = properties.correlation_id
        call = None if id is None else self.calls.get(id)
        if call is None or call.answer.done():
            log.debug(
                "a reply nobody waits for was dropped: correlation id %s, %d bytes", id, len(body),
                extra={"action": "reply"},
            )  # fmt: skip
        else:
            call.answer.set_result((body, properties))

    def returned(self, name: str) -> None:
        """A request came back."""
        call = self._sent.get(name)
        if call is not None:
            call.fail(
                RpcUnreachableError(
                    f"nobody answers at {call.about}: there is no such queue (312 NO_ROUTE). Whoever serves it "
                    "declares it at its start"
                )
            )

    def lost(self, error: PublishError) -> None:
        """The channel is gone, and with it the address that replies would come to."""
        self.gone = error
        # Where one call is under way nobody else can have been the cause; without permission all are refused. A broker
        # that failed within (541) accuses nobody: it may have handed the request over before.
        code = error.code if isinstance(error, PublishRefused) else _INTERNAL_ERROR
        alone = len(self.calls) == 1
        for call in self.calls.values():
            if code == _ACCESS_REFUSED or (alone and code != _INTERNAL_ERROR):
                call.fail(TransportUnavailableError(f"the request to {call.about} was refused: {error}"))
            else:
                call.fail(
                    RpcUnknownError(
                        f"the connection went during a call to {call.about}, so that the request may be obeyed, or "
                        f"not: {error}"
                    )
                )


async def _or_late(opening: asyncio.Task[_Way], call: _Call) -> _Way:
    """What *opening* gives.

    Raises:
        TransportUnavailableError: there is no connection, or none in time.
    """
    either: set[asyncio.Future[Any]] = {opening, call.answer}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if opening.done():
        return opening.result()
    await call.answer
    raise AssertionError("nothing was sent that could be answered")


def _close_unused(opening: asyncio.Task[_Way]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().channel.leave()


def patience(timeout: object, name: str = "timeout") -> float:
    """*timeout* as seconds that an answer may take.

    Raises:
        ValueError: none that can be waited for, or none at all.
    """
    limit = seconds(timeout, name)
    if limit == 0:
        raise ValueError(f"{name}=0: no answer comes in no time. Nothing was sent.")
    return limit
