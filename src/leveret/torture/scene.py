"""Scene: a broker, a store, proxies before them, the processes of a shop, and the record that they all write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from leveret.core.errors import BrokerError, LeveretError, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.core.topology import Names, QueueType
from leveret.core.urls import parse_broker, parse_store
from leveret.dead_letters.browse import DeadLetters
from leveret.ports import Store, Transport
from leveret.proof import shop
from leveret.proof.record import FileRecord
from leveret.rpc.endpoint import rpc_queue
from leveret.runtime import wiring
from leveret.runtime.world import system_world
from leveret.torture import daemon
from leveret.torture.addresses import Brokers, StoreServer
from leveret.torture.child import Child, ChildGone
from leveret.torture.members import Member
from leveret.torture.process import Role, Told
from leveret.torture.proxy import Told as ProxiesTold


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the shop has to do.

    Attributes:
        rate: messages published a second.
        soft, hard: shares of them that fail so.
        calls: requests a second.
        takes: seconds that a handler takes on average.
    """

    rate: float = 300.0
    soft: float = 0.05
    hard: float = 0.005
    calls: float = 10.0
    takes: float = 0.005


#: The processes of a shop, with their roles.
MEMBERS: Final[Sequence[tuple[str, Role]]] = (
    ("workers-1", "workers"),
    ("workers-2", "workers"),
    ("retry-1", "retry worker"),
    ("retry-2", "retry worker"),
    ("keeper-1", "keeper"),
    ("daemon-1", "daemon"),
    ("producer-1", "producer"),
    ("caller-1", "caller"),
)
#: The workers of an earlier release, where there are any.
EARLIER: Final = "earlier-1"
#: Of each kind the first: those that live on throughout a soak, which would be too short to tell otherwise.
FIRST: Final = tuple(name for name, _ in MEMBERS if name.endswith("-1"))
#: Those that make work; the others do it.
LOADS: Final = ("producer-1", "caller-1")
#: Seconds in which all must be ready after broker and store are; they are in five, unless the machine is very busy.
START: Final = 90.0


class CannotStart(LeveretError):
    """The processes of a scene do not come to work."""


