"""One run: a plan drawn from a seed, lived through on virtual time, and judged."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from leveret.core import headers as h
from leveret.core.message import unwrap
from leveret.core.properties import Properties
from leveret.core.topology import Names, QueueType
from leveret.proof.ledger import Verdict, judge
from leveret.proof.record import AnyEvent, Asked, Backlog, Ended, Found, LeaseTaken
from leveret.proof.shop import digest_of
from leveret.proof.verdict import Fault
from leveret.simulate import roles
from leveret.simulate.blow import BY, Blow
from leveret.simulate.faults import FAULTS
from leveret.simulate.loop import VirtualLoop
from leveret.simulate.process import Machine, Process
from leveret.simulate.rest import UnderWay
from leveret.simulate.scene import BEGIN, SHOP, SPAN, Ask, Scene

#: How many faults strike, at least and at most.
STRIKES = (3, 12)
#: Share of the runs whose store all processes use at once.
SHARED = 0.6
#: Seconds of virtual time in which all must have come to rest once the faults are over. What is due later may wait on.
REST = 1200.0
#: And then in which at least what is overdue must go: a handler may put its message off for ever.
OVERDUE_GOES = 60.0
#: Seconds after which what was due is overdue when all else is still.
OVERDUE = 5.0
#: Seconds that the last replay may take, and that processes may take to stop.
LAST_REPLAY = 120.0
STOP = 60.0
#: What the record calls the retry store, beside the queues.
STORE = "the retry store"
#: The rule that a run breaks whose processes left an exception to nobody.
UNHEARD = "unheard"
#: Seconds around a blow in which what was settled may not have reached the broker.
MARGIN = 0.1
#: Deaths of what was handled, for each thousand messages, after which nobody waits for it to come to rest: few are
#: deadly, and each may kill five times.
MOST_DEATHS = 200
#: Seconds of virtual time between looks whether it has.
LOOK = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A fault of a plan: which, when (seconds from the start), and the seed of all that it draws."""

    name: str
    at: float
    seed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What happens in a run, all of it; the same plan is the same run."""

    seed: int
    asks: tuple[Ask, ...]
    faults: tuple[Planned, ...]
    shared_store: bool
    queue_type: QueueType | None
    workers: int
    retry_workers: int


def plan_of(seed: int, asks: Sequence[Ask], *, faults: Sequence[str] = tuple(FAULTS)) -> Plan:
    """The plan of a seed.

    Args:
        asks: what is published.
        faults: the names of those that may be drawn.
    """
    chance = random.Random(f"plan of {seed}")
    number = chance.randint(*STRIKES) if faults else 0
    planned = (
        Planned(
            name=chance.choice(faults),
            at=round(chance.uniform(BEGIN / 2, BEGIN + SPAN), 3),
            seed=f"{seed}/{position}",
        )
        for position in range(number)
    )
    return Plan(
        seed=seed,
        asks=tuple(asks),
        faults=tuple(sorted(planned, key=lambda fault: fault.at)),
        shared_store=chance.random() < SHARED,
        queue_type=chance.choice((None, "quorum")),
        workers=chance.randint(1, 3),
        retry_workers=chance.randint(1, 3),
    )


class Run:
    """A run while it goes on."""

    def __init__(self, plan: Plan, loop: VirtualLoop, scene: Scene) -> None:
        self.plan: Final = plan
        self.loop: Final = loop
        self.scene: Final = scene
        self.names: Final = Names(scene.namespace)
        self.machine: Final = Machine(
            plan.seed, loop, scene, shared_store=plan.shared_store, queue_type=plan.queue_type
        )
        self.broker: Final = self.machine.broker
        self.store: Final = self.machine.store
        self.processes: Final[list[Process]] = []
        #: What showed that it did not come to rest.
        self.left: Final[list[Fault]] = []
        self._under_way: Final = UnderWay(self.machine)
        self._shares: Final = [roles.Share(plan.asks[::2]), roles.Share(plan.asks[1::2])]
        self._waiting: dict[str, list[tuple[asyncio.Future[Process], list[int]]]] = {}
        self._deaths = 0
        self._last_replay = False
        self._nobodys: Final = contextvars.copy_context()

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()

    def note(self, event: AnyEvent) -> None:
        """Write an event down."""
        self.machine.events.append(event)

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    async def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is true, so many seconds at most; whether it is."""
        end = self.now + seconds
        while not true():
            if self.now >= end:
                return False
            await asyncio.sleep(0.05)
        return True

    # ── Processes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, name: str, work: Any) -> Process:
        """Start a process."""
        process = Process(self.machine, name, work)
        process.reached = self._reached
        process.died = self._died
        process.start()
        self.processes.append(process)
        return process

    def living(self) -> list[Process]:
        """Those that live and are not stopped."""
        return [process for process in self.processes if process.alive and not process.body.stopped]

    def holder(self) -> Process | None:
        """Who holds the retry lease, as far as the store knows."""
        lease = f"{self.scene.namespace}/retry"
        row = self.store.data.leases.get(lease)
        if row is None or not row.holder:
            return None
        told = (
            event.by
            for event in reversed(self.machine.events)
            if isinstance(event, LeaseTaken) and event.lease == lease and event.term == row.term
        )
        by = next(told, None)
        return next((process for process in self.living() if process.by == by), None)

    async def back(self, process: Process, seconds: float) -> None:
        """Start a dead process again after so many seconds, unless somebody else has."""
        await asyncio.sleep(seconds)
        if not process.alive or process.ended():
            process.start()

    async def arrives(self, point: str, arrival: int, seconds: float) -> Process | None:
        """Wait for the n-th arrival at a hand-over point; who came there, and waits to be killed."""
        there: asyncio.Future[Process] = self.loop.create_future()
        self._waiting.setdefault(point, []).append((there, [arrival]))
        done, _ = await asyncio.wait([there], timeout=seconds)
        if not done:
            self._waiting[point] = [each for each in self._waiting[point] if each[0] is not there]
            return None
        return there.result()

    async def _reached(self, process: Process, point: str) -> None:
        for there, left in self._waiting.get(point, ()):
            left[0] -= 1
            if left[0] == 0 and not there.done():
                there.set_result(process)
                self._waiting[point] = [each for each in self._waiting[point] if each[0] is not there]
                # The blow falls before it goes on; nothing of it runs after that.
                await asyncio.sleep(0.01)
                return

    def _died(self, process: Process) -> None:
        """A process has died of what it handled; it is started again."""
        self._deaths += 1
        blow = Blow(self.machine, f"died {process.by}", "kill", process, note="of a deadly message")

        async def again() -> None:
            await self.back(process, 0.3)
            blow.heal()

        # Not the dead one's doing.
        self.loop.create_task(again(), context=self._nobodys)

    # ── From beginning to end ─────────────────────────────────────────────────────────────────────────────────────────

    async def live(self) -> None:
        """Publish, strike, let it come to rest, replay, let it come to rest, stop, and look what lies where."""
        plan = self.plan
        # The topology is there before anybody publishes: whoever comes first declares it.
        for number in range(plan.workers):
            both = number == 0
            self.begin(
                f"worker-{number + 1}",
                roles.worker(works=True, retry_worker=both, keeper=both),
            )
        for number in range(plan.retry_workers):
            self.begin(
                f"keeper-{number + 1}",
                roles.worker(works=False, retry_worker=True, keeper=True),
            )
        for number, share in enumerate(self._shares):
            self.begin(f"producer-{number + 1}", roles.producer(share))
        callers = []
        if self.scene.channel is not None:
            callers.append(self.begin("caller", roles.caller(60, 0.5)))
        replayer = self.begin("replayer", roles.replayer(lambda: self._last_replay))
        strikes = [self.loop.create_task(self._strike(fault, n)) for n, fault in enumerate(plan.faults)]
        for strike in strikes:
            await strike
        if await self._rest():
            self._last_replay = True
            await self._end([replayer], LAST_REPLAY)
            # A call that fails leaves a dead letter: the last one is made before all is looked at.
            await self._stop(callers)
            await self._rest()
        overdue = self.now - OVERDUE
        await self._stop(self.processes)
        self._survey(overdue)

    async def _stop(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.stopping.set()
        await self._end(processes, STOP)

    async def _end(self, processes: Sequence[Process], seconds: float) -> None:
        """Wait until they have ended; who has not in time is told, with what it waits for."""
        if await self.until(lambda: all(process.ended() for process in processes), seconds):
            return
        late = [process for process in processes if not process.ended()]
        if not self.left:
            # Else it is told already.
            self.left.extend(self._under_way.unanswered(late))
        self.left.extend(
            self._under_way.fault(f"{process.by} was to end, and has not in {seconds:g} s")
            for process in late
        )

    async def _strike(self, fault: Planned, number: int) -> None:
        await asyncio.sleep(fault.at)
        await FAULTS[fault.name](self, random.Random(fault.seed), f"{number}")

    async def _rest(self) -> bool:
        """Wait until all is published and nothing is under way any more; where that takes too long, tell what is."""
        quiet, end = 0, self.now + REST
        most = MOST_DEATHS * max(1.0, len(self.plan.asks) / 1000)
        while quiet < 3 and self.now < end + OVERDUE_GOES:
            if self._deaths >= most:
                told = f"processes have died {self._deaths} times of what they handled, and there is no end of it"
                self.left.append(self._under_way.fault(told))
                return False
            due = end if self.now < end else self.now - OVERDUE
            published = all(share.done for share in self._shares)
            quiet = quiet + 1 if published and self._under_way.nothing(due) else 0
            await asyncio.sleep(LOOK)
        if quiet < 3:
            self.left.extend(self._under_way.told(self.now - OVERDUE, self._shares, self.processes))
        return quiet == 3

    def _survey(self, overdue: float) -> None:
        """Write down where everything lies. What was due before *overdue* should have gone."""
        data, names = self.store.data, self.names
        queues = {names.queue(worker): worker for worker in self.scene.workers}
        queues |= {names.suspects(worker): worker for worker in self.scene.workers}
        for entry, _ in data.retries.values():
            self._found(
                entry.body or b"",
                Properties(entry.properties),
                entry.worker if entry.kind != "delayed" else None,
                "waiting",
                attempt=entry.attempt,
            )
        for letter in data.letters.values():
            if letter.state == "discarded":
                continue
            properties = Properties(letter.properties)
            for worker in roles.whose(letter, self.scene):
                self._found(
                    letter.body or b"", properties, worker, "dead", attempt=letter.attempts, reason=letter.reason,
                    replayed=letter.state == "replayed", digest=digest_of(letter.body or b"", properties),
                )  # fmt: skip
        for queue in sorted(self.broker.snapshot()):
            lying = self.broker.messages(queue)
            for message in lying:
                body, properties = unwrap(message.body, message.properties)[:2]
                told = properties.header(h.WORKER)
                self._found(
                    body, properties, queues.get(queue, told if isinstance(told, str) else None), "queue"
                )
            self.note(Backlog(at=self.now, by=BY, queue=queue, messages=len(lying)))
        stuck = self._under_way.entries(overdue)
        self.note(Backlog(at=self.now, by=BY, queue=STORE, messages=len(stuck)))

    def _found(
        self, body: bytes, properties: Properties, worker: str | None, place: Any, **more: Any
    ) -> None:
        subject = self.scene.subject(body, properties)
        if subject is not None:
            self.note(Found(at=self.now, by=BY, worker=worker, subject=subject, place=place, **more))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to."""

    plan: Plan
    verdict: Verdict
    events: list[AnyEvent] = field(repr=False)
    #: What asyncio was told that nobody caught.
    complaints: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the promise was kept."""
        return self.verdict.passed and not self.complaints

    @property
    def wrong(self) -> frozenset[str]:
        """The rules that it broke."""
        rules = {fault.rule for fault in self.verdict.faults}
        return frozenset(rules | ({UNHEARD} if self.complaints else set()))


def simulate(plan: Plan, scene: Scene = SHOP) -> Result:
    """Live through a plan, and judge it."""
    with quietly():
        events, complaints, left = _lived(plan, scene)
        types = {event.type for event in events if isinstance(event, Asked)}
        types |= {type for event in events if isinstance(event, Ended) for type, _ in event.results}
        # Within: what the judge leaves behind would be frozen in the next run, and stay.
        verdict = judge(
            events,
            takers={type: scene.takers(type) for type in sorted(types)},
            max_attempts=max(scene.max_attempts.values()),
            max_deliveries=scene.max_deliveries,
            unread=scene.unread,
            margin=MARGIN,
        )
        verdict = replace(verdict, faults=(*verdict.faults, *left))
    return Result(plan=plan, verdict=verdict, events=events, complaints=complaints)


def _lived(plan: Plan, scene: Scene) -> tuple[list[AnyEvent], tuple[str, ...], tuple[Fault, ...]]:
    loop = VirtualLoop(random.Random(f"turns of {plan.seed}"))
    run = Run(plan, loop, scene)
    try:
        loop.run_until_complete(run.live())
        return list(run.machine.events), tuple(loop.complaints), tuple(run.left)
    finally:
        loop.close()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Nothing is logged or collected until the end, and what ends unheard then stays so."""
    level, hook, collects = logging.root.manager.disable, sys.unraisablehook, gc.isenabled()
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None
    gc.disable()
    # What was there before is none of the collector's business: only what the run leaves behind is looked through.
    gc.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            yield
        finally:
            # The coroutines of the dead are ended by the collector. The record is closed by now. What they would still
            # begin has no loop to wait on, as after asyncio.run: one that is made for it would keep them for good.
            asyncio.set_event_loop(None)
            gc.collect()
            gc.collect()
            gc.unfreeze()
            sys.unraisablehook = hook
            logging.disable(level)
            if collects:
                gc.enable()
