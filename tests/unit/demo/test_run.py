"""A whole run of the demo in this process, made short."""

from __future__ import annotations

import sqlite3
import time

import pytest

from leveret import RetryPolicy
from leveret.core.urls import StoreUrl, parse_broker
from leveret.demo import pipeline, retry_process, run
from leveret.demo.run import Demo


class Watcher:
    def __init__(self):
        self.told = []
        self.moments = []
        self.on_show = lambda: None

    def show(self, moment):
        self.moments.append(moment)
        self.on_show()

    def tell(self, text):
        self.told.append(text)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(pipeline, "POLICY", RetryPolicy(first_delay=0.1, factor=1, max_attempts=6))
    monkeypatch.setattr(run, "LEASE", 0.6)
    monkeypatch.setattr(run, "AWAY", 0.2)
    monkeypatch.setattr(run, "MISSING", 0.3)
    monkeypatch.setattr(run, "STRIKE", 0.5)
    monkeypatch.setattr(run, "LOOK", 0.05)


@pytest.fixture
def make_demo(short, tmp_path, monkeypatch):
    # So that the example's own app, which is not run, finds no settings file.
    monkeypatch.chdir(tmp_path)

    def make(watcher, *, count=12, seed=7):
        name = f"demo-{time.monotonic_ns():x}"
        return Demo(
            name,
            broker=parse_broker(f"memory://{name}", "the test"),
            store=StoreUrl(kind="sqlite", path=str(tmp_path / "l.db")),
            seed=seed,
            count=count,
            view=watcher,
        )

    return make


async def test_every_message_of_a_run_is_delivered_or_dead(make_demo):
    watcher = Watcher()
    ledger = await make_demo(watcher).run()
    assert (ledger.published, ledger.waiting, ledger.lost) == (14, 0, 0)
    assert ledger.delivered + ledger.dead == 14
    assert ledger.dead >= 2
    assert watcher.moments[-1].settled == watcher.moments[-1].total == 14


async def test_the_retry_worker_dies_and_another_one_takes_its_place_under_a_new_term(make_demo, tmp_path):
    watcher = Watcher()
    await make_demo(watcher).run()
    dropped, again = watcher.told
    assert dropped.startswith("retry worker dropped without clean-up")
    assert again.startswith("started again")
    with sqlite3.connect(tmp_path / "l.db") as file:
        [(term,)] = file.execute("SELECT term FROM lease WHERE name LIKE '%/retry'").fetchall()
    file.close()
    assert term >= 2


async def test_a_message_that_never_arrived_is_reported_lost(make_demo, monkeypatch):
    monkeypatch.setattr(run, "STUCK", 8.0)
    watcher = Watcher()
    demo = make_demo(watcher, count=2)

    def steal():
        if demo._published:
            # As if the broker had confirmed it, and forgotten it.
            demo._published[0] = "gone"

    watcher.on_show = steal
    ledger = await demo.run()
    assert (ledger.published, ledger.lost) == (4, 1)


async def test_a_fault_in_the_run_is_not_hidden(make_demo, monkeypatch):
    class Fault(Exception):
        pass

    def broken(*_):
        raise Fault

    monkeypatch.setattr(run, "plan", broken)
    with pytest.raises(Fault):
        await make_demo(Watcher()).run()


async def test_a_dying_retry_worker_keeps_its_lease_until_it_expires(tmp_path):
    process = retry_process.RetryProcess(
        "demo-x",
        broker=parse_broker("memory://keeps-its-lease", "the test"),
        store=StoreUrl(kind="sqlite", path=str(tmp_path / "l.db")),
        ttl=30,
    )
    await process.start()
    await process._service.keeper.run_once()
    lease = process._parts.store.lease("demo-x/retry")
    holder = (await lease.state()).holder
    await process.die()
    store = retry_process.wiring.make_store(
        StoreUrl(kind="sqlite", path=str(tmp_path / "l.db")), process._parts.world
    )
    await store.open()
    assert (await store.lease("demo-x/retry").state()).holder == holder
    await store.close()
