"""What the store asks of PostgreSQL must not depend on how much waits: no frequent query may walk a table."""

from __future__ import annotations

import json

import psycopg
import pytest
import pytest_asyncio

from leveret.core.retry_entry import Filter
from leveret.testing.store_contract import a_letter, an_entry

ROWS = [(f"shop.charge/{name}", 3) for name in "ab"]
NAMED = [("shop", key) for key, _ in ROWS]
ONE = Filter(namespace="shop")
IDS = ("retry-id-a", "er-id-b", "no-such-id")
#: So many rows lie in either table: what is walked then is seen in the plan.
MANY = 20_000

FREQUENT = {
    "put": lambda s: s.put([an_entry("new"), an_entry("a")]),
    "upcoming": lambda s: s.upcoming("shop", within=5.0, limit=100, since=9.0),
    "upcoming after": lambda s: s.upcoming("shop", within=5.0, limit=100, after=(1.0, "x")),
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
    "entries of one": lambda s: s.entries(ONE, limit=50),
    "keep": lambda s: s.keep([a_letter("new")]),
    "letters": lambda s: s.letters(Filter(), limit=50, states=("dead", "claimed")),
    "letter": lambda s: s.letter(None, "er-id-a"),
    "claim": lambda s: s.claim(ONE, replay_id="r", limit=50),
    "namespaces": lambda s: s.namespaces(),
}

#: What is asked of messages that a person names, by ids or endings of them.
BY_ID = {
    "entry": lambda s, wanted: s.entry(wanted.namespace, "retry-id-a"),
    "entries": lambda s, wanted: s.entries(wanted, limit=50),
    "count_entries": lambda s, wanted: s.count_entries(wanted, overdue=True),
    "letter": lambda s, wanted: s.letter(wanted.namespace, "er-id-a"),
    "letters": lambda s, wanted: s.letters(wanted, limit=50, states=("dead", "discarded")),
    "count_letters": lambda s, wanted: s.count_letters(wanted),
    "groups": lambda s, wanted: s.groups(wanted),
    "claim": lambda s, wanted: s.claim(wanted, replay_id="r", limit=50),
    "set_state": lambda s, wanted: s.set_state(wanted, was="dead", to="discarded"),
}


@pytest_asyncio.fixture
async def store(open_store, admin, schema: str):
    store = await open_store()
    await store.put([an_entry(name, wait=3600.0) for name in "abc"])
    await store.keep([a_letter(name) for name in "abc"])
    for table, id, time in (("retry", "key", "try_at"), ("dead_letter", "id", "died_at")):
        columns = [
            name
            for (name,) in await (
                await admin.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s"
                    " ORDER BY ordinal_position",
                    (schema, table),
                )
            ).fetchall()
        ]
        other = {id: f"{id} || number", time: f"{time} + number"}
        if table == "retry":
            other |= {"retry_id": "'other-' || number", "message_id": "'message-' || number"}
        given = ", ".join(other.get(name, name) for name in columns)
        await admin.execute(
            f"INSERT INTO {schema}.{table} ({', '.join(columns)}) SELECT {given}"
            f" FROM (SELECT * FROM {schema}.{table} LIMIT 1) AS one, generate_series(1, {MANY}) AS number"
        )
        await admin.execute(f"VACUUM ANALYZE {schema}.{table}")
    return store


def steps_of(plan, *, past=""):
    """The steps of a plan, but for those of tables whose names begin with *past*."""
    yield plan
    for each in plan.get("Plans", ()):
        if not past or past not in each.get("Subplan Name", ""):
            yield from steps_of(each, past=past)


@pytest.fixture
def plans_of(store, monkeypatch):
    """The statements of a call, each with the steps in which PostgreSQL runs it."""

    async def plans_of(call, *, past=""):
        asked = []
        plain = psycopg.AsyncConnection.execute

        async def heard(connection, sql, values=None, **options):
            asked.append((sql, values))
            return await plain(connection, sql, values, **options)

        with monkeypatch.context() as patch:
            patch.setattr(psycopg.AsyncConnection, "execute", heard)
            await call
        plans = []
        for sql, values in asked:
            ((plan,),) = await store.connections.fetch(f"EXPLAIN (FORMAT JSON) {sql}", values)
            found = json.loads(plan) if isinstance(plan, (str, bytes)) else plan
            plans.append((sql, list(steps_of(found[0]["Plan"], past=past))))
        assert plans
        return plans

    return plans_of


async def test_a_frequent_call_walks_no_table(store, plans_of):
    for name, ask in FREQUENT.items():
        for sql, steps in await plans_of(ask(store)):
            walked = [step["Relation Name"] for step in steps if step["Node Type"] == "Seq Scan"]
            assert not {"retry", "dead_letter"} & set(walked), f"{name}: {sql}"
            for step in steps:
                if "Sort" in step["Node Type"] and step["Plans"][0].get("Relation Name") in (
                    "retry",
                    "dead_letter",
                ):
                    assert step["Plan Rows"] <= 100, f"{name}: {sql}"


@pytest.mark.parametrize("namespace", [None, "shop"])
async def test_messages_that_are_named_are_looked_up_by_the_endings_of_their_ids_whatever_else_is_asked(
    store, plans_of, namespace
):
    for name, ask in BY_ID.items():
        lookups = [
            plan
            for plan in await plans_of(ask(store, Filter(namespace=namespace, ids=IDS)), past="jump_")
            if "given" in plan[0]
        ]
        assert lookups, name
        for sql, steps in lookups:
            read = {step["Index Name"] for step in steps if "Index Name" in step}
            assert "Seq Scan" not in {step["Node Type"] for step in steps if "Relation Name" in step}, name
            assert {"_ending", "_pkey"} == {f"_{index.rpartition('_')[2]}" for index in read}, (
                f"{name}: {sql}"
            )


async def test_no_statement_is_compiled_for_longer_than_it_runs(store):
    assert await store.connections.fetch("SHOW jit") == [("off",)]


async def test_what_is_due_is_read_from_the_index_alone_and_only_what_lies_in_the_window(store, schema: str):
    sql = []
    plain = store.connections.fetch

    async def heard(statement, values=(), **options):
        sql.append((statement, values))
        return await plain(statement, values, **options)

    store.connections.fetch = heard
    # One of a thousand that overdue rows lie before, and all others behind.
    await store.upcoming("shop", within=3_700.0, since=-3_600.0, limit=10_000)
    store.connections.fetch = plain
    ((plan,),) = await store.connections.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql[0][0]}", sql[0][1])
    found = json.loads(plan) if isinstance(plan, (str, bytes)) else plan
    (scan,) = [step for step in steps_of(found[0]["Plan"]) if step.get("Index Name") == "retry_due"]
    assert scan["Node Type"] == "Index Only Scan"
    assert scan.get("Rows Removed by Filter", 0) == 0
    assert scan["Actual Rows"] <= 101
