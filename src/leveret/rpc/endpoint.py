"""`@app.rpc`: a handler that answers the requests of one channel, as it is declared and as it runs."""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final, Literal, cast

from leveret.core import handover
from leveret.core.errors import WorkerDefinition
from leveret.core.instances import (
    DEFAULT_INSTANCE_KEY,
    INSTANCE_CHANNELS,
    SINGLE_ACTIVE_CONSUMER,
    RpcChannel,
    channel_topology,
)
from leveret.core.payload import Decode
from leveret.core.properties import check_short
from leveret.core.seconds import whole
from leveret.core.topology import Names, Queue, QueueType, RMQExchangeConfig, Topology
from leveret.pipeline.context import Context
from leveret.pipeline.parts import Parts
from leveret.pipeline.publishing import Publisher
from leveret.pipeline.worker import MOST_PREFETCH, location_of, name_of, signature_of
from leveret.ports import Threads
from leveret.rpc.server import Request, RpcServer

OPTIONS: Final = ("prefetch", "single", "queue_type")
#: Requests in hand at once where nothing is said, and the channel is no ordered one.
PREFETCH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcSpec:
    """One channel that an app answers: its queue's options, its handler, and how the handler wants to be called."""

    #: A channel of the namespace, or, with a dot in it, a queue.
    name: str
    handler: Callable[..., Any]
    #: `async def` runs on the loop, plain `def` in a thread.
    is_async: bool
    #: Which of "payload" and "context" the handler's parameters are, in their order.
    takes: tuple[Literal["payload", "context"], ...]
    #: The handler wants the body as it came, whatever its content type.
    raw: bool
    decode: Decode
    #: file:line, for errors.
    location: str
    prefetch: int
    #: One consumer at a time, across all processes.
    single: bool
    queue_type: QueueType | None = None

    def queue(self, namespace: str) -> str:
        """The queue whose requests it answers."""
        return rpc_queue(self.name, namespace)

    def topology(self, names: Names, queue_type: QueueType) -> Topology:
        """Its queue, durable and dead-lettered; that of a channel is bound on the direct exchange as well."""
        if "." in self.name:
            arguments: dict[str, Any] = {"x-dead-letter-exchange": names.dead_letters}
            if self.single:
                arguments[SINGLE_ACTIVE_CONSUMER] = True
            return Topology(queues=(Queue(self.name, self.queue_type or queue_type, arguments),))
        channel = channel_topology(
            RpcChannel(self.name, ordered=self.single), DEFAULT_INSTANCE_KEY, names.namespace
        )
        queues = tuple(replace(queue, queue_type=self.queue_type or queue_type) for queue in channel.queues)
        return Topology((RMQExchangeConfig(names.direct),), queues, channel.bindings)


def rpc_queue(channel: str, namespace: str) -> str:
    """The queue of a channel of the namespace's default instance; a name with a dot is a queue already.

    Raises:
        ValueError: no name that a channel or queue can have.

    Example:
        >>> rpc_queue("price", "shop"), rpc_queue("shop.live-1.intent.req", "shop")
        ('shop.price.req', 'shop.live-1.intent.req')
    """
    if isinstance(channel, str) and "." in channel:
        return check_short(channel, "queue")
    return RpcChannel(channel).queue(DEFAULT_INSTANCE_KEY, namespace)


def _is_ordered(channel: object) -> bool:
    """Whether that is a channel, or the queue of one, whose requests every instance takes one after the other."""
    name = channel.removesuffix(".req").rpartition(".")[-1] if isinstance(channel, str) else ""
    return any(known.ordered and known.name == name for known in INSTANCE_CHANNELS)


