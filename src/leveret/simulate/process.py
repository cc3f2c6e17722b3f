"""A simulated process: the app as it is, on virtual time, that can be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from leveret.app import Leveret
from leveret.core.topology import QueueType
from leveret.ports import Transport, World
from leveret.proof.noting import noted_store, noted_transport
from leveret.proof.record import AnyEvent, MemoryRecord
from leveret.runtime.opening import Stand
from leveret.simulate.broker import FaultyBroker, NetworkedTransport
from leveret.simulate.loop import Body, VirtualClock, VirtualLoop
from leveret.simulate.scene import Scene
from leveret.simulate.store import StoreHost
from leveret.stores.memory import MemoryData
from leveret.testing.worlds import InlineThreads

#: Seconds for which a lease of the simulation lasts.
LEASE = 3.0
#: Seconds that a process of the simulation that stops waits for its handlers.
GRACE = 5.0


class Machine:
    """What all processes of a simulation share: loop, broker, store, record, and the seed."""

    def __init__(
        self, seed: int, loop: VirtualLoop, scene: Scene, *, shared_store: bool, queue_type: QueueType | None
    ) -> None:
        self.seed: Final = seed
        self.scene: Final = scene
        self.queue_type: Final = queue_type
        self.loop: Final = loop
        self.broker: Final = FaultyBroker()
        self.clock: Final = VirtualClock(loop)
        self.store: Final = StoreHost(MemoryData(), self.clock, self.random("store"), shared=shared_store)
        self.events: Final[list[AnyEvent]] = []

    def random(self, what: str) -> random.Random:
        """A source of randomness of its own for something, so that one more draw elsewhere changes nothing here."""
        return random.Random(f"{self.seed} {what}")


class Process:
    """A process under a name, in one life after the other.

    Args:
        machine: where it lives.
        name: without a number; `by` adds that of the life.
        work: what it does: is given the process, and goes on until `stopping` is set, or for good.
    """

    def __init__(
        self, machine: Machine, name: str, work: Callable[[Process], Coroutine[Any, Any, None]]
    ) -> None:
        self.machine: Final = machine
        self.name: Final = name
        self._work: Final = work
        self.lives = 0
        self.body = Body(name)
        self.body.alive = False
        self.clock = machine.clock
        self.task: asyncio.Task[Any] | None = None
        self.stopping = asyncio.Event()
        self.transport: NetworkedTransport | None = None
        #: Whom it tells that it has come to a hand-over point; may kill it.
        self.reached: Callable[[Process, str], Awaitable[None]] | None = None
        #: Told that it died of what it handled.
        self.died: Callable[[Process], None] | None = None

    @property
    def by(self) -> str:
        """Its name in this life."""
        return f"{self.name} {self.lives}"

    @property
    def alive(self) -> bool:
        """Whether it lives, stopped or not."""
        return self.body.alive

    def ended(self) -> bool:
        """Whether what it does in this life has come to its end."""
        return self.task is not None and self.task.done()

    def start(self) -> None:
        """Begin the next life."""
        machine = self.machine
        self.lives += 1
        self.body = Body(self.by)
        self.clock = VirtualClock(machine.loop)
        self.stopping = asyncio.Event()
        self.record = MemoryRecord(self.by, machine.loop.time, machine.events)
        self.random = machine.random(f"process {self.by}")
        self._ids = machine.random(f"ids {self.by}")
        self.world = World(
            clock=self.clock,
            random=self.random,
            new_id=self._new_id,
            threads=lambda _number, _named: InlineThreads(),
            reached=self._reached,
        )
        self.transport = None
        self.task = machine.loop.start(self.body, self._work(self))
        self.task.add_done_callback(machine.loop.look_at)

    def kill(self) -> None:
        """End it where it stands: nothing of it runs any more, and the broker has all back that it had in hand."""
        if not self.body.alive:
            return
        self.body.alive = False
        self.body.parked.clear()
        if self.transport is not None:
            self.transport.abort()

    async def die(self) -> None:
        """As `kill`, from within; it never returns."""
        if self.died is not None:
            self.died(self)
        self.kill()
        await self.machine.loop.create_future()

    def app(self, *, works: bool = False) -> Leveret:
        """The app in this process, with its workers or without, not open."""
        machine = self.machine
        app = machine.scene.app(self, works, machine.queue_type)

        def transport() -> Transport:
            self.transport = NetworkedTransport(
                machine.broker, world=self.world, chance=machine.random(f"network {self.by}")
            )
            return noted_transport(self.transport, self.record, machine.scene.subject)

        app._stand = Stand(  # noqa: SLF001 - it stands in for the real world
            world=self.world,
            transport=transport,
            store=lambda: noted_store(machine.store.store(), self.record),
            knobs=lambda knobs: replace(knobs, lease_ttl=LEASE, grace=GRACE),
            namespace=machine.scene.namespace,
        )
        return app

    def _new_id(self) -> str:
        return str(uuid.UUID(int=self._ids.getrandbits(128), version=4))

    async def _reached(self, point: str, _id: str | None) -> None:
        if self.reached is not None:
            await self.reached(self, point)
