"""A lease has one holder at a time, whatever the wall clocks of those who ask for it say (R4, R6)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cases.scene import WatchedFile

from leveret.ports import Timer
from leveret.retry.lease import STANDBY_POLL, LeaseKeeper
from leveret.stores.memory import MemoryData, MemoryStore
from leveret.stores.sqlite import SqliteStore
from leveret.testing.fake_clock import FakeClock, idle

#: Seconds that a lease lasts here.
TTL = 6.0


class Skewed:
    """A clock that runs with another one, and tells another time of day."""

    def __init__(self, base: FakeClock, ahead: float) -> None:
        self._base = base
        self.ahead = ahead

    def now(self) -> float:
        return self._base.now() + self.ahead

    def monotonic(self) -> float:
        return self._base.monotonic()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        return self._base.call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await self._base.sleep(seconds)


class Hosts:
    """Processes with clocks of their own, which want one lease in one store."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock = FakeClock(settle=self._settled)
        self._kind = kind
        self._path = folder / "leveret.db"
        self._data = MemoryData()
        self._files: list[WatchedFile] = []
        self._stores: list[MemoryStore | SqliteStore] = []
        self.keepers: list[LeaseKeeper] = []
        #: At which moment which of them got it, and how often.
        self.gained: list[tuple[float, str]] = []

    async def start(self, name: str, ahead: float) -> Skewed:
        """One more process, whose wall clock is so many seconds ahead; that clock."""
        clock = Skewed(self.clock, ahead)
        store: MemoryStore | SqliteStore
        if self._kind == "memory":
            store = MemoryStore(clock=clock, data=self._data)
        else:
            store = SqliteStore(self._path, clock=clock)
            store.file = WatchedFile(self._path)
            self._files.append(store.file)
        await store.open()
        self._stores.append(store)
        keeper = LeaseKeeper(
            store.lease("shop/retry"),
            holder=name,
            ttl=TTL,
            clock=clock,
            gained=lambda _: self.gained.append((self.clock.monotonic(), name)),
            lost=lambda _: None,
        )
        keeper.start()
        self.keepers.append(keeper)
        return clock

    def holding(self) -> list[LeaseKeeper]:
        return [keeper for keeper in self.keepers if keeper.holds]

    async def pass_time(self, seconds: float, *, step: float = 0.5) -> float:
        """Let it pass, looking all the time; for how long nobody held the lease at most."""
        longest = nobody = 0.0
        for _ in range(round(seconds / step)):
            await self.clock.advance(step)
            assert len(self.holding()) <= 1
            nobody = 0.0 if self.holding() else nobody + step
            longest = max(longest, nobody)
        return longest

    async def kill(self, keeper: LeaseKeeper) -> None:
        """End it as a kill would: the lease stays in the store."""
        self.keepers.remove(keeper)
        await keeper.stop(release=False)

    async def close(self) -> None:
        for keeper in self.keepers:
            await keeper.stop()
        for store in self._stores:
            await store.close()

    async def _settled(self) -> None:
        while busy := [file for file in self._files if not file.rests.is_set()]:
            await busy[0].rests.wait()
            await idle()


@pytest.fixture(params=["memory", "sqlite"])
async def hosts(request, tmp_path):
    hosts = Hosts(request.param, tmp_path)
    yield hosts
    await hosts.close()


@pytest.mark.parametrize(
    "ahead", [300.0, -300.0, 3600.0], ids=["5 min ahead", "5 min behind", "an hour ahead"]
)
async def test_a_clock_that_is_wrong_neither_takes_a_lease_nor_keeps_one(hosts, ahead):
    await hosts.start("right", 0.0)
    await hosts.clock.advance(0)
    await hosts.start("wrong", ahead)
    assert await hosts.pass_time(5 * TTL) == 0
    assert [name for _, name in hosts.gained] == ["right"]
    await hosts.kill(hosts.holding()[0])
    assert await hosts.pass_time(3 * TTL) <= TTL + STANDBY_POLL
    # The one that is wrong holds it now, and the right one does not get it either.
    await hosts.start("right again", 0.0)
    assert await hosts.pass_time(5 * TTL) == 0
    assert [name for _, name in hosts.gained] == ["right", "wrong"]


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
@pytest.mark.parametrize("jumper", ["holder", "standby"])
async def test_a_clock_that_jumps_by_an_hour_changes_nothing(hosts, jumper, jump):
    clocks = {"holder": await hosts.start("holder", 0.0)}
    await hosts.clock.advance(0)
    clocks["standby"] = await hosts.start("standby", 0.0)
    await hosts.pass_time(2.0)
    clocks[jumper].ahead += jump
    assert await hosts.pass_time(5 * TTL) == 0
    assert [name for _, name in hosts.gained] == ["holder"]


async def test_after_a_clean_stop_a_standby_has_it_within_half_a_second_whatever_its_clock_says(hosts):
    await hosts.start("one", 300.0)
    await hosts.clock.advance(0)
    await hosts.start("two", -300.0)
    await hosts.pass_time(2.0)
    (holder,) = hosts.holding()
    hosts.keepers.remove(holder)
    await holder.stop()
    assert await hosts.pass_time(STANDBY_POLL, step=STANDBY_POLL) == 0
    assert [name for _, name in hosts.gained] == ["one", "two"]


@pytest.mark.parametrize("seed", range(3))
async def test_through_jumps_kills_and_restarts_at_random_there_is_one_holder_at_a_time_and_soon_another(
    hosts, seed
):
    chance = random.Random(seed)
    clocks = [await hosts.start(f"host-{number}", chance.uniform(-300, 300)) for number in range(3)]
    longest = 0.0
    for number in range(12):
        chance.choice(clocks).ahead += chance.uniform(-3600, 3600)
        if hosts.holding() and chance.random() < 0.5:
            await hosts.kill(hosts.holding()[0])
            clocks.append(await hosts.start(f"restarted-{number}", chance.uniform(-300, 300)))
        longest = max(longest, await hosts.pass_time(chance.choice([1.0, 4.0, 9.0])))
        if chance.random() < 0.5:
            # Time for whoever comes next.
            longest = max(longest, await hosts.pass_time(TTL + STANDBY_POLL))
            assert len(hosts.holding()) == 1
    assert longest <= TTL + STANDBY_POLL
    assert len(hosts.gained) > 2
