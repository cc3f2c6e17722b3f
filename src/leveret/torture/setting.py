"""Setting: what a run is made of, from the command line to the folder of its report."""

from __future__ import annotations

import asyncio
import contextlib
import math
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

from leveret.core.errors import BrokerUnreachable, ConfigError, LeveretError, StoreUnavailable
from leveret.core.topology import QueueType
from leveret.core.urls import parse_broker, parse_store
from leveret.proof import record, shop
from leveret.proof.ledger import Verdict, judge
from leveret.proof.record import AnyEvent
from leveret.proof.report import Head, write_report
from leveret.torture import flatness, network
from leveret.torture.addresses import Brokers, StoreServer
from leveret.torture.cluster import Cluster
from leveret.torture.network import Network
from leveret.torture.node import Node, find_rabbitmq
from leveret.torture.plan import Planned, available, plan
from leveret.torture.postgres import Postgres, find_postgres
from leveret.torture.run import TAKERS, Run
from leveret.torture.scene import FIRST, MEMBERS, Load, Scene

T = TypeVar("T")

#: Seconds that a lease lasts: short, so that a paused holder loses it within a fault.
LEASE: Final = 2.0
#: What the command has where nothing is said.
_USUAL: Final = {"minutes": 10.0, "rate": 300.0, "soft": 0.05, "hard": 0.005}
#: Seconds between two blows at a server whose start is given up.
_END_AGAIN: Final = 0.1


