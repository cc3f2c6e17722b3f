"""A copy of a store is killed (kill -9) in the middle, several times, and run again: nothing twice, nothing missing."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from tests.torture.test_killed_at_hand_over_points import rows

from leveret.core.dead_letter import LetterState
from leveret.runtime.copying import StoreCopy
from leveret.runtime.world import SystemClock, system_world
from leveret.stores.sqlite import SqliteStore
from leveret.testing.store_contract import a_letter, an_entry

HERE = Path(__file__).parent
STATES: tuple[LetterState, ...] = ("dead", "replayed", "discarded")
COUNT = 150


async def test_killed_four_times_and_run_again_every_row_is_there_once_and_whole(tmp_path):
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    async with opened(source) as store:
        await store.put([
            an_entry(f"{n:06}", wait=float(n), body=f"{n}".encode() * n, state="held" if n % 7 == 0 else "waiting")
            for n in range(COUNT)
        ])  # fmt: skip
        await store.keep([
            a_letter(f"{n:06}", died_at=float(n), body=bytes([n]) * n, state=STATES[n % 3]) for n in range(COUNT)
        ])  # fmt: skip
    for nth in (2, 6, 9, 13):
        killed = subprocess.run(
            [sys.executable, HERE / "killed_copy.py", source, target, str(nth)],
            check=False, capture_output=True, timeout=60, text=True,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        await leases_over(target)
    async with opened(source) as one, opened(target) as other:
        copy = StoreCopy(one, other, world=system_world(), ttl=30.0)
        assert await copy.at_work_since("shop") == []
        async with copy.holding(["shop"]):
            copied = await copy.run("shop")
    assert copied.whole
    assert copied.retries.there > 0
    assert copied.letters.there > 0
    there, here = await rows(target), await rows(source)
    assert len(there[0]) == len(there[1]) == COUNT
    for was, became in zip(here[0], there[0], strict=True):
        assert replace(became, due_at=was.due_at, due_in=was.due_in) == was
        # Never early, and late by the time that one write takes.
        assert -0.01 <= became.due_at - was.due_at < 2
    assert there[1] == here[1]


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    """The store of a file, open within the block."""
    store = SqliteStore(path, clock=SystemClock())
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def leases_over(path: Path) -> None:
    """Return when the leases of a process that is gone have ended; nobody tells when."""
    async with opened(path) as store:
        while any(state.left > 0 for state in (await store.leases("shop")).values()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
