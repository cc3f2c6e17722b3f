"""Opening an app: its world, broker, store and alarms, connected and declared, or nothing at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from leveret.alarms.emitter import AlarmEmitter
from leveret.core.run import Run
from leveret.core.topology import Names
from leveret.dead_letters.browse import DeadLetters
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.publishing import Publisher
from leveret.ports import Store, Transport, World
from leveret.retry.browse import Retries
from leveret.rpc.client import RpcClient
from leveret.runtime import wiring
from leveret.runtime.plan import Plan
from leveret.runtime.runner import Knobs, Runner
from leveret.runtime.world import holder_name, system_world


@dataclass(slots=True, kw_only=True)
class Stand:
    """What stands in for the real world, broker and store of an app: for tests and simulations."""

    world: World
    transport: Callable[[], Transport]
    store: Callable[[], Store]
    knobs: Callable[[Knobs], Knobs] = lambda knobs: knobs
    #: Where the app names none.
    namespace: str = "test"


@dataclass(slots=True, kw_only=True)
class Opened:
    """What exists while an app is open."""

    plan: Plan
    parts: Parts
    alarms: AlarmEmitter
    publisher: Publisher
    retries: Retries
    dead_letters: DeadLetters
    #: The process whose it is: what was forked off it cannot use it.
    pid: int = field(default_factory=os.getpid)
    runner: Runner | None = None
    #: Made at the first call.
    client: RpcClient | None = None

    async def close(self) -> None:
        """Disconnect, and close the store."""
        try:
            await self.alarms.aclose()
            await self.parts.transport.close()
        finally:
            await self.parts.store.close()


async def open_app(
    plan: Plan,
    *,
    stand: Stand | None,
    reach: Callable[[Transport], Awaitable[None]],
    watchers: list[Callable[[Run], object]],
    known_types: Callable[[], dict[str, str]],
    nudge: Callable[[], object],
) -> Opened:
    """Connect, open the store, declare the topology.

    Args:
        plan: of the app.
        stand: stands in for the real world.
        reach: connects the transport it is given.
        watchers: told of each run.
        known_types: message type to worker, for "did you mean".
        nudge: told when a retry or a dead letter was acted on.

    Raises:
        ConfigError: no namespace or no broker is named.
        BrokerError, StoreError: one of them cannot be used; nothing stays open.
    """
    config = plan.config
    for warning in config.warnings:
        log.warning("%s", warning)
    transport: Transport
    store: Store
    if stand is not None:
        namespace = config.namespace or stand.namespace
        world, transport, store = stand.world, stand.transport(), stand.store()
        # In the log alone: what a test does to its broker is meant for the messages under test.
        alarms = wiring.make_alarms(world, namespace, inside=True)
    else:
        namespace = config.require_namespace()
        broker = config.require_broker()
        world = system_world()
        transport = wiring.make_transport(broker, world)
        store = wiring.make_store(config.store, world)
        alarms = wiring.make_alarms(
            world, namespace, broker=broker, transport=transport, notify=config.notify
        )
    names = Names(namespace)
    parts = Parts(
        names=names,
        exchange=plan.exchange(names),
        world=world,
        transport=transport,
        store=store,
        alarms=alarms,
        base=plan.topology(names, pinned=not store.shared),
        holder=holder_name(world),
        watchers=watchers,
    )
    async with contextlib.AsyncExitStack() as undo:
        await store.open()
        undo.push_async_callback(store.close)
        await reach(transport)
        undo.push_async_callback(transport.close)
        for sentence in await transport.declare(parts.base):
            log.warning("%s", sentence)
        undo.pop_all()
    alarms.start()
    return Opened(
        plan=plan,
        parts=parts,
        alarms=alarms,
        publisher=Publisher(parts, timeout=config.publish.timeout, known_types=known_types),
        retries=Retries(store, world, namespace, nudge=nudge),
        dead_letters=DeadLetters(store, world, namespace, nudge=nudge),
    )
