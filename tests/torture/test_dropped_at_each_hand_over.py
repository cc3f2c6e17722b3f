"""The app is dropped without clean-up at each hand-over point and started again; the broker and the store live on."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.torture.ledger import Ledger, Planned, decide, planned

from leveret import (
    Context,
    Leveret,
    Message,
    PublishRefused,
    PublishTimeout,
    RetryPolicy,
)
from leveret.core import handover
from leveret.core import headers as h
from leveret.core.message import Outgoing, unwrap
from leveret.core.properties import Properties
from leveret.core.retry_entry import Filter
from leveret.ports import Store
from leveret.runtime.opening import Stand
from leveret.runtime.runner import Runner
from leveret.stores.memory.data import MemoryData
from leveret.stores.memory.store import MemoryStore
from leveret.stores.sqlite import SqliteStore
from leveret.stores.sqlite.file import SqliteFile, _Job, _nothing
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryBroker, MemoryTransport

POLICY = RetryPolicy(first_delay=1, factor=2, jitter=0, max_attempts=3)
#: Seconds of the fake clock that a handler takes, so that some messages are always in hand.
HANDLER = 0.2
STATES = ("dead", "claimed", "replayed", "discarded")

Strike = tuple[str, int]


# ── Stores that can be killed ─────────────────────────────────────────────────────────────────────────────────────────


class WatchedFile(SqliteFile):
    """Knows what it is working on, so that fake time can wait for the thread; and dies on demand."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, busy_timeout=30)
        self.asked: set[Any] = set()

    async def _ask(self, job: _Job) -> Any:
        self.asked.add(job.answer)
        try:
            return await super()._ask(job)
        finally:
            self.asked.discard(job.answer)

    def kill(self) -> None:
        """What the thread has not begun is never done, as in a process that died."""
        jobs, self._jobs = self._jobs, None
        assert jobs is not None
        while not jobs.empty():
            jobs.get_nowait().answer.cancel()
        jobs.put(_Job("close", _nothing))


class Stores:
    """Opens the one store that lives on, anew for each life; SQLite where a path is given."""

    def __init__(self, clock: FakeClock, path: Path | None) -> None:
        self._clock = clock
        self._path = path
        self._data = MemoryData()
        self._files: list[WatchedFile] = []

    def open(self) -> Store:
        if self._path is None:
            return MemoryStore(clock=self._clock, data=self._data)
        store = SqliteStore(self._path, clock=self._clock)
        store.file = WatchedFile(self._path)
        self._files.append(store.file)
        return store

    def kill(self, store: Store) -> None:
        if isinstance(store, SqliteStore):
            assert isinstance(store.file, WatchedFile)
            store.file.kill()
        else:
            assert isinstance(store, MemoryStore)
            store._is_open = False

    async def settled(self) -> None:
        """Return when no store thread is at work, and nothing that its answers set off is about to run."""
        while asked := [answer for file in self._files for answer in file.asked]:
            await asyncio.wait([asyncio.wrap_future(answer) for answer in asked if not answer.cancelled()])
            await idle()


# ── A life: one app object, from its start to its death ───────────────────────────────────────────────────────────────