def define_rpc(
    channel: str, handler: Callable[..., Any], options: Mapping[str, Any], frame: FrameType | None
) -> RpcSpec:
    """Read a function decorated with `@app.rpc`.

    Args:
        channel: a channel's name, or a queue's with a dot in it.
        handler: the function.
        options: the decorator's keywords, known or not.
        frame: where the decorator stands, so that annotations may name local classes.

    Raises:
        WorkerDefinition: all that is wrong, each with what to write instead.
    """
    faults: list[str] = []
    label, location = name_of(handler), location_of(handler)
    for name, value in options.items():
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            faults.append(
                f"{name}={value!r}: no such option" + (f", did you mean {near[0]}?" if near else "")
            )
    try:
        # Any namespace does: this is about the channel.
        rpc_queue(channel, "any")
    except ValueError as error:
        faults.append(str(error))
    ordered = _is_ordered(channel)
    prefetch: Any = options.get("prefetch")
    if prefetch is None:
        prefetch = 1 if ordered else PREFETCH
    try:
        if whole(prefetch, "prefetch", least=1) > MOST_PREFETCH:
            faults.append(f"prefetch={prefetch}: expected at most {MOST_PREFETCH} (AMQP has 16 bits for it)")
    except ValueError as error:
        faults.append(str(error))
    single = options.get("single")
    if single is None:
        single = ordered
    if not isinstance(single, bool):
        faults.append(f"single={single!r}: expected True or False")
    queue_type = options.get("queue_type")
    if queue_type not in (None, "classic", "quorum"):
        faults.append(f"queue_type={queue_type!r}: expected 'classic' or 'quorum'")
    known = signature_of(faults, handler, label, frame)
    if inspect.isasyncgenfunction(handler):
        faults.append(f"{label} yields: a request has one answer, which is returned")
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise WorkerDefinition(f"@app.rpc on {label} ({location}) has {count}. " + " · ".join(faults))
    return RpcSpec(
        name=channel,
        handler=handler,
        location=location,
        prefetch=prefetch,
        single=single,
        queue_type=queue_type,
        **known,
    )


class RpcEndpoint:
    """Runs the handler of one channel: each request at once, as many as the prefetch lets come."""

    def __init__(
        self, spec: RpcSpec, parts: Parts, publisher: Publisher, *, threads: Threads | None, state: Any
    ) -> None:
        self.spec: Final = spec
        self._parts: Final = parts
        self._threads: Final = threads
        self._state: Final = state
        self._tasks: set[asyncio.Task[None]] = set()
        self.server: Final = RpcServer(
            parts,
            publisher,
            spec.queue(parts.names.namespace),
            prefetch=spec.prefetch,
            on_request=self._begin,
            name=spec.name,
            decode=spec.decode,
            raw=spec.raw,
        )

    @property
    def queue(self) -> str:
        """Whose requests it answers."""
        return self.server.queue

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""
        return self.server.consuming

    @property
    def inside(self) -> Collection[asyncio.Task[None]]:
        """A task for each request in a handler, or in a step after it."""
        return self._tasks

    @property
    def in_hand(self) -> int:
        """Requests in a handler, or in a step after it."""
        return self.server.in_hand

    @property
    def running(self) -> int:
        """The same: none of them waits for a slot."""
        return self.server.in_hand

    async def start(self) -> None:
        """Take requests.

        Raises:
            NotFound, AccessRefused: as the transport says.
        """
        await self.server.start()

    async def stop(self) -> int:
        """Take no more. Returns how many were given back: none, since all that came has started."""
        if self.spec.single:
            # The broker turns to the next process the moment our consumer leaves, whatever still runs here.
            self.server.pause()
        else:
            await self.server.stop()
        return 0

    async def finish(self) -> None:
        """Return when everything in hand is settled, and our consumer has left."""
        while running := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(running)
        await self.server.settled()
        await self.server.stop()

    async def drop(self) -> int:
        """End what still runs, unacked; the broker delivers it again. Returns how many."""
        self.server.pause()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self.server.drop()
        await self.server.stop()
        return len(tasks)

    def _begin(self, request: Request) -> None:
        task = asyncio.create_task(self._answer(request), name=self.queue)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request) -> None:
        message_id = request.received.properties.message_id
        await self._parts.reach(handover.DELIVERED, message_id)
        if request.stale or request.expired():
            self.server.skip(request)
            return
        result = await self._handle(request)
        await self._parts.reach(handover.HANDLER_DONE, message_id)
        await self.server.finish(request, result)

    async def _handle(self, request: Request) -> object:
        """What the handler returned or raised."""
        arguments = [
            request.payload if name == "payload" else self._context(request) for name in self.spec.takes
        ]
        if self._threads is not None:
            return await self._threads.run(lambda: self._call(arguments))
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            return await self.spec.handler(*arguments)
        except asyncio.CancelledError as error:
            if task.cancelling():
                raise
            return error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its request's failure
            return error

    def _call(self, arguments: list[Any]) -> object:
        try:
            result = self.spec.handler(*arguments)
        except BaseException as error:  # noqa: BLE001 - as above; a thread's SystemExit ends nothing but the run
            return error
        if inspect.iscoroutine(result):
            result.close()
            return RuntimeError(
                f"{self.spec.name} returned a coroutine that nobody awaited: is an await missing?"
            )
        return result

    def _context(self, request: Request) -> Context:
        return Context(
            request.received,
            worker=self.spec.name,
            max_attempts=1,
            deadline=request.deadline,
            state=self._state,
            clock=self._parts.world.clock,
        )
