"""One process of the shop: workers, retry worker, keeper, producer, caller or daemon, as it is told.

It runs leveret as any program does, over a transport and a store that write down what passes them. It kills itself at a
hand-over point when told so, and its wall clock, its disk and its store's speed can be tampered with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from leveret.app import Leveret
from leveret.core.errors import BrokerError, StoreUnavailable
from leveret.core.topology import QueueType
from leveret.core.urls import parse_broker, parse_store
from leveret.ports import Store, Timer, Transport
from leveret.proof import shop
from leveret.proof.noting import noted_store, noted_transport
from leveret.proof.record import Struck
from leveret.runtime import wiring
from leveret.runtime.opening import Stand
from leveret.runtime.runner import Knobs
from leveret.runtime.world import SystemClock, system_world
from leveret.torture import child
from leveret.torture.load import Callers, Producers
from leveret.torture.tampering import Tampering, tampered

Role = Literal["workers", "retry worker", "keeper", "producer", "caller", "daemon"]

#: Waits between two tries to connect are so much shorter than leveret has them, so that ten minutes hold sixty outages.
_HURRY: Final = 10
#: Seconds between tries to open an app whose broker or store is away.
_OPEN_AGAIN: Final = 0.5


class Told(msgspec.Struct, kw_only=True):
    """What a process is told at its start.

    Attributes:
        by: its name in this life.
        roles: what it is.
        record: path of the record.
        broker: URL, behind the proxies.
        store: URL, likewise.
        namespace: of the app.
        seed: of what is ordered, in this life.
        queue_type: of all queues.
        lease: seconds that a lease lasts.
        takes: seconds that a handler takes on average.
        rate: messages a second, of a producer.
        soft, hard: shares of the messages that fail so, of a producer.
        calls: requests a second, of a caller.
    """

    by: str
    roles: list[Role]
    record: str
    broker: str
    store: str
    namespace: str
    seed: int
    queue_type: QueueType = "classic"
    lease: float = 5.0
    takes: float = 0.005
    rate: float = 300.0
    soft: float = 0.05
    hard: float = 0.005
    calls: float = 10.0


class MovedClock(SystemClock):
    """The system's clock, whose wall reading can be moved."""

    def __init__(self) -> None:
        self.moved = 0.0

    def now(self) -> float:
        """Epoch seconds, and what it was moved by."""
        return super().now() + self.moved


class _HurriedClock(SystemClock):
    """The system's clock, but whoever waits is called earlier."""

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return super().call_later(seconds / _HURRY, callback)

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / _HURRY)


class ShopProcess:
    """The app of one process, and the commands that it obeys."""

    def __init__(self, told: Told) -> None:
        self.told: Final = told
        self.record: Final = child.ChildRecord(Path(told.record), told.by)
        self._clock: Final = MovedClock()
        self._tampering: Final = Tampering()
        #: Where it kills itself: the point, how many arrivals there are left, and the name of that blow.
        self._strike: tuple[str, int, str] | None = None
        world = replace(system_world(), clock=self._clock, reached=self._reached)
        hurried = replace(world, clock=_HurriedClock(), random=random.SystemRandom())
        broker, store = parse_broker(told.broker, "--broker"), parse_store(told.store, "--store")

        def transport() -> Transport:
            return noted_transport(wiring.make_transport(broker, hurried), self.record)

        def open_store() -> Store:
            kept = tampered(wiring.make_store(store, world), self._tampering, self._clock)
            return noted_store(kept, self.record)

        def knobs(usual: Knobs) -> Knobs:
            return replace(usual, lease_ttl=told.lease, watches=True)

        self.app: Final = Leveret(
            told.namespace, broker=told.broker, retry=shop.POLICY, queue_type=told.queue_type
        )
        self.app._stand = Stand(  # noqa: SLF001 - it stands in for the real world
            world=world, transport=transport, store=open_store, knobs=knobs
        )
        self.producers = Producers(self.app, self.record, told) if "producer" in told.roles else None
        self.callers = Callers(self.app, self.record, told) if "caller" in told.roles else None

    # ── A life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        """Open the app, say that it is ready, and work until asked to stop by a signal.

        Raises:
            Exception: what a part of its work ended with that none may end with: whoever watches it is to know.
        """
        roles = self.told.roles
        if "workers" in roles:
            chance = random.Random()
            shop.declare(
                self.app, self.record, self._clock,
                takes=lambda: min(1.0, chance.expovariate(1 / self.told.takes)) if self.told.takes else 0.0,
                dies=self._die, queue_type=self.told.queue_type,
            )  # fmt: skip
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _show_tasks)
        await self._open()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.app.close)
            loads = [load for load in (self.producers, self.callers) if load is not None]
            if not loads:
                works = self.app.running(retry_worker="retry worker" in roles, keeper="keeper" in roles)
                await stack.enter_async_context(works)
            serving = asyncio.create_task(child.serve(self.obey))
            tasks = [asyncio.create_task(load.run()) for load in loads]
            await child.until_signalled(serving, *tasks)
            for task in tasks:
                task.cancel()
        serving.cancel()

    async def _open(self) -> None:
        while True:
            try:
                await self.app.open()
            except (BrokerError, StoreUnavailable) as error:
                sys.stderr.write(f"{self.told.by} cannot be opened yet: {error}\n")
                await asyncio.sleep(_OPEN_AGAIN)
            else:
                return

    # ── Blows at this process alone ───────────────────────────────────────────────────────────────────────────────────

    async def _die(self) -> None:
        """Kill this process: its handler began on something deadly."""
        record = self.record
        record.write(
            Struck(
                at=record.now(), by=record.by, fault=f"deadly {record.by}", kind="deadly message", target=record.by,
                process=True,
            )
        )  # fmt: skip
        os.kill(os.getpid(), signal.SIGKILL)

    async def _reached(self, point: str, message_id: str | None) -> None:
        if self._strike is None or self._strike[0] != point:
            return
        _, left, fault = self._strike
        if left > 1:
            self._strike = (point, left - 1, fault)
            return
        record = self.record
        record.write(
            Struck(
                at=record.now(), by=record.by, fault=fault, kind=f"kill at {point}", target=record.by, process=True
            )
        )  # fmt: skip
        os.kill(os.getpid(), signal.SIGKILL)

    async def obey(self, command: child.Command) -> Mapping[str, Any]:
        """Do what a command says."""
        match command["do"]:
            case "strike":
                point = command["point"]
                self._strike = None if point is None else (point, command["arrival"], command["fault"])
            case "move clock":
                self._clock.moved += command["by"]
            case "tamper":
                self._tampering.set(
                    slow=command.get("slow", 0.0),
                    late=command.get("late", 0.0),
                    full=command.get("full", False),
                )
            case "publish":
                if self.producers is not None:
                    self.producers.also(command["type"], command["order"])
            case "rest":
                for load in (self.producers, self.callers):
                    if load is not None:
                        await load.rest()
            case "sample":
                return child.figures(collects=command["collects"])
            case unknown:
                raise ValueError(f"no process of the shop knows how to {unknown!r}")
        return {}


def _show_tasks() -> None:
    """Where each task stands, into the log: for whoever waits in vain."""
    for task in asyncio.all_tasks():
        task.print_stack(limit=6, file=sys.stderr)


async def _main() -> None:
    told = child.told(Told)
    if "daemon" in told.roles:
        from leveret.torture.daemon import Daemon

        with contextlib.closing(Daemon(told)) as daemon:
            await daemon.live()
        return
    await ShopProcess(told).live()


if __name__ == "__main__":
    import logging

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    child.run(_main)
