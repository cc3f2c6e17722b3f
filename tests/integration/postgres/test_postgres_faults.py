"""PostgreSQL when the world is unkind: killed, restarted, read-only, full, silent, cut off. A real server."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from tests.postgres_cluster import Cluster

from leveret.core.errors import ConfigError, LeaseLost, NotFound, StoreRefused, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.stores.postgres import (
    PostgresDocumentStore,
    PostgresRetryLease,
    PostgresStore,
    connections,
    retries,
)
from leveret.stores.postgres import schema as postgres_schema
from leveret.stores.sql.scripts import scripts
from leveret.testing.store_contract import a_letter, an_entry
from leveret.testing.store_contract.others import a_report, an_act
from leveret.torture.postgres import PASSWORD
from leveret.torture.proxy import CutProxy

MIB = 1024 * 1024


async def until_it_works(call, seconds: float = 20.0):
    """What *call* gives, as soon as the store can be used."""
    until = time.monotonic() + seconds
    while True:
        try:
            return await call()
        except StoreUnavailable:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)


@asynccontextmanager
async def locked(cluster: Cluster, table: str, mode: str = "ACCESS EXCLUSIVE") -> AsyncIterator[None]:
    """Somebody else keeps a table locked within the block."""
    async with await psycopg.AsyncConnection.connect(cluster.url) as connection:
        await connection.execute(f"LOCK TABLE {table} IN {mode} MODE")
        yield


async def when_blocked(admin: psycopg.AsyncConnection, number: int = 1) -> None:
    """Return once so many statements wait for a lock."""
    while True:
        found = await admin.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        if (await found.fetchone())[0] >= number:
            return
        await asyncio.sleep(0.01)


# ── Away ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_put_is_there_after_the_server_was_killed_under_load(cluster: Cluster, open_store):
    store = await open_store()
    stored: set[str] = set()
    refusals = 0
    over = asyncio.Event()

    async def writer(name: int) -> None:
        nonlocal refusals
        number = 0
        while not over.is_set():
            batch = [an_entry(f"{name}-{number}-{each}", wait=3600.0) for each in range(50)]
            number += 1
            while True:
                try:
                    await store.put(batch)
                except StoreUnavailable:
                    refusals += 1
                    await asyncio.sleep(0.01)
                else:
                    stored.update(entry.key for entry in batch)
                    break

    writers = [asyncio.create_task(writer(name)) for name in range(4)]
    for _ in range(2):
        before = len(stored)
        until = time.monotonic() + 20.0
        while len(stored) < before + 1000:
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        await asyncio.to_thread(cluster.kill)
        await asyncio.to_thread(cluster.start)
    over.set()
    await asyncio.gather(*writers)
    assert refusals > 0
    assert await store.count_entries(Filter()) == len(stored)


async def test_a_restart_while_nobody_asks_is_noticed_by_nobody(cluster: Cluster, open_store):
    store = await open_store()
    lease = store.lease("shop/retry")
    assert await lease.acquire_or_renew("one", 0.0, 30.0)
    await asyncio.gather(*(store.put([an_entry(str(number))]) for number in range(8)))
    cluster.stop()
    cluster.start()
    assert await store.count_entries(Filter()) == 8
    assert await lease.acquire_or_renew("one", 0.0, 30.0)
    assert (await lease.grant("one")).term == 1


async def test_while_the_server_is_down_every_call_says_so_at_once_and_connecting_is_not_overdone(
    cluster: Cluster, open_store
):
    store = await open_store()
    cluster.stop()
    connects = 0
    plain = psycopg.AsyncConnection.connect

    async def counted(*arguments, **options):
        nonlocal connects
        connects += 1
        return await plain(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.AsyncConnection, "connect", counted)
        until = time.monotonic() + 0.5
        asked = 0
        while time.monotonic() < until:
            asked += 1
            with pytest.raises(StoreUnavailable, match=r"What to do"):
                await store.count_entries(Filter())
    assert asked > 20
    assert connects < 10
    cluster.start()
    await until_it_works(lambda: store.put([an_entry()]), 5.0)


async def test_opening_a_store_whose_server_is_down_says_so_without_the_password(
    cluster: Cluster, open_store, caplog
):
    cluster.stop()
    caplog.set_level(logging.DEBUG)
    with pytest.raises(StoreUnavailable) as caught:
        await open_store()
    cluster.start()
    told = f"{caught.value}{caught.value!r}{caught.value.__cause__}{caplog.text}"
    assert str(cluster.port) in told
    assert PASSWORD not in told
    store = await open_store()
    assert await store.count_entries(Filter()) == 0


async def test_a_wrong_password_is_told_and_never_shown(cluster: Cluster, open_store):
    with pytest.raises(StoreUnavailable, match="lets this user in") as caught:
        await open_store(cluster.at(cluster.port, password="w9-rong"))
    assert "w9-rong" not in f"{caught.value}{caught.value!r}{caught.value.__cause__}"


# ── There, but not at work ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_server_that_takes_no_writes_is_read_and_written_again_when_it_does(
    cluster: Cluster, open_store
):
    store = await open_store()
    await store.put([an_entry()])
    cluster.stop()
    cluster.start(default_transaction_read_only="on")
    assert await store.count_entries(Filter()) == 1
    with pytest.raises(StoreUnavailable, match=r"takes no writes.*25006|25006.*takes no writes"):
        await store.put([an_entry("two")])
    with pytest.raises(StoreUnavailable):
        await store.lease("shop/retry").acquire_or_renew("one", 0.0, 30.0)
    # A command that looks opens it all the same.
    looking = await open_store(create=False)
    assert await looking.count_entries(Filter()) == 1
    assert (await looking.check())["writable"] is False
    cluster.stop()
    cluster.start()
    await until_it_works(lambda: store.put([an_entry("two")]))
    assert await store.count_entries(Filter()) == 2
    assert (await store.check())["writable"] is True


async def test_without_a_connection_left_it_says_so_and_goes_on_once_there_is_one(
    cluster: Cluster, open_store, schema: str
):
    cluster.stop()
    cluster.start(max_connections="8", superuser_reserved_connections="3", max_wal_senders="0")
    async with await psycopg.AsyncConnection.connect(cluster.url, autocommit=True) as admin:
        await admin.execute(f"CREATE ROLE {schema}_app LOGIN PASSWORD 'app'")
        await admin.execute(f"GRANT CREATE ON DATABASE postgres TO {schema}_app")
    url = cluster.at(cluster.port, user=f"{schema}_app", password="app")
    store = await open_store(url)
    await store.close()
    others = [await psycopg.AsyncConnection.connect(url) for _ in range(5)]
    with pytest.raises(StoreUnavailable, match="max_connections"):
        await store.open()
    for each in others:
        await each.close()
    await until_it_works(store.open)
    await until_it_works(lambda: store.put([an_entry()]))


async def test_a_statement_that_takes_too_long_is_ended_by_the_server_and_undone(
    cluster: Cluster, open_store, schema: str
):
    store = await open_store(patience=0.3)
    async with locked(cluster, f"{schema}.retry"):
        with pytest.raises(StoreUnavailable, match="57014"):
            await store.put([an_entry()])
    assert await store.count_entries(Filter()) == 0
    await store.put([an_entry()])


async def test_more_blocked_rows_than_one_statement_has_time_for_are_released_all_the_same(
    open_store, admin, schema: str, monkeypatch
):
    monkeypatch.setattr(retries, "UNBLOCKED_AT_ONCE", 3)
    store = await open_store(patience=1.0)
    names = [f"{number:02}" for number in range(9)]
    await store.put([an_entry(name, wait=0.0) for name in names])
    rows = [(f"shop.charge/{name}", 3) for name in names]
    await store.postpone("shop", rows, seconds=300.0, blocked="gone")
    await admin.execute(
        f"CREATE FUNCTION {schema}.dawdle() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END';"
        f"CREATE TRIGGER dawdle BEFORE UPDATE ON {schema}.retry FOR EACH ROW EXECUTE FUNCTION {schema}.dawdle()"
    )
    assert await store.unblock("shop", "shop.charge") == 9
    assert len(await store.upcoming("shop", within=0.0, limit=99)) == 9
    assert await store.unblock("shop", "shop.charge") == 0


async def test_a_lease_that_is_taken_over_between_two_portions_stops_the_rest_of_an_unblock(
    open_store, monkeypatch
):
    monkeypatch.setattr(retries, "UNBLOCKED_AT_ONCE", 2)
    store = await open_store()
    await store.put([an_entry(name, wait=0.0) for name in "abcdef"])
    rows = [(f"shop.charge/{name}", 3) for name in "abcdef"]
    await store.postpone("shop", rows, seconds=300.0, blocked="gone")
    lease = store.lease("shop/retry")
    await lease.acquire_or_renew("me", 0.0, 30.0)
    grant = await lease.grant("me")
    fetch = store.connections.fetch

    async def superseded(*asked, **options):
        store.connections.fetch = fetch
        found = await fetch(*asked, **options)
        await lease.release("me")
        assert await lease.acquire_or_renew("other", 0.0, 30.0)
        return found

    store.connections.fetch = superseded
    with pytest.raises(LeaseLost, match="other holds it"):
        await store.unblock("shop", "shop.charge", grant=grant)
    page, _ = await store.entries(Filter(), limit=9)
    assert sorted(entry.state for entry in page) == ["blocked"] * 4 + ["waiting"] * 2


async def test_a_renewal_of_the_lease_does_not_wait_for_work(
    cluster: Cluster, open_store, admin, schema: str
):
    store = await open_store()
    lease = store.lease("shop/retry")
    assert await lease.acquire_or_renew("one", 0.0, 30.0)
    async with locked(cluster, f"{schema}.retry"):
        work = [asyncio.create_task(store.put([an_entry(str(number))])) for number in range(12)]
        await when_blocked(admin, 4)
        assert await asyncio.wait_for(lease.acquire_or_renew("one", 0.0, 30.0), 2.0)
    await asyncio.gather(*work)
    assert await store.count_entries(Filter()) == 12


async def test_a_server_that_falls_silent_is_hung_up_on_and_connected_to_anew(
    cluster: Cluster, proxy: CutProxy, open_store, monkeypatch
):
    monkeypatch.setattr(connections, "_GRACE", 0.1)
    store = await open_store(cluster.at(proxy.port), patience=0.3)
    await store.put([an_entry("one")])
    proxy.swallow()
    with pytest.raises(StoreUnavailable, match="not answered for"):
        await store.put([an_entry("two")])
    with pytest.raises(StoreUnavailable):
        await store.lease("shop/retry").acquire_or_renew("one", 0.0, 30.0)
    proxy.hand_on()
    proxy.cut()
    await until_it_works(lambda: store.put([an_entry("two")]))
    assert await store.count_entries(Filter()) == 2


# ── Done, and not told ────────────────────────────────────────────────────────────────────────────────────────────────

UNTOLD = {
    "put": (lambda s: s.put([an_entry("new", wait=30.0)]), "retry"),
    "keep": (lambda s: s.keep([a_letter("new")]), "dead_letter"),
    "remove": (lambda s: s.remove("shop", [("shop.charge/old", 3)]), "retry"),
    "bury": (lambda s: s.bury([("shop.charge/old", 3)], [a_letter("old")]), "dead_letter"),
    "set_state": (lambda s: s.set_state(Filter(), was="dead", to="discarded"), "dead_letter"),
    "ask": (lambda s: s.ask(an_act("new")), "act"),
}


async def everything(store: PostgresStore):
    return (
        [(entry.key, entry.failure, entry.due_at) for entry in (await store.entries(Filter(), limit=9))[0]],
        [letter.id for letter in (await store.letters(Filter(), limit=9))[0]],
        [act.id for act in await store.asked("shop", ["retries.now"])],
    )


@pytest.mark.parametrize("call", UNTOLD)
async def test_what_was_done_when_the_connection_was_cut_before_the_answer_can_be_asked_for_again(
    cluster: Cluster, proxy: CutProxy, open_store, admin, schema: str, call: str
):
    work, table = UNTOLD[call]
    store = await open_store(cluster.at(proxy.port))
    await store.put([an_entry("old", wait=60.0)])
    await store.keep([a_letter("old one")])
    before = await everything(store)
    async with locked(cluster, f"{schema}.{table}", "EXCLUSIVE"):
        asked = asyncio.create_task(work(store))
        await when_blocked(admin)
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            await asked
    # The server does not see that nobody listens until it has committed.
    until = time.monotonic() + 10.0
    while (done := await everything(store)) == before:
        assert time.monotonic() < until, "it was not done"
        await asyncio.sleep(0.01)
    await until_it_works(lambda: work(store))
    assert await everything(store) == done


async def test_a_caller_that_gives_up_leaves_the_call_to_come_to_its_end(
    cluster: Cluster, open_store, admin, schema: str
):
    store = await open_store()
    async with locked(cluster, f"{schema}.retry"):
        asked = asyncio.create_task(store.put([an_entry()]))
        await when_blocked(admin)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
    await store.close()
    await store.open()
    assert await store.count_entries(Filter()) == 1


# ── The schema, and whose it is ───────────────────────────────────────────────────────────────────────────────────────


async def test_looking_at_a_database_without_a_store_makes_none(open_store, admin, schema: str):
    with pytest.raises(NotFound, match=schema):
        await open_store(create=False)
    found = await admin.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", (schema,))
    assert (await found.fetchone())[0] == 0


async def test_of_many_that_open_at_once_one_makes_the_store(cluster: Cluster, schema: str):
    stores = [PostgresStore(f"{cluster.url}?schema={schema}") for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.put([an_entry(str(n))]) for n, store in enumerate(stores)))
    assert await stores[0].count_entries(Filter()) == 6
    await asyncio.gather(*(store.close() for store in stores))


async def test_another_programs_schema_is_left_alone(open_store, admin, schema: str):
    await admin.execute(f"CREATE SCHEMA {schema}")
    await admin.execute(f"CREATE TABLE {schema}.invoices (id int)")
    with pytest.raises(StoreRefused, match=r"invoices.*\?schema="):
        await open_store()
    found = await admin.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", (schema,)
    )
    assert await found.fetchall() == [("invoices",)]


async def test_a_store_of_a_newer_leveret_is_refused_and_stays_as_it_is(open_store, admin, schema: str):
    await (await open_store()).close()
    await admin.execute(f"UPDATE {schema}.schema_version SET version = 99")
    with pytest.raises(StoreRefused, match=r"99.*Upgrade"):
        await open_store()


async def test_a_store_of_an_older_leveret_comes_forward_with_all_that_lies_in_it(
    open_store, monkeypatch, cluster: Cluster, schema: str
):
    with monkeypatch.context() as older:
        older.setattr(postgres_schema, "scripts", lambda database: scripts(database)[:1])
        store = await open_store()
        assert (await store.check())["schema"] == 1
        await store.put([an_entry()])
        await store.close()
    documents = PostgresDocumentStore(
        f"{cluster.url}?schema={schema}", collection_name="a", doc_id_field="id"
    )
    await documents.insert({"id": "x"})
    await documents.close()
    store = await open_store(create=False)
    found = await store.check()
    assert found["schema"] == found["newest_schema"] == len(scripts("postgres"))
    assert found["waiting"] == 1
    assert await store.document_collections() == ["a"]


async def test_a_database_that_is_not_utf8_is_refused(cluster: Cluster, admin, schema: str):
    await admin.execute(f"CREATE DATABASE {schema}_db ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    store = PostgresStore(cluster.url.replace("/postgres", f"/{schema}_db"))
    with pytest.raises(StoreRefused, match=r"SQL_ASCII.*createdb"):
        await store.open()


async def test_a_user_without_the_right_to_make_a_schema_uses_one_that_was_made_for_it(
    cluster: Cluster, open_store, admin, schema: str
):
    await admin.execute(f"CREATE ROLE {schema}_app LOGIN PASSWORD 'app'")
    url = cluster.at(cluster.port, user=f"{schema}_app", password="app")
    with pytest.raises(StoreUnavailable, match="choosing-a-store"):
        await open_store(url)
    await admin.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {schema}_app")
    store = await open_store(url)
    await store.put([an_entry()])
    assert await store.lease("shop/retry").acquire_or_renew("one", 0.0, 30.0)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?schema=public", "public"),
        ("?schema=Shop", "lower-case"),
        ("?schema=pg_x", "pg_"),
        ("?no_such=1", "libpq"),
    ],
)
async def test_a_url_that_cannot_be_used_is_told_before_anything_is_connected_to(query: str, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        PostgresStore(f"postgresql://shop:s3cret@nowhere.invalid/shop{query}")
    assert "s3cret" not in str(caught.value)


# ── Data ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_more_bodies_than_one_message_holds_are_one_transaction(open_store):
    store = await open_store()
    large = bytes(17 * MIB)
    placed = await store.put([an_entry(str(number), body=large) for number in range(4)])
    assert all(each.written for each in placed)
    with pytest.raises(StoreRefused):
        await store.put(
            [*(an_entry(f"more {number}", body=large) for number in range(3)), an_entry(failure=2**70)]
        )
    assert await store.count_entries(Filter()) == 4


#: Of random letters, for what repeats itself is packed into an index all the same.
LONG = "".join(random.Random(7).choices("abcdefghijklmnop0123456789", k=20_000))


@pytest.mark.parametrize("changes", [{"failure": 2**70}, {"key": LONG}], ids=["number", "key"])
async def test_data_that_no_row_can_hold_is_refused_and_not_waited_for(open_store, changes):
    store = await open_store()
    with pytest.raises(StoreRefused, match="PostgreSQL cannot hold this"):
        await store.put([an_entry("good"), an_entry("bad", **changes)])
    assert await store.count_entries(Filter()) == 0


@pytest.mark.parametrize("wait", [0.0, 0.001, 40 * 86_400.0, 3652.5 * 86_400.0])
async def test_a_delay_is_judged_by_the_servers_clock_and_kept(open_store, admin, schema: str, wait: float):
    store = await open_store()
    (placed,) = await store.put([an_entry(wait=wait)])
    assert placed.due_in == pytest.approx(wait, abs=1e-6)
    found = await admin.execute(
        f"SELECT due_at - extract(epoch FROM clock_timestamp())::float8 FROM {schema}.retry"
    )
    assert (await found.fetchone())[0] == pytest.approx(wait, abs=5.0)


async def test_d09_reports_are_thrown_away_after_a_day_and_times_lie_as_numbers(
    open_store, admin, schema: str
):
    store = await open_store()
    await store.ask(an_act("old"))
    await store.report("act-old", a_report())
    await admin.execute(f"UPDATE {schema}.act SET finished_at = finished_at - 86401")
    await store.ask(an_act("new"))
    assert await store.act("act-old") is None
    assert await store.act("act-new") is not None
    found = await admin.execute(
        "SELECT DISTINCT data_type FROM information_schema.columns WHERE table_schema = %s"
        " AND (column_name LIKE '%%\\_at' OR column_name = 'expires')",
        (schema,),
    )
    assert await found.fetchall() == [("double precision",)]


async def test_two_that_put_the_same_rows_in_opposite_order_do_not_wait_in_a_circle(open_store):
    one, two = await open_store(), await open_store()
    rows = [an_entry(f"{number:03}") for number in range(200)]
    for failure in range(4, 8):
        batch = [an_entry(entry.key.rpartition("/")[2], failure=failure) for entry in rows]
        placed = await asyncio.gather(one.put(batch), two.put(batch[::-1]))
        assert sum(each.written for answers in placed for each in answers) == 200


async def test_more_ids_than_a_statement_of_postgresql_has_parameters_name_what_they_name(open_store):
    store = await open_store()
    await store.put([an_entry(name) for name in "abc"])
    await store.keep([a_letter(name) for name in "ab"])
    others = [f"no-such-{number:05}" for number in range(70_000)]
    page, _ = await store.entries(Filter(ids=["retry-id-a", *others, "message-c"]), limit=9)
    assert sorted(entry.retry_id for entry in page) == ["retry-id-a", "retry-id-c"]
    wanted = Filter(ids=[*others, "letter-id-b"])
    assert await store.set_state(wanted, was="dead", to="discarded") == 1


async def test_a_lease_by_url_makes_its_schema_and_closes_by_itself(cluster: Cluster, schema: str):
    url = f"{cluster.url}?schema={schema}"
    one, two = PostgresRetryLease(url), PostgresRetryLease(url)
    assert await one.acquire_or_renew("one", 0.0, 30.0)
    assert not await two.acquire_or_renew("two", 0.0, 30.0)
    await one.release("one")
    assert await two.acquire_or_renew("two", 0.0, 30.0)
    assert (await two.grant("two")).term == 2
    await one.close()
    await two.close()


async def test_a_transaction_that_another_one_got_in_the_way_of_is_done_again(open_store):
    store = await open_store()
    tries = []

    async def call(connection):
        tries.append(connection)
        if len(tries) < 3:
            raise psycopg.errors.DeadlockDetected("deadlock detected")
        return "done"

    assert await store.connections.run(call) == "done"
    with pytest.raises(StoreUnavailable, match="40P01"):
        await store.connections.run(lambda _: _raise(psycopg.errors.DeadlockDetected("deadlock detected")))


async def _raise(error: Exception) -> None:
    raise error


async def test_a_store_whose_tables_were_made_anew_under_it_is_used_again(open_store, admin, schema: str):
    store = await open_store()
    for number in range(8):
        # Often enough that the driver has prepared the statement.
        assert await store.entry("shop", f"retry-id-{number}") is None
        await store.put([an_entry(str(number))])
    await admin.execute(f"DROP SCHEMA {schema} CASCADE")
    with pytest.raises(StoreUnavailable, match="dropped"):
        await store.put([an_entry("a")])
    other = await open_store()
    assert await other.count_entries(Filter()) == 0
    await until_it_works(lambda: store.put([an_entry("a")]), 2.0)
    assert await store.entry("shop", "retry-id-a") is not None
