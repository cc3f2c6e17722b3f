"""Whatever is done to them, memory store and SQLite store answer alike: tests on the one speak for the other."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leveret.core.dead_letter import Replay
from leveret.core.errors import LeveretError
from leveret.core.retry_entry import Filter
from leveret.stores.memory import MemoryStore
from leveret.stores.sqlite import SqliteStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import a_letter, an_entry

STATES = ("dead", "claimed", "replayed", "discarded")

names = st.sampled_from(["a", "b", "c", "z \0\ud800"])
namespaces = st.sampled_from(["shop", "depot"])
failures = st.integers(1, 3)
seconds = st.sampled_from([0.0, 0.5, 3.0, 60.0])
queues = st.sampled_from(["shop.charge", "shop.other"])
rows = st.lists(st.tuples(names.map(lambda name: f"shop.charge/{name}"), failures), max_size=3)
named = st.lists(st.tuples(namespaces, names.map(lambda name: f"shop.charge/{name}")), max_size=3)
letters = st.builds(
    lambda name, namespace, died_at, reason: a_letter(
        name, namespace=namespace, died_at=died_at, reason=reason
    ),
    names,
    namespaces,
    st.sampled_from([1.0, 2.0]),
    st.sampled_from(["order 1 is gone", "no such order", "\ud800"]),
)
entries = st.builds(
    lambda name, namespace, failure, wait, queue: an_entry(
        name, namespace=namespace, failure=failure, wait=wait, queue=queue
    ),
    names,
    namespaces,
    failures,
    seconds,
    queues,
)
filters = st.builds(
    Filter,
    namespace=st.none() | namespaces,
    ids=st.lists(names.map(lambda name: f"letter-id-{name}"), max_size=1),
    reason=st.none() | st.just("ORDER"),
)
states = st.sampled_from(STATES)


def step(name, *arguments, **options):
    return st.tuples(st.just(name), st.tuples(*arguments), st.fixed_dictionaries(options))


steps = st.one_of(
    step("put", st.lists(entries, max_size=4)),
    step("put", st.lists(entries, max_size=4)),
    step("take", namespaces, rows),
    step("remove", namespaces, rows),
    step("postpone", namespaces, rows, seconds=seconds, blocked=st.none() | st.just("gone")),
    step("unblock", namespaces, queues),
    step("reschedule", named, wait=seconds),
    step("hold", named, held=st.booleans(), reason=st.just("wait")),
    step("move", named, queue=queues),
    st.tuples(rows, letters).map(lambda given: ("bury", (given[0], [given[1]] * len(given[0])), {})),
    step("keep", st.lists(letters, max_size=3)),
    step("claim", filters, replay_id=st.sampled_from(["r1", "r2"]), limit=st.integers(1, 3)),
    step(
        "replayed",
        st.lists(st.tuples(namespaces, names.map(lambda name: f"letter-id-{name}")), max_size=2),
        st.sampled_from(["r1", "r2"]).map(
            lambda id: Replay(at=5.0, replay_id=id, to="q", outcome="published\0")
        ),
        state=st.sampled_from(["replayed", "dead"]),
    ),
    step("set_state", filters, was=states, to=st.sampled_from(["dead", "discarded"])),
    step("edit", namespaces, names.map(lambda name: f"letter-id-{name}"), st.sampled_from([b"x", b"y"])),
    step("entry", st.none() | namespaces, names.map(lambda name: f"message-{name}")),
    step("letter", st.none() | namespaces, names.map(lambda name: f"message-{name}")),
    step("advance", seconds),
)


async def answer(store, name, arguments, options):
    try:
        return await getattr(store, name)(*arguments, **options)
    except LeveretError as error:
        return type(error), str(error)


async def all_of(store):
    seen = [await store.namespaces(), await store.groups(Filter())]
    for namespace in ("shop", "depot"):
        seen += [await store.next_due(namespace), await store.upcoming(namespace, within=9.0, limit=99)]
    for wanted in (Filter(), Filter(namespace="shop")):
        after = None
        while True:
            page, after = await store.entries(wanted, limit=2, after=after)
            seen.append(page)
            if after is None:
                break
        while True:
            page, after = await store.letters(wanted, limit=2, after=after, states=STATES)
            seen.append(page)
            if after is None:
                break
        seen += [
            await store.count_entries(wanted, overdue=True),
            await store.count_letters(wanted, states=STATES),
        ]
    return seen


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, max_size=25))
def test_both_stores_give_the_same_answers(plan):
    async def main():
        clock = FakeClock()
        memory, sqlite = MemoryStore(clock=clock), SqliteStore(Path(folder) / "leveret.db", clock=clock)
        await memory.open()
        await sqlite.open()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(sqlite.close)
            for name, arguments, options in plan:
                if name == "advance":
                    await clock.advance(*arguments)
                    continue
                given = await answer(memory, name, arguments, options)
                assert await answer(sqlite, name, arguments, options) == given
            assert await all_of(sqlite) == await all_of(memory)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main())
