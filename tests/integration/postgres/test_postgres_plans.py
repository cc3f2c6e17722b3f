"""What the store asks of PostgreSQL must not depend on how much waits: no frequent query may walk a table."""

from __future__ import annotations

import json

import psycopg
import pytest_asyncio

from leveret.core.retry_entry import Filter
from leveret.testing.store_contract import a_letter, an_entry

ROWS = [(f"shop.charge/{name}", 3) for name in "ab"]
NAMED = [("shop", key) for key, _ in ROWS]
ONE = Filter(namespace="shop")
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


def steps_of(plan):
    yield plan
    for each in plan.get("Plans", ()):
        yield from steps_of(each)


async def test_a_frequent_call_walks_no_table(store, monkeypatch):
    asked = []
    plain = psycopg.AsyncConnection.execute

    async def heard(connection, sql, values=None, **options):
        asked.append((sql, values))
        return await plain(connection, sql, values, **options)

    for name, ask in FREQUENT.items():
        monkeypatch.setattr(psycopg.AsyncConnection, "execute", heard)
        await ask(store)
        monkeypatch.setattr(psycopg.AsyncConnection, "execute", plain)
        assert asked
        for sql, values in asked:
            ((plan,),) = await store.connections.fetch(f"EXPLAIN (FORMAT JSON) {sql}", values)
            found = json.loads(plan) if isinstance(plan, (str, bytes)) else plan
            steps = list(steps_of(found[0]["Plan"]))
            walked = [step["Relation Name"] for step in steps if step["Node Type"] == "Seq Scan"]
            assert not {"retry", "dead_letter"} & set(walked), f"{name}: {sql}"
            for step in steps:
                if "Sort" in step["Node Type"] and step["Plans"][0].get("Relation Name") in (
                    "retry",
                    "dead_letter",
                ):
                    assert step["Plan Rows"] <= 100, f"{name}: {sql}"
        asked.clear()


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
