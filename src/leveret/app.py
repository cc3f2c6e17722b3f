"""Leveret: the front door. Declare workers, publish, run, look."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, overload

from leveret.core.errors import AppNotOpen, ConfigError, LeveretError, NotFound, WorkerDefinition
from leveret.core.message import NO_HEADERS, Message, identified
from leveret.core.policy import RetryPolicy
from leveret.core.retry_entry import Filter
from leveret.core.run import Run
from leveret.core.seconds import Seconds, seconds
from leveret.core.topology import (
    QueueType,
    RMQExchangeConfig,
    check_namespace,
)
from leveret.dead_letters.browse import DeadLetters
from leveret.pipeline.worker import WorkerSpec, define
from leveret.ports import Transport
from leveret.retry.browse import Retries

if TYPE_CHECKING:
    from leveret.alarms.emitter import AlarmEmitter
    from leveret.core.outcome import Unexpected
    from leveret.pipeline.worker import Replay
    from leveret.rpc.endpoint import RpcSpec
    from leveret.rpc.wire import Answer
    from leveret.runtime.config import RuntimeConfig
    from leveret.runtime.opening import Opened, Stand
    from leveret.runtime.plan import Plan, WorkerPlan
    from leveret.runtime.runner import Stopped
    from leveret.sync.app import SyncApp

F = TypeVar("F", bound=Callable[..., Any])


class _Text(str):
    """A default that can be told from the same value given."""

    __slots__ = ()


class _Number(int):
    """A default that can be told from the same value given."""

    __slots__ = ()


_POLICY: Final = RetryPolicy()
_CLASSIC: Any = _Text("classic")
_PUBLISH_TIMEOUT: Any = _Number(10)
_GRACE: Any = _Number(30)


class Counts(NamedTuple):
    """How many messages are where."""

    #: Ready in the queues of workers, and of the channels that this app answers.
    queued: int
    #: In the hands of this process.
    running: int
    #: Waiting for their time: stored, or on their way into the store.
    waiting: int
    #: Dead letters that lie there.
    dead: int


class Leveret:
    """An app: workers on one namespace, publishing to it and looking into it.

    Args:
        namespace: first part of every exchange, queue and row: `shop.events`, `shop.charge`, `shop.retry`.
        broker: its URL, or one per node; there is no default, a broker is named and never guessed.
        store: its URL; default `sqlite:///leveret.db`.
        exchange: the data exchange; default `<namespace>.events`, a topic.
        retry: for workers that name none.
        queue_type: of the queues that leveret declares.
        publish_timeout: seconds until a publish without an answer is unknown.
        shutdown_grace: seconds that running handlers get at the end.
        lifespan: entered before the first message; what it yields is `ctx.state`.
        config: a settings file, or settings already read; default ./leveret.toml where there is one.

    Raises:
        ConfigError: all that is wrong in what is given here, in the environment and in the file.

    Example:
        >>> app = Leveret("shop", broker="memory://")
        >>> @app.worker("order.placed")
        ... async def charge(order: dict) -> None:
        ...     print("charged", order["id"])
        >>> async def main() -> None:
        ...     async with app:
        ...         await app.publish("order.placed", {"id": 1})
        ...         await app.run(until_idle=True)
    """

    def __init__(
        self,
        namespace: str | None = None,
        /,
        *,
        broker: str | Sequence[str] | None = None,
        store: str | None = None,
        exchange: str | RMQExchangeConfig | None = None,
        retry: RetryPolicy = _POLICY,
        queue_type: QueueType = _CLASSIC,
        publish_timeout: Seconds = _PUBLISH_TIMEOUT,
        shutdown_grace: Seconds = _GRACE,
        lifespan: Callable[[Leveret], AbstractAsyncContextManager[Any]] | None = None,
        config: str | Path | RuntimeConfig | None = None,
    ) -> None:
        from leveret.runtime.config import RuntimeConfig, load_config

        if namespace is not None:
            check_namespace(namespace)
        if not isinstance(retry, RetryPolicy):
            raise ConfigError(f"retry={retry!r}: expected a RetryPolicy, such as RetryPolicy(max_attempts=5)")
        self._code: dict[str, Any] = {
            "namespace": namespace,
            "broker": broker,
            "store": store,
            "exchange": exchange,
            "retry": None if retry is _POLICY else retry,
            "queue_type": None if queue_type is _CLASSIC else queue_type,
            "shutdown_grace": None if shutdown_grace is _GRACE else shutdown_grace,
            "publish": {"timeout": None if publish_timeout is _PUBLISH_TIMEOUT else publish_timeout},
        }
        self._retry = retry
        self._lifespan = lifespan
        self._file = None if isinstance(config, RuntimeConfig) else config
        self._config = (
            config.with_code(self._code)
            if isinstance(config, RuntimeConfig)
            else load_config(code=self._code, file=self._file)
        )
        self._workers: dict[str, WorkerSpec] = {}
        self._rpcs: dict[str, RpcSpec] = {}
        self._open: Opened | None = None
        #: Two opens at once are one; a lock belongs to the loop it is used in.
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._stand: Stand | None = None
        self._sync: SyncApp | None = None
        self._watchers: list[Callable[[Run], object]] = []

    def __repr__(self) -> str:
        return f"<Leveret {self._config.namespace or '(no namespace)'}: {len(self._workers)} workers>"

    # ── Declaring ─────────────────────────────────────────────────────────────────────────────────────────────────────

    if TYPE_CHECKING:

        @overload
        def worker(self, handler: F, /) -> F: ...

        @overload
        def worker(
            self,
            *types: str,
            name: str | None = None,
            retry: RetryPolicy | None = None,
            timeout: Seconds | None = None,
            prefetch: int = 10,
            concurrency: int | None = None,
            unexpected: Unexpected = "retry",
            max_deliveries: int = 5,
            replay: Replay = "queue",
            queue_type: QueueType | None = None,
            queue_arguments: Mapping[str, Any] | None = None,
        ) -> Callable[[F], F]: ...

    def worker(self, *types: Any, **options: Any) -> Any:
        """Declare a worker. The function itself comes back: a unit test just calls it.

        Args:
            types: message types (binding keys); none: the worker's own name. Bare `@app.worker` works too.
            name: default: the function's name. The queue is `<namespace>.<name>`.
            retry: default: the app's.
            timeout: seconds that a run may take; more is a soft failure. None: no limit.
            prefetch: messages in hand at once, 1 to 65535.
            concurrency: handlers at once; None: as prefetch. A plain `def` has as many threads.
            unexpected: what any exception but a Failure is: `retry` or `dead`.
            max_deliveries: so often may the process die while it runs; then it is a dead letter, `worker died`.
            replay: a retry goes straight back to this `queue`, or through the `exchange` to all who are bound.
            queue_type: of this queue; default: the app's.
            queue_arguments: more arguments of the queue.

        Raises:
            WorkerDefinition: all that is wrong with options and signature, in one error.

        Example:
            @app.worker("order.placed", retry=RetryPolicy(first_delay=0.2, max_attempts=5))
            async def charge(order: Order, ctx: Context) -> None: ...
        """
        frame = sys._getframe(1)  # noqa: SLF001 — annotations may name classes that are local to the caller
        if len(types) == 1 and not options and not isinstance(types[0], str) and callable(types[0]):
            return self._declare(types[0], (), options, frame)

        def decorate(handler: F) -> F:
            return self._declare(handler, types, options, frame)

        return decorate

    def _declare(self, handler: F, types: tuple[Any, ...], options: Mapping[str, Any], frame: Any) -> F:
        spec = define(handler, types, options, frame)
        if spec.name in self._workers:
            raise WorkerDefinition(
                f"@app.worker on {spec.name} ({spec.location}): there is a worker of that name already "
                f"({self._workers[spec.name].location}). Name one of them: @app.worker(..., name=...)"
            )
        exchange = self._config.exchange
        if exchange is not None and exchange.type == "fanout" and spec.types:
            raise WorkerDefinition(
                f"@app.worker on {spec.name} ({spec.location}): exchange {exchange.name} is a fanout and gives every "
                "worker everything; leave the types out"
            )
        if self._open is not None:
            raise WorkerDefinition(f"@app.worker on {spec.name} ({spec.location}): the app is open already")
        self._workers[spec.name] = spec
        return handler

    def rpc(
        self,
        channel: str,
        /,
        *,
        prefetch: int | None = None,
        single: bool | None = None,
        queue_type: QueueType | None = None,
    ) -> Callable[[F], F]:
        """Declare who answers the requests of a channel. The function itself comes back: a unit test just calls it.

        What it returns is the answer: a dict, a dataclass, a pydantic model, or None for an empty object. What it
        raises makes the request a dead letter, and reaches callers as an `RpcRemoteError`; a request is never tried
        again by itself. A request whose caller has given up is not started.

        Args:
            channel: its queue is `<namespace>.<channel>.req`; a name with a dot in it is the queue itself.
            prefetch: requests in hand at once, 1 to 65535; as many handlers run at once. None: 8.
            single: one consumer at a time, across all processes: with `prefetch=1`, one request after the other. None:
                not so; but `intent`, whose requests every instance takes in their order, has both by itself.
            queue_type: of this queue; default: the app's.

        Raises:
            WorkerDefinition: all that is wrong with options and signature, in one error.

        Example:
            @app.rpc("price")
            async def price(order: Order, ctx: Context) -> dict:
                return {"cents": 500 * order.count}
        """
        from leveret.rpc.endpoint import define_rpc

        if not isinstance(channel, str):
            raise WorkerDefinition(
                f'@app.rpc({channel!r}): expected the name of a channel, as in @app.rpc("price")'
            )
        frame = sys._getframe(1)  # noqa: SLF001 — annotations may name classes that are local to the caller
        options = {"prefetch": prefetch, "single": single, "queue_type": queue_type}

        def decorate(handler: F) -> F:
            spec = define_rpc(channel, handler, options, frame)
            if spec.name in self._rpcs:
                raise WorkerDefinition(
                    f"@app.rpc on {spec.name} ({spec.location}): that channel is answered already "
                    f"({self._rpcs[spec.name].location})"
                )
            if self._open is not None:
                raise WorkerDefinition(f"@app.rpc on {spec.name} ({spec.location}): the app is open already")
            self._rpcs[spec.name] = spec
            return handler

        return decorate

    # ── Opening and closing ───────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Connect, open the store, declare the topology. Publishes and looks; works on nothing. Idempotent.

        Raises:
            ConfigError: no namespace or no broker is named.
            BrokerError, StoreError: one of them cannot be used; nothing stays open.
        """
        await self._open_by(lambda transport: transport.open())

    async def _open_by(self, reach: Callable[[Transport], Awaitable[None]]) -> None:
        """As `open`; *reach* connects, and may take its time over a broker that does not answer yet."""
        loop = asyncio.get_running_loop()
        if self._opening is None or self._opening[0] is not loop:
            self._opening = (loop, asyncio.Lock())
        async with self._opening[1]:
            if self._open is None:
                # Loaded here: declaring workers needs none of it.
                from leveret.runtime.opening import open_app

                self._open = await open_app(
                    self._planned(),
                    stand=self._stand,
                    reach=reach,
                    watchers=self._watchers,
                    known_types=self._known_types,
                    nudge=self._nudge,
                )

    async def close(self) -> None:
        """Disconnect, and close the store. Idempotent."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _with_flags(self, flags: Mapping[str, Any]) -> None:
        """Let what was typed on the command line beat what the code says."""
        self._config = self._config.with_flags(flags)

    def _planned(self) -> Plan:
        """What it runs: what the code declares, with what operators have set."""
        from leveret.runtime.plan import plan

        return plan(self._workers, self._rpcs.values(), self._config, self._retry)

    def _known_types(self) -> dict[str, str]:
        return {
            type: spec.name
            for spec in self._workers.values()
            for type in (spec.types or (spec.name,))
            if "*" not in type and "#" not in type
        }

    def _nudge(self) -> None:
        if self._open is not None and self._open.runner is not None:
            self._open.runner.nudge()

    def _opened(self, what: str) -> Opened:
        if self._open is None:
            name = self._config.namespace or "this app"
            raise AppNotOpen(
                f'{what} on "{name}", which is not open. Nothing was sent. In a script: async with app: ...   '
                "In FastAPI, inside the lifespan: async with app: yield   For good: await app.open()"
            )
        return self._open

    # ── Publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(
        self,
        type: str | Message,
        payload: Any = None,
        /,
        *,
        id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        expiration: Seconds | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        mandatory: bool = True,
        timeout: Seconds | None = None,
    ) -> str:
        """Publish a message, and return its id once the broker has it.

        Args:
            type: a message type, or a whole `Message`: then the other words stay away, but `delay`, `at`, `timeout`.
            payload: what JSON carries, a dataclass, a pydantic model, or bytes; None: an empty object.
            id: minted where it is None.
            headers, correlation_id, priority: AMQP properties.
            expiration: seconds after which the broker may drop it unread: outside the promise.
            delay: seconds that it waits in the retry store; it lists and cancels like a retry.
            at: an aware time until which it waits there.
            mandatory: False: nobody has to take it; outside the promise.
            timeout: seconds until the answer is unknown; default: the app's `publish_timeout`.

        Raises:
            AppNotOpen: nothing was sent.
            BadPayload: payload or properties cannot be written; nothing was sent.
            ValueError: `delay` with `at`, either with `expiration`, or a bad number; nothing was sent.
            Unroutable: no queue is bound for it.
            PublishRefused: the broker does not have it.
            PublishTimeout: unknown; publish `error.message` again.

        Example:
            await app.publish("order.placed", {"id": 1})
            await app.publish("invoice.due", {"id": 1}, delay=3600)
        """
        if isinstance(type, Message):
            given = {"payload": payload, "id": id, "headers": headers, "correlation_id": correlation_id,
                     "priority": priority, "expiration": expiration}  # fmt: skip
            doubled = [name for name, value in given.items() if value is not None]
            if doubled:
                raise ValueError(
                    f"publish(Message, {', '.join(doubled)}=…): say it in the Message. Nothing was sent."
                )
            opened = self._opened(f'publish("{type.type}")')
            message = identified(type, opened.parts.world.new_id() if type.id is None else type.id)
        else:
            opened = self._opened(f'publish("{type}")')
            message = Message(
                type,
                payload,
                id=opened.parts.world.new_id() if id is None else id,
                headers=headers or NO_HEADERS,
                correlation_id=correlation_id,
                priority=priority,
                expiration=expiration,
                mandatory=mandatory,
            )
        limit = None if timeout is None else seconds(timeout, "timeout")
        if delay is None and at is None:
            return await opened.publisher.publish(message, timeout=limit)
        return await opened.publisher.publish_later(message, delay=delay, at=at, timeout=limit)

    async def publish_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], /, *, timeout: Seconds | None = None
    ) -> list[str]:
        """Publish many messages, pipelined, and return their ids in order once the broker has all of them.

        Raises:
            PublishFailures: some were not confirmed: `.confirmed` ids, `.failed` errors by position.
        """
        opened = self._opened("publish_many(...)")
        limit = None if timeout is None else seconds(timeout, "timeout")
        return await opened.publisher.publish_many(messages, timeout=limit)

    # ── Calling ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def call(
        self,
        channel: str,
        payload: Any = None,
        /,
        *,
        correlation_id: str | None = None,
        timeout: Seconds | None = None,
    ) -> dict[str, Any]:
        """Send a request, and return its answer.

        Args:
            channel: of this namespace; a name with a dot in it is a queue, of whatever namespace.
            payload: a dict, a dataclass or a pydantic model; None: an empty object.
            correlation_id: your own name for the request, in the logs of both ends; minted where it is None.
            timeout: seconds until it is given up, 5 by default; nobody starts on it after that.

        Raises:
            AppNotOpen: nothing was sent.
            BadPayload, ValueError: payload, channel, id or timeout cannot be meant; nothing was sent.
            RpcUnreachableError: nobody serves that queue; told at once, nothing was sent to anybody.
            RpcTimeoutError: no answer in time.
            RpcRemoteError: the handler over there raised.
            RpcUnknownError: the connection went meanwhile; the request may be obeyed, or not.
            TransportUnavailableError: not connected, or the broker takes no messages; nothing was sent.

        Example:
            price = await app.call("price", {"id": 1}, timeout=2)
        """
        answer = await self._ask(channel, payload, correlation_id=correlation_id, timeout=timeout)
        return answer.payload

    async def _ask(
        self, channel: str, payload: Any, *, correlation_id: str | None = None, timeout: Seconds | None = None
    ) -> Answer:
        """As `call`, with who answered."""
        from leveret.rpc.client import TIMEOUT, RpcClient
        from leveret.rpc.endpoint import rpc_queue

        opened = self._opened(f'call("{channel}")')
        parts = opened.parts
        if opened.client is None:
            opened.client = RpcClient(parts.transport, parts.world)
        return await opened.client.ask(
            rpc_queue(channel, parts.names.namespace),
            payload,
            correlation_id=correlation_id,
            timeout=TIMEOUT if timeout is None else timeout,
        )

    @property
    def sync(self) -> SyncApp:
        """Publish and call from threads: Flask, Django, scripts. It connects by itself, at its first use.

        Example:
            app.sync.publish("order.placed", {"id": 1})
        """
        # Loaded here, as the sync face stands above the app.
        from leveret.sync.app import sync_face

        return sync_face(self)

    # ── Running ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(
        self,
        *,
        workers: Sequence[str] | None = None,
        retry_worker: bool = True,
        keeper: bool = True,
        until_idle: bool = False,
        signals: bool = True,
    ) -> None:
        """Work until SIGINT or SIGTERM, then stop gracefully; a second signal ends the process at once.

        Args:
            workers: names of the workers and RPC channels to run; None: all.
            retry_worker: also keep soft-failed messages until they are due.
            keeper: also move dead letters into the store.
            until_idle: return once queues are empty, nothing runs and nothing waits.
            signals: False: leave the signals alone; cancel the task to stop.

        Raises:
            NotFound: no such worker.
            LeveretError: as `open` says, where the app is not open yet.
        """
        await self._host(
            workers=workers,
            retry_worker=retry_worker,
            keeper=keeper,
            until_idle=until_idle,
            signals=signals,
        )

    async def _host(
        self,
        *,
        workers: Sequence[str] | None,
        retry_worker: bool,
        keeper: bool,
        until_idle: bool,
        signals: bool,
        reach: Callable[[Transport], Awaitable[None]] | None = None,
        ready: Callable[[], Awaitable[object]] | None = None,
        stopping: Callable[[int], object] = lambda _: None,
        stopped: Callable[[Stopped], object] = lambda _: None,
    ) -> None:
        """As `run`; *reach* connects as by `_open_by`, *ready* is awaited once it works, the others are `running`'s."""
        from leveret.runtime.runner import on_signals

        asked = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(on_signals(asked.set, wanted=signals))
            if reach is not None and self._open is None:
                stack.push_async_callback(self.close)
                if not await self._reached(reach, asked):
                    return
            await stack.enter_async_context(
                self.running(
                    workers=workers,
                    retry_worker=retry_worker,
                    keeper=keeper,
                    stopping=stopping,
                    stopped=stopped,
                )
            )
            if ready is not None:
                await ready()
            waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(asked.wait())]
            opened = self._opened("run()")
            if until_idle and opened.runner is not None:
                waits.append(asyncio.ensure_future(opened.runner.until_idle()))
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in waits:
                    task.cancel()

    async def _reached(self, reach: Callable[[Transport], Awaitable[None]], asked: asyncio.Event) -> bool:
        """Open; False where the stop was asked for before the broker answered."""
        opening = asyncio.ensure_future(self._open_by(reach))
        stop = asyncio.ensure_future(asked.wait())
        try:
            await asyncio.wait({opening, stop}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                return True
            return False
        finally:
            opening.cancel()
            stop.cancel()
            await asyncio.wait({opening, stop})

    @contextlib.asynccontextmanager
    async def running(
        self,
        *,
        workers: Sequence[str] | None = None,
        retry_worker: bool = True,
        keeper: bool = True,
        stopping: Callable[[int], object] = lambda _: None,
        stopped: Callable[[Stopped], object] = lambda _: None,
    ) -> AsyncIterator[Leveret]:
        """Work in the background of the block: a FastAPI lifespan, a notebook. Stops gracefully at its end.

        Args:
            workers, retry_worker, keeper: as `run` has them.
            stopping: told at the end of the block how many messages still run.
            stopped: told what the stop came to.

        Example:
            >>> async def lifespan(web):
            ...     async with app.running():
            ...         yield
        """
        # Loaded here: an app that only publishes and looks needs none of it.
        from leveret.runtime.runner import Knobs, Runner

        async with contextlib.AsyncExitStack() as stack:
            if self._open is None:
                await stack.enter_async_context(self)
            opened = self._opened("run()")
            if opened.runner is not None:
                raise LeveretError("this app runs already; one run at a time")
            plans, rpcs = self._chosen(opened, workers)
            state = None
            if self._lifespan is not None:
                state = await stack.enter_async_context(self._lifespan(self))
            config = opened.plan.config
            knobs = Knobs(
                grace=config.shutdown_grace,
                lease_ttl=config.lease.ttl,
                overdue_rate=config.retry_worker.overdue_rate,
                watches=self._stand is None,
                watchdog=self._stand is None,
            )
            if self._stand is not None:
                knobs = self._stand.knobs(knobs)
            runner = Runner(
                opened.parts,
                opened.publisher,
                plans,
                rpcs=rpcs,
                state=state,
                retry_worker=retry_worker,
                keeper=keeper,
                knobs=knobs,
            )
            opened.runner = runner
            try:
                await runner.start()
                yield self
            finally:
                opened.runner = None
                stopped(await runner.stop(stopping))

    def _chosen(
        self, opened: Opened, workers: Sequence[str] | None
    ) -> tuple[Sequence[WorkerPlan], Sequence[RpcSpec]]:
        if workers is None:
            return opened.plan.workers, opened.plan.rpcs
        plans = {plan.spec.name: plan for plan in opened.plan.workers}
        rpcs = {spec.name: spec for spec in opened.plan.rpcs}
        missing = [name for name in workers if name not in plans and name not in rpcs]
        if missing:
            known = ", ".join((*plans, *rpcs)) or "none"
            raise NotFound(f"no worker {', '.join(missing)}; this app has {known}")
        chosen = dict.fromkeys(workers)
        return [plans[name] for name in chosen if name in plans], [
            rpcs[name] for name in chosen if name in rpcs
        ]

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def namespace(self) -> str | None:
        """The namespace, None where none is named yet."""
        return self._config.namespace

    @property
    def retries(self) -> Retries:
        """What waits for its next try."""
        return self._opened("retries").retries

    @property
    def dead_letters(self) -> DeadLetters:
        """What ended badly, with its reason."""
        return self._opened("dead_letters").dead_letters

    @property
    def alarms(self) -> AlarmEmitter:
        """Tells people what they should know: `app.alarms.emit(code, title, fields)`, from any thread."""
        return self._opened("alarms").alarms

    async def counts(self) -> Counts:
        """How many messages are queued, running here, waiting, and dead."""
        opened = self._opened("counts()")
        parts = opened.parts
        names = parts.names
        here = Filter(namespace=names.namespace)

        async def ready(queue: str) -> int:
            state = await parts.transport.queue_state(queue)
            return 0 if state is None else state.ready

        queued = 0
        for plan in opened.plan.workers:
            queued += await ready(names.queue(plan.spec.name)) + await ready(names.suspects(plan.spec.name))
        for spec in opened.plan.rpcs:
            queued += await ready(spec.queue(names.namespace))
        return Counts(
            queued=queued,
            running=0 if opened.runner is None else opened.runner.in_hand,
            waiting=await parts.store.count_entries(here) + await ready(names.retry_queue),
            dead=await parts.store.count_letters(here) + await ready(names.dead_letters),
        )
