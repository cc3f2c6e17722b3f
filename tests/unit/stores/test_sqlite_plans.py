"""What the store asks of SQLite must not depend on how much waits: no frequent query may walk a table."""

from __future__ import annotations

import re

import pytest

from leveret.core.retry_entry import Filter
from leveret.stores.sqlite import SqliteStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import a_letter, an_entry

ROWS = [(f"shop.charge/{name}", 3) for name in "ab"]
NAMED = [("shop", key) for key, _ in ROWS]
ONE = Filter(namespace="shop")
NAMES = ("retry-id-a", "er-id-b", "no-such-id")

FREQUENT = {
    "put": lambda s: s.put([an_entry("new"), an_entry("a")]),
    "upcoming": lambda s: s.upcoming("shop", within=5.0, limit=100),
    "upcoming after": lambda s: s.upcoming("shop", within=5.0, limit=100, since=9.0, after=(1.0, "x")),
    "next_due": lambda s: s.next_due("shop"),
    "take": lambda s: s.take("shop", ROWS),
    "remove": lambda s: s.remove("shop", ROWS),
    "postpone": lambda s: s.postpone("shop", ROWS, seconds=5.0, blocked="gone"),
    "unblock": lambda s: s.unblock("shop", "shop.charge"),
    "reschedule": lambda s: s.reschedule(NAMED, wait=5.0),
    "hold": lambda s: s.hold(NAMED, held=True),
    "move": lambda s: s.move(NAMED, queue="shop.other"),
    "bury": lambda s: s.bury(ROWS, [a_letter("x"), a_letter("y")]),
    "entry": lambda s: s.entry(None, "retry-id-a"),
    "entries": lambda s: s.entries(Filter(), limit=50),
    "keep": lambda s: s.keep([a_letter("new")]),
    "letters": lambda s: s.letters(Filter(), limit=50, states=("dead", "claimed")),
    "count_letters": lambda s: s.count_letters(ONE),
    "letter": lambda s: s.letter(None, "er-id-a"),
    "claim": lambda s: s.claim(Filter(), replay_id="r", limit=50),
    "asked": lambda s: s.asked("shop", ["dead.replay"]),
    "act": lambda s: s.act("act-one"),
    "count_start": lambda s: s.count_start("shop", "q", "m"),
    "forget_starts": lambda s: s.forget_starts("shop", "q", ["m"]),
    "lease": lambda s: s.lease("shop/retry").acquire_or_renew("me", 0.0, 30.0),
}

#: What is asked of messages that a person names, by ids or endings of them.
BY_ID = {
    "entry": lambda s, namespace: s.entry(namespace, "retry-id-a"),
    "entries": lambda s, namespace: s.entries(Filter(namespace=namespace, ids=NAMES), limit=50),
    "count_entries": lambda s, namespace: s.count_entries(
        Filter(namespace=namespace, ids=NAMES), overdue=True
    ),
    "letter": lambda s, namespace: s.letter(namespace, "er-id-a"),
    "letters": lambda s, namespace: s.letters(
        Filter(namespace=namespace, ids=NAMES), limit=50, states=("dead", "discarded")
    ),
    "count_letters": lambda s, namespace: s.count_letters(Filter(namespace=namespace, ids=NAMES)),
    "groups": lambda s, namespace: s.groups(Filter(namespace=namespace, ids=NAMES)),
    "claim": lambda s, namespace: s.claim(Filter(namespace=namespace, ids=NAMES), replay_id="r", limit=50),
    "set_state": lambda s, namespace: s.set_state(
        Filter(namespace=namespace, ids=NAMES), was="dead", to="discarded"
    ),
}


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "leveret.db", clock=FakeClock())
    await store.open()
    await store.put([an_entry(name, wait=0.0) for name in "abc"])
    await store.keep([a_letter(name) for name in "abc"])
    yield store
    await store.close()


async def plans_of(store, call):
    """The statements of a call, each with the steps in which SQLite runs it."""
    statements = []
    await store.file.read(lambda connection: connection.set_trace_callback(statements.append))
    await call
    await store.file.read(lambda connection: connection.set_trace_callback(None))
    plans = {}
    for sql in statements:
        if sql.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
            # SQLite writes an infinity that was bound in a way that it does not read.
            explain = "EXPLAIN QUERY PLAN " + re.sub(r"\bInf\b", "9e999", sql)
            plan = await store.file.read(lambda connection, sql=explain: connection.execute(sql).fetchall())
            plans[sql] = [step for *_, step in plan]
    return plans


def walks_no_table(sql, steps):
    # The first namespace is found by opening the index and looking at one row: SQLite calls that a scan too, and so it
    # calls going through the names that were given.
    first = "ORDER BY namespace LIMIT 1" in sql and "WHERE" not in sql
    walked = [step for step in steps if step.startswith("SCAN") and not re.search(r"given$|json_each", step)]
    return first or not walked


@pytest.mark.parametrize("call", FREQUENT)
async def test_a_frequent_call_walks_no_table_and_sorts_nothing(store, call):
    plans = await plans_of(store, FREQUENT[call](store))
    assert plans
    for sql, steps in plans.items():
        assert walks_no_table(sql, steps), sql
        assert not [step for step in steps if "B-TREE" in step], sql


@pytest.mark.parametrize("namespace", [None, "shop"])
@pytest.mark.parametrize("call", BY_ID)
async def test_messages_that_are_named_are_looked_up_by_the_endings_of_their_ids_whatever_else_is_asked(
    store, call, namespace
):
    plans = await plans_of(store, BY_ID[call](store, namespace))
    lookups = {sql: steps for sql, steps in plans.items() if "substr" in sql}
    assert lookups
    for sql, steps in lookups.items():
        assert walks_no_table(sql, steps), sql
        searched = [re.search(r"(\w+_ending|PRIMARY KEY) \(", step) for step in steps if "SEARCH" in step]
        assert all(searched), steps
        assert {"_ending" in found[1] for found in searched} == {True, False}


async def test_what_is_due_is_read_from_the_index_alone(store):
    (steps,) = (await plans_of(store, store.upcoming("shop", within=5.0, limit=100))).values()
    assert steps == [
        "SEARCH retry USING COVERING INDEX retry_due (namespace=? AND (try_at,key)>(?,?) AND try_at<?)"
    ]