class Scene:
    """All that takes part in a run.

    Args:
        folder: where record, logs and a store of the scene's own lie.
        brokers: to run on.
        store: likewise: a server, or a SQLite file.
        load: what there is to do.
        namespace: of the shop.
        seed: of the orders.
        queue_type: of all queues.
        lease: seconds that a lease lasts.
        beside: interpreter of an earlier release, whose workers run beside those of today; None: there is none.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: Brokers,
        store: StoreServer | Path,
        load: Load,
        namespace: str,
        seed: int,
        queue_type: QueueType,
        lease: float,
        beside: Path | None = None,
    ) -> None:
        self.folder: Final = folder
        self.brokers: Final = brokers
        self.store_server: Final = store if isinstance(store, StoreServer) else None
        #: The file of its store, where that is one.
        self.sqlite: Final = store if isinstance(store, Path) else None
        self.names: Final = Names(namespace)
        self.lease: Final = lease
        self.record: Final = FileRecord(folder / "record.jsonl", "torture")
        self.members: Final[dict[str, Member]] = {}
        #: What went wrong that nobody had planned, in sentences.
        self.troubles: Final[list[str]] = []
        self._load: Final = load
        self._beside: Final = beside
        self._seed: Final = seed
        self._queue_type: Final[QueueType] = queue_type
        self._proxies: Child | None = None
        self._store_proxy: Child | None = None
        world = system_world()
        self.world: Final = world
        self._store_url: Final = f"sqlite:///{store}" if isinstance(store, Path) else store.url
        #: Ways to broker and store that nothing is done to.
        self.transport: Final[Transport] = wiring.make_transport(parse_broker(brokers.url, "--broker"), world)
        self.store: Final[Store] = wiring.make_store(parse_store(self._store_url, "--store"), world)
        self.dead_letters: Final = DeadLetters(self.store, world, namespace, nudge=lambda: None)

    @property
    def proxies(self) -> Child:
        """The proxies before the broker's nodes."""
        return _started(self._proxies)

    @property
    def store_proxy(self) -> Child:
        """The proxy before the store's server."""
        return _started(self._store_proxy)

    @property
    def queues(self) -> list[str]:
        """All queues of the shop."""
        workers = sorted({worker for takers in shop.TAKERS.values() for worker in takers})
        return [
            self.names.retry_queue,
            self.names.dead_letters,
            *(
                queue
                for worker in workers
                for queue in (self.names.queue(worker), self.names.suspects(worker))
            ),
            rpc_queue(shop.CHANNEL, self.names.namespace),
            daemon.queue_of(self.names.namespace),
        ]

    # ── Beginning ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Start proxies and processes, those that make work last; broker and store are up already.

        Raises:
            CannotStart: a process keeps ending, or not all are ready in time; with all that went wrong.
            LeveretError: broker or store cannot be used.
        """
        try:
            async with asyncio.timeout(START):
                await self._open()
        except ChildGone as error:
            raise CannotStart("\n".join([*self.troubles, str(error)])) from error
        except TimeoutError as error:
            late = [member.not_ready(START) for member in self.members.values() if not member.is_up]
            raise CannotStart(
                "\n".join([f"not all is ready after {START:g} s", *self.troubles, *late])
            ) from error

    async def _open(self) -> None:
        self._proxies = await self._start_proxies("proxies", self.brokers.addresses)
        broker = self.brokers.behind((await self._proxies.ready())["ports"])
        store = self._store_url
        if self.store_server is not None:
            self._store_proxy = await self._start_proxies("store-proxy", [self.store_server.address])
            store = self.store_server.behind((await self._store_proxy.ready())["ports"][0])
        await self.transport.open()
        await self.store.open()
        told = Told(
            by="", roles=[], record=str(self.folder / "record.jsonl"), broker=broker, store=store,
            namespace=self.names.namespace, seed=self._seed, queue_type=self._queue_type, lease=self.lease,
            takes=self._load.takes, rate=self._load.rate, soft=self._load.soft, hard=self._load.hard,
            calls=self._load.calls,
        )  # fmt: skip
        for name, role in MEMBERS:
            self.members[name] = self._member(name, role, told)
        if self._beside is not None:
            # -P: what lies in this folder goes by names that others may mean something else by.
            runs = [str(self._beside), "-P", str(Path(__file__).with_name("earlier.py"))]
            self.members[EARLIER] = self._member(EARLIER, "workers", told, runs=runs)
        await self._start([name for name in self.members if name not in LOADS])
        await self._start(list(LOADS))

    def _member(
        self, name: str, role: Role, told: Told, runs: str | Sequence[str] = "leveret.torture.process"
    ) -> Member:
        told = msgspec.structs.replace(told, roles=[role])
        return Member(
            name, told, folder=self.folder, record=self.record, failed=self.troubles.append, runs=runs
        )

    async def _start(self, names: Sequence[str]) -> None:
        for name in names:
            self.members[name].start()
        for name in names:
            await self.members[name].up()

    async def _start_proxies(self, name: str, behind: Sequence[tuple[str, int]]) -> Child:
        proxies = Child(
            "leveret.torture.proxy",
            ProxiesTold(behind=list(behind), seed=self._seed),
            log=self.folder / f"{name}.log",
        )
        await proxies.start()
        return proxies

    # ── Looking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def left(self) -> dict[str, int] | None:
        """What lies ready in queues and waits in the store, where that is anything; None: it cannot be told now."""
        left: dict[str, int] = {}
        try:
            async with asyncio.timeout(20):
                for queue in self.queues:
                    state = await self.transport.queue_state(queue)
                    if state is not None and state.ready:
                        left[queue] = state.ready
                waiting = await self.store.count_entries(Filter(namespace=self.names.namespace))
        except (BrokerError, StoreUnavailable, TimeoutError):
            return None
        if waiting:
            left["the retry store"] = waiting
        return left

    # ── Ending ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self) -> None:
        """Ask all processes to stop, those that make work first."""
        for names in (LOADS, [name for name in self.members if name not in LOADS]):
            await asyncio.gather(*(self.members[name].stop() for name in names if name in self.members))

    async def close(self) -> None:
        """End all that was started here, whatever has happened."""
        await asyncio.gather(*(member.kill() for member in self.members.values()))
        for proxies in (self._proxies, self._store_proxy):
            if proxies is not None:
                await proxies.kill()
        with contextlib.suppress(BrokerError):
            await self.transport.close()
        with contextlib.suppress(StoreUnavailable):
            await self.store.close()
        self.record.close()


def _started(proxies: Child | None) -> Child:
    if proxies is None:
        raise ChildGone(
            "this scene has not been opened, or there is nothing there for a proxy to stand before"
        )
    return proxies