class Stopped(LeveretError):
    """A stop was asked for before there was anything to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run is made of.

    Attributes:
        minutes: that there is load.
        seed: of plan and orders.
        every: seconds from one fault to the next, at least and at most.
        rate: messages published a second.
        soft, hard: shares of the messages that fail so at first.
        faults: names of kinds; `all`, or `none`.
        cluster: three brokers of its own instead of one.
        postgres: a PostgreSQL server of its own as the store.
        broker, store: URLs of what is there already; None: of its own.
        namespace: of the shop.
        beside: folder of an earlier release, whose workers run beside those of today; see scripts/release.
        soak: whether what processes use must stay flat.
        folder: for record and report; None: a new one.
    """

    minutes: float
    seed: int
    every: tuple[float, float] = (10.0, 10.0)
    rate: float = 300.0
    soft: float = 0.05
    hard: float = 0.005
    faults: tuple[str, ...] = ("all",)
    cluster: bool = False
    postgres: bool = False
    broker: str | None = None
    store: str | None = None
    namespace: str = "torture"
    beside: Path | None = None
    soak: bool = False
    folder: Path | None = None

    def __post_init__(self) -> None:
        for name in ("minutes", "rate", "soft", "hard"):
            # Of nan no bound says that it is out of it.
            if not math.isfinite(value := getattr(self, name)):
                raise ConfigError(f"--{name} {value:g}: expected a number, such as {_USUAL[name]:g}")
        if self.broker is not None and self.cluster:
            raise ConfigError(
                "--broker and --cluster: the one names a broker, the other starts three. Say one of them"
            )
        if self.store is not None and self.postgres:
            raise ConfigError(
                "--store and --postgres: the one names a store, the other starts one. Say one of them"
            )
        if self.broker is not None and parse_broker(self.broker, "--broker").scheme != "amqp":
            raise ConfigError(
                f"--broker {parse_broker(self.broker, '--broker')}: expected amqp://…, for a proxy stands before it"
            )
        if self.store is not None and parse_store(self.store, "--store").kind not in {"sqlite", "postgresql"}:
            store = parse_store(self.store, "--store")
            raise ConfigError(
                f"--store {store}: expected sqlite:///… or postgresql://…, which the torture can strike"
            )
        if self.soak and self.minutes * 60 < flatness.SHORTEST:
            raise ConfigError(
                f"--soak --minutes {self.minutes:g}: too short to tell, it takes {flatness.SHORTEST / 60:g} minutes"
            )
        if self.interpreter is not None and not self.interpreter.exists():
            raise ConfigError(
                f"--beside {self.beside}: there is no {self.interpreter}. From a clone with its history: "
                f"scripts/release 0.2.0 {self.beside}"
            )

    @property
    def interpreter(self) -> Path | None:
        """Of the earlier release."""
        return None if self.beside is None else self.beside / ".venv" / "bin" / "python"

    @property
    def command(self) -> str:
        """What to type for the same run; addresses are left out."""
        words = [f"leveret torture --minutes {self.minutes:g} --seed {self.seed}"]
        if self.every != (10.0, 10.0):
            words.append(f"--every {'-'.join(f'{each:g}' for each in dict.fromkeys(self.every))}")
        for name in ("rate", "soft", "hard"):
            if getattr(self, name) != _USUAL[name]:
                words.append(f"--{name} {getattr(self, name):g}")
        if self.faults != ("all",):
            words.append(f'--faults "{",".join(self.faults)}"')
        words += [f"--{name}" for name in ("cluster", "postgres", "soak") if getattr(self, name)]
        words += [f"--{name} …" for name in ("broker", "store", "beside") if getattr(self, name) is not None]
        return " ".join(words)

    @property
    def has(self) -> set[str]:
        """What faults may need, and this has."""
        has = set()
        if self.broker is None:
            has |= {"node", "cluster" if self.cluster else "classic"}
        if self.cluster and network.unavailable() is None:
            has.add("namespaces")
        if self.postgres:
            has |= {"server", "postgres"}
        elif self.store is None or parse_store(self.store, "--store").kind == "sqlite":
            has.add("sqlite")
        else:
            has.add("server")
        return has

    @property
    def soaked(self) -> set[str]:
        """The kinds of processes that a soak must tell of: leveret's, and a broker of our own."""
        return {name.partition("-")[0] for name in FIRST} | ({"broker"} if self.broker is None else set())

    def plan(self) -> list[Planned]:
        """The faults of the run.

        Raises:
            ConfigError: a fault that there is not, or not here.
        """
        if self.faults == ("none",):
            return []
        kinds = available(self.has, () if self.faults == ("all",) else self.faults)
        return plan(
            self.seed,
            seconds=self.minutes * 60,
            every=self.every,
            kinds=kinds,
            processes=[name for name, _ in MEMBERS],
            spared=FIRST if self.soak else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What there is to judge.

    Attributes:
        planned: the faults.
        struck: how many of them were.
        troubles: what went wrong beside what the record says, in sentences.
        folder: where the record is.
        versions: of all that took part.
    """

    planned: list[Planned]
    struck: int
    troubles: list[str]
    folder: Path
    versions: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to.

    Attributes:
        verdict: by the record.
        troubles: what else went wrong, in sentences.
        lives: of a soak: how what each process used went.
        struck: faults of the plan that were struck.
        folder: where record and report are.
        versions: of all that took part.
        date: when it ended.
    """

    verdict: Verdict
    troubles: tuple[str, ...]
    lives: tuple[str, ...]
    struck: int
    folder: Path
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""

    @property
    def passed(self) -> bool:
        """Whether the promise was kept, and nothing else went wrong."""
        return self.verdict.passed and not self.troubles


async def play(setting: Setting, *, say: Callable[[str], object], asked_to_stop: asyncio.Event) -> Played:
    """Start what it needs, run it, and end all that was started.

    Args:
        setting: of the run.
        say: told of the plan and of what is going on, line by line.
        asked_to_stop: set: the load ends early, and what there is then can be judged.

    Raises:
        ConfigError: a fault that this setting does not have.
        Stopped: that was asked for while it was starting.
        LeveretError: broker or store cannot be used, or the processes do not come to work.
    """
    planned = setting.plan()
    folder = _folder(setting)
    say(f"{setting.command}   in {folder}")
    for fault in planned:
        say(str(fault))
    async with contextlib.AsyncExitStack() as started:
        scene = await _unless(asked_to_stop, _opened(setting, folder, started))
        run = Run(scene, planned, setting.minutes * 60, say, soaks=setting.soak)
        struck = await run.run(asked_to_stop)
        versions = {
            "leveret": version("leveret"),
            "RabbitMQ": scene.transport.server_version,
            "Python": platform.python_version(),
        }
    return Played(planned=planned, struck=struck, troubles=scene.troubles, folder=folder, versions=versions)


async def _opened(setting: Setting, folder: Path, started: contextlib.AsyncExitStack) -> Scene:
    scene = await started.enter_async_context(_scene(setting, folder))
    await scene.open()
    return scene


async def _unless(asked_to_stop: asyncio.Event, starting: Coroutine[Any, Any, T]) -> T:
    """What it comes to.

    Raises:
        Stopped: that was asked for before; it is cancelled then.
    """
    asked, begun = asyncio.create_task(asked_to_stop.wait()), asyncio.create_task(starting)
    try:
        await asyncio.wait([asked, begun], return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            return begun.result()
    finally:
        for task in (asked, begun):
            task.cancel()
        await asyncio.wait([asked, begun])
    raise Stopped("asked to stop while it was starting: nothing was struck, and there is nothing to judge")


def judged(setting: Setting, played: Played) -> Outcome:
    """Judge what was played, and write its report."""
    path = played.folder / "record.jsonl"

    def events() -> Iterator[AnyEvent]:
        return record.read(path)

    verdict = judge(
        events(), takers=TAKERS, max_attempts=shop.MAX_ATTEMPTS, max_deliveries=shop.MAX_DELIVERIES
    )
    troubles = list(played.troubles)
    lives: list[flatness.Life] = []
    if setting.soak:
        lives = flatness.lives(events())
        troubles += flatness.troubles(lives, setting.soaked)
    head = Head(
        command=setting.command,
        seed=setting.seed,
        versions=played.versions,
        plan=[str(fault) for fault in played.planned],
    )
    write_report(
        played.folder / "report.html", head, verdict, events, takers=TAKERS, max_attempts=shop.MAX_ATTEMPTS
    )
    return Outcome(
        verdict=verdict,
        troubles=tuple(troubles),
        lives=tuple(map(str, lives)),
        struck=played.struck,
        folder=played.folder,
        versions=played.versions,
        date=time.strftime("%Y-%m-%d"),
    )


def _folder(setting: Setting) -> Path:
    if setting.folder is None:
        return Path(tempfile.mkdtemp(prefix="leveret-torture-"))
    setting.folder.mkdir(parents=True, exist_ok=True)
    if (setting.folder / "record.jsonl").exists():
        raise ConfigError(f"--report {setting.folder}: a record of another run is there. Name a new folder")
    return setting.folder.resolve()


@contextlib.asynccontextmanager
async def _scene(setting: Setting, folder: Path) -> AsyncIterator[Scene]:
    """A scene on servers that run; all of it is ended afterwards."""
    queue_type: QueueType = "quorum" if setting.cluster else "classic"
    async with contextlib.AsyncExitStack() as stack:
        scene = Scene(
            folder,
            brokers=await stack.enter_async_context(_brokers(setting, folder)),
            store=await stack.enter_async_context(_store(setting, folder)),
            load=Load(rate=setting.rate, soft=setting.soft, hard=setting.hard),
            namespace=setting.namespace,
            seed=setting.seed,
            queue_type=queue_type,
            lease=LEASE,
            beside=setting.interpreter,
        )
        stack.push_async_callback(scene.close)
        yield scene


@contextlib.asynccontextmanager
async def _brokers(setting: Setting, folder: Path) -> AsyncIterator[Brokers]:
    if setting.broker is not None:
        yield Brokers(url=setting.broker)
        return
    find_rabbitmq()
    async with contextlib.AsyncExitStack() as stack:
        if setting.cluster:
            hosts = stack.enter_context(Network(3)) if network.unavailable() is None else None
            cluster = Cluster(_made(folder / "cluster"), network=hosts)
            await stack.enter_async_context(_running(cluster))
            yield Brokers(url=cluster.url, nodes=cluster.nodes, cluster=cluster)
        else:
            node = Node(_made(folder / "node"))
            await stack.enter_async_context(_running(node))
            yield Brokers(url=node.url, nodes=(node,))


@contextlib.asynccontextmanager
async def _store(setting: Setting, folder: Path) -> AsyncIterator[StoreServer | Path]:
    if setting.postgres:
        find_postgres()
        # Where we are root, the server is not, and must be let into its folder.
        with tempfile.TemporaryDirectory(prefix="leveret-torture-postgres-") as place:
            server = Postgres(Path(place))
            async with _running(server):
                yield StoreServer(url=server.url, server=server)
    elif setting.store is None:
        yield folder / "leveret.db"
    else:
        store = parse_store(setting.store, "--store")
        yield Path.cwd() / store.path if store.kind == "sqlite" else StoreServer(url=setting.store)


@contextlib.asynccontextmanager
async def _running(server: Node | Cluster | Postgres) -> AsyncIterator[None]:
    """It runs within the block.

    Raises:
        BrokerUnreachable, StoreUnavailable: it does not come up; with its last words.
    """
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    try:
        try:
            await asyncio.shield(starting)
        except RuntimeError as error:
            kind = StoreUnavailable if isinstance(server, Postgres) else BrokerUnreachable
            raise kind(str(error)) from error
        yield
    finally:
        await asyncio.to_thread(server.end)
        # Its thread knows nothing of a cancellation: what it still starts is ended until it gives up.
        while not starting.done():
            await asyncio.wait([starting], timeout=_END_AGAIN)
            await asyncio.to_thread(server.end)
        if not starting.cancelled():
            # What it said for having been ended; anything else has been raised above.
            starting.exception()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