class Life:
    """One app on the broker and the store that live on."""

    def __init__(self, scene: Scene, number: int, strike: Strike | None) -> None:
        self.scene = scene
        self.strike = strike
        self.arrivals: Counter[str] = Counter()
        self.dead = False
        # Ids of another life must be others, as they are in another process.
        self.world = replace(fake_world(number, scene.clock), reached=self._reached)
        self.transport = MemoryTransport(scene.broker, world=self.world)
        self.store = scene.stores.open()
        self.app = shop(self)
        self.app._stand = Stand(
            world=self.world,
            transport=lambda: self.transport,
            store=lambda: self.store,
            knobs=lambda knobs: replace(knobs, lease_ttl=3.0),
        )
        self._running: AbstractAsyncContextManager[Leveret] = self.app.running()
        self._tasks: list[asyncio.Task[Any]] = []
        self._killed: Runner | None = None
        #: Keys and bodies in hand when it was killed.
        self.keys: set[str] = set()

    @property
    def runner(self) -> Runner:
        assert self.app._open is not None
        assert self.app._open.runner is not None
        return self.app._open.runner

    async def begin(self) -> None:
        await self.app.open()
        await self._running.__aenter__()

    def background(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    async def _reached(self, point: str, message_id: str | None) -> None:
        if not self.dead:
            self.arrivals[point] += 1
            if (point, self.arrivals[point]) == self.strike:
                self.kill()
        await self.still_alive()

    async def still_alive(self) -> None:
        """Nothing of a life goes on after its death."""
        if self.dead:
            await asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """At this very moment: the broker has back what was unsettled, and nothing more reaches broker or store."""
        self.dead = True
        # A start that the strike has interrupted takes its runner along.
        self._killed = self.runner
        self.scene.ledger.interrupt(self.scene.handed_over())
        service = self._killed.retry_service
        assert service is not None
        self.keys = set(service.dispatch.lines.under_way) if service.dispatch is not None else set()
        self.transport.abort()
        self.scene.stores.kill(self.store)

    async def drop(self) -> None:
        """What Python needs to forget a life; nothing of it has an effect any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self._killed is not None
        await self._killed.drop()

    async def end(self) -> None:
        await self._running.__aexit__(None, None, None)
        await self.app.close()


def shop(life: Life) -> Leveret:
    ledger, clock = life.scene.ledger, life.scene.clock
    app = Leveret("shop", broker="memory://", store="memory://", retry=POLICY)

    @app.worker("order.*", prefetch=12, concurrency=6, max_deliveries=30)
    async def charge(order: dict[str, Any], ctx: Context) -> Message | None:
        await life.still_alive()
        ledger.start(ctx)
        await clock.sleep(HANDLER)
        await life.still_alive()
        result = decide(order["kind"], ctx, mended=ledger.mended)
        ledger.done[ctx.body] += 1
        return result

    @app.worker("book.*", prefetch=1, max_deliveries=30)
    async def book(entry: dict[str, Any], ctx: Context) -> None:
        await charge(entry, ctx)

    @app.worker("receipt.*", concurrency=3, max_deliveries=30)
    async def post(receipt: dict[str, Any], ctx: Context) -> None:
        await life.still_alive()
        ledger.start(ctx)
        await clock.sleep(HANDLER)
        await life.still_alive()
        ledger.done[ctx.body] += 1

    return app


# ── The scene ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Scene:
    """A broker, a store and a ledger that outlive every app, and what people do with them."""

    def __init__(self, path: Path | None) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker()
        self.stores = Stores(self.clock, path)
        self.clock.settle = self.stores.settled
        self.ledger = Ledger(planned=list(planned()))
        #: Another program that publishes to the same broker.
        self.outside = MemoryTransport(self.broker, world=fake_world(1000, self.clock))
        self.lives: list[Life] = []

    async def play(self, *strikes: Strike) -> None:
        """One life for each strike, and a last one that does all that is left to do."""
        for number, strike in enumerate((*strikes, None)):
            life = Life(self, number, strike)
            self.lives.append(life)
            life.background(self._people(life))
            while not life.dead and not await self._all_done(life):
                await self.clock.advance(0.5)
            if not life.dead:
                assert strike is None, f"{strike} was never reached; reached were {life.arrivals}"
                break
            await life.drop()
            await self._take_stock(life)
        await self._account(self.lives[-1])
        for life in reversed(self.lives):
            await life.end()
        await self.outside.close()

    async def _people(self, life: Life) -> None:
        """What people do: publish, pull cables, and replay what has died once its cause is mended."""
        await life.begin()
        await self.outside.open()
        first = not self.ledger.interrupted
        half = len(self.ledger.planned) // 2
        await self._publish(life, self.ledger.planned[:half])
        if first:
            # Cut twice within one handler's time: what waited for a slot is flagged, then flagged again.
            await self.clock.sleep(0.1)
            self._cut()
            # Steps that are refused are kept in hand, and must survive there.
            self.broker.refuse_next(3)
            await self.clock.sleep(0.1)
            self._cut()
        await self.clock.sleep(0.4)
        self.broker.refuse_next(3)
        await self._publish(life, self.ledger.planned[half:])
        while not await self._idle(life):
            await self.clock.sleep(0.5)
        self.ledger.mended = True
        # A replay stops where a publish is refused; then they ask once more.
        while await life.app.dead_letters.count(reason="hopeless"):
            # Two a second, in windows of two: there is something between the first one and the last one to strike at.
            await life.app.dead_letters.replay(reason="hopeless", rate=2)

    async def _publish(self, life: Life, planned: list[Planned]) -> None:
        for plan in planned:
            if plan.state == "accepted":
                continue
            if plan.state == "unknown":
                # Published again under the same id, as the error asks for: both copies may be there.
                self.ledger.interrupt([plan.body])
            plan.state = "unknown"
            try:
                await self._publish_one(life, plan)
            except PublishTimeout:
                await life.still_alive()
            except PublishRefused:
                await life.still_alive()
                plan.state = "planned"
            else:
                plan.state = "accepted"
        if any(plan.state != "accepted" for plan in planned):
            await self._publish(life, planned)

    async def _publish_one(self, life: Life, plan: Planned) -> None:
        if plan.kind == "malformed":
            properties = Properties.build(
                message_id=plan.message.id, headers={h.ENVELOPE: h.SOFT_FAILURE, h.RETRY_AFTER: "soon"}
            )
            await self.outside.send(Outgoing("", "shop.retry", plan.body, properties))
        elif plan.kind == "no id":
            properties = Properties.build(type=plan.message.type, headers=plan.message.headers)
            await self.outside.send(Outgoing("shop.events", plan.message.type, plan.body, properties))
        elif plan.kind == "later":
            await life.app.publish(plan.message, delay=1.5)
        else:
            await life.app.publish(plan.message)

    def _cut(self) -> None:
        self.ledger.interrupt(self.handed_over())
        self.broker.drop_connections()

    def handed_over(self) -> list[bytes]:
        """The bodies of what the broker has handed over, and not got back."""
        return [
            unwrap(delivery.body, delivery.properties)[0]
            for connection in self.broker._connections
            for consumer in connection.consumers
            for delivery in consumer.unsettled
        ]

    async def _take_stock(self, life: Life) -> None:
        """What was in a batch of the retry worker or in a window of a replay, by the word of the store."""
        store = self.stores.open()
        await store.open()
        assert (await store.check())["integrity"] == "ok"
        entries, _ = await store.entries(Filter(namespace="shop"), limit=1000)
        under_way = [entry for entry in entries if entry.key in life.keys]
        for entry in under_way:
            whole = await store.entry("shop", entry.retry_id)
            assert whole is not None
            assert whole.body is not None
            self.ledger.interrupt([unwrap(whole.body, Properties(whole.properties))[0]])
        claimed, _ = await store.letters(Filter(namespace="shop"), limit=1000, states=("claimed",))
        for letter in claimed:
            whole_letter = await store.letter("shop", letter.id)
            assert whole_letter is not None
            assert whole_letter.body is not None
            self.ledger.interrupt([whole_letter.body])
        await store.close()

    async def _idle(self, life: Life) -> bool:
        return (
            not life.dead
            and all(plan.state == "accepted" for plan in self.ledger.planned)
            and all(service.working for service in (life.runner.retry_service, life.runner.keeper) if service)
            and await life.runner.idle()
        )

    async def _all_done(self, life: Life) -> bool:
        if not all(task.done() for task in life._tasks):
            return False
        for task in life._tasks:
            task.result()
        return await self._idle(life)

    async def _account(self, life: Life) -> None:
        assert await life.app.counts() == (0, 0, 0, len(await self._letters(life, "dead")))
        self.ledger.close(await self._letters(life, *STATES), max_attempts=POLICY.max_attempts)

    async def _letters(self, life: Life, *states: Any) -> list[Any]:
        found, _ = await life.store.letters(Filter(namespace="shop"), limit=1000, states=states)
        return [await life.store.letter("shop", letter.id) for letter in found]


# ── The tests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def arrivals() -> Counter[str]:
    """How often each point is reached where nothing strikes."""

    async def undisturbed() -> Counter[str]:
        scene = Scene(None)
        await scene.play()
        return scene.lives[0].arrivals

    return asyncio.run(undisturbed())


def test_the_scene_reaches_every_hand_over_point_several_times(arrivals: Counter[str]):
    assert {point for point in handover.ALL if arrivals[point] >= 3} == set(handover.ALL)


@pytest.mark.parametrize("point", handover.ALL)
@pytest.mark.parametrize("moment", ["first", "early", "middle", "late"])
async def test_a_drop_loses_nothing(point: str, moment: str, arrivals: Counter[str], tmp_path: Path):
    quarters = ("first", "early", "middle", "late").index(moment)
    nth = max(1, arrivals[point] * quarters // 4)
    await Scene(tmp_path / "leveret.db").play((point, nth))


@pytest.mark.parametrize("point", handover.ALL)
async def test_three_drops_in_a_row_lose_nothing(point: str, arrivals: Counter[str]):
    await Scene(None).play((point, 2), (point, 1), (point, 1))
