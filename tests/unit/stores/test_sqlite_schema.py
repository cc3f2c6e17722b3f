from __future__ import annotations

import contextlib
import re
import sqlite3
from importlib.resources import files

import pytest

from leveret.core.errors import ConfigError, NotFound, StoreRefused, StoreUnavailable
from leveret.stores.sql.scripts import scripts
from leveret.stores.sqlite import SqliteStore, schema
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import a_letter, an_entry


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leveret.db"


async def opened(path, **options):
    store = SqliteStore(path, clock=FakeClock())
    await store.open(**options)
    return store


def asked(path, sql):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_a_gap(database):
    names = sorted(file.name for file in (files("leveret.stores") / "sql" / database).iterdir())
    assert all(re.fullmatch(r"\d{4}_[a-z_]+\.sql", name) for name in names)
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert len(scripts(database)) == len(names)


async def test_a_new_file_gets_the_newest_schema_and_says_whose_it_is(path):
    store = await opened(path)
    assert (await store.check())["schema"] == schema.newest()
    await store.close()
    assert asked(path, "PRAGMA user_version") == [(schema.newest(),)]
    assert asked(path, "PRAGMA application_id") == [(schema.APPLICATION_ID,)]
    assert asked(path, "PRAGMA journal_mode") == [("wal",)]


async def test_an_open_file_is_synced_in_full_and_bounded_in_memory(path):
    store = await opened(path)
    for pragma, value in (("synchronous", 2), ("foreign_keys", 0)):
        found = await store.file.read(
            lambda connection, p=pragma: connection.execute(f"PRAGMA {p}").fetchone()[0]
        )
        assert found == value
    cache = await store.file.read(lambda connection: connection.execute("PRAGMA cache_size").fetchone()[0])
    assert -30_000 < cache < 0
    await store.close()


async def test_a_migration_that_fails_leaves_the_schema_as_it_was_and_the_next_one_goes_on(path, monkeypatch):
    await (await opened(path)).close()
    first = schema.migrations()
    broken = (*first, ("CREATE TABLE extra (a)",), ("CREATE TABLE more (a)", "CREATE TABLE retry (a)"))
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(StoreUnavailable, match="table retry already exists"):
        await opened(path)
    assert asked(path, "PRAGMA user_version") == [(len(first) + 1,)]
    names = {name for (name,) in asked(path, "SELECT name FROM sqlite_master")}
    assert "extra" in names
    assert "more" not in names
    monkeypatch.setattr(schema, "migrations", lambda: (*broken[:-1], ("CREATE TABLE more (a)",)))
    store = await opened(path)
    assert (await store.check())["schema"] == len(first) + 2
    await store.close()


async def test_a_store_of_a_newer_leveret_is_refused_and_left_alone(path):
    await (await opened(path)).close()
    asked(path, f"PRAGMA user_version = {schema.newest() + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match=rf"has schema {schema.newest() + 1}.*Upgrade leveret"):
        await opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE songs (name)", "PRAGMA user_version = 3", "PRAGMA application_id = 7"]
)
async def test_the_database_of_another_program_is_refused_and_left_alone(path, sql):
    asked(path, sql)
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match="another program"):
        await opened(path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_told_and_left_alone(path):
    path.write_text("shopping list: " + "carrots, " * 200)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="it is not a SQLite database"):
        await opened(path)
    assert path.read_bytes() == before


async def test_a_damaged_file_is_told_with_what_to_do(path):
    store = await opened(path)
    await store.put([an_entry(str(number), body=bytes(3000)) for number in range(200)])
    await store.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 200 * 4096)
    with pytest.raises(StoreUnavailable, match=r"its content is damaged.*\.recover"):
        await opened(path)


async def test_a_missing_file_is_not_created_for_reading(path):
    with pytest.raises(NotFound, match=r"no store at .*leveret\.db"):
        await opened(path, create=False)
    assert not path.exists()


async def test_an_empty_file_becomes_a_store_only_where_one_may_be_created(path):
    path.touch()
    with pytest.raises(NotFound, match="the file is empty"):
        await opened(path, create=False)
    assert path.stat().st_size == 0
    store = await opened(path)
    await store.put([an_entry()])
    await store.close()


@pytest.mark.parametrize("name", ["", ":memory:"])
def test_a_store_without_a_file_is_refused_with_the_remedy(name):
    with pytest.raises(ConfigError, match="memory://"):
        SqliteStore(name, clock=FakeClock())


async def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(StoreUnavailable, match=r"cannot be opened.*folder exists"):
        await opened(tmp_path / "no" / "leveret.db")


async def test_a_store_that_could_not_be_opened_can_be_opened_later(tmp_path):
    store = SqliteStore(tmp_path / "no" / "leveret.db", clock=FakeClock())
    with pytest.raises(StoreUnavailable):
        await store.open()
    (tmp_path / "no").mkdir()
    await store.open()
    assert (await store.put([an_entry()]))[0].written
    await store.close()


@pytest.mark.parametrize("name", ["a b.db", "what?.db", "50%25.db", "#1.db", "ü.db", "file:x?mode=memory"])
async def test_any_name_of_a_file_is_taken_literally(tmp_path, name):
    store = await opened(tmp_path / name)
    await store.put([an_entry()])
    assert store.display == f"sqlite:///{tmp_path / name}"
    await store.close()
    assert name in {file.name for file in tmp_path.iterdir()}


async def test_a_relative_path_is_taken_from_the_folder_of_the_moment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("leveret.db", clock=FakeClock())
    monkeypatch.chdir("/")
    await store.open()
    await store.close()
    assert (tmp_path / "leveret.db").exists()


async def test_d09_times_are_stored_as_numbers_whatever_kind_they_came_in(path):
    # Dates stored as text once made a clean-up by date find nothing, for years.
    store = await opened(path)
    await store.put([an_entry(wait=5), an_entry("two", wait=None, due_at=7)])
    await store.keep([a_letter(died_at=7)])
    await store.lease("shop/retry").acquire_or_renew("me", 0, 30)
    await store.close()
    kinds = asked(
        path, "SELECT typeof(due_at), typeof(try_at), typeof(failed_at), typeof(first_failed_at) FROM retry"
    )
    kinds += asked(path, "SELECT typeof(died_at), typeof(first_failed_at) FROM dead_letter")
    kinds += asked(path, "SELECT typeof(expires), typeof(ttl) FROM lease")
    assert {kind for row in kinds for kind in row} == {"real"}


async def test_bodies_are_stored_as_bytes(path):
    store = await opened(path)
    await store.put([an_entry(body=b"\x00\xff")])
    await store.close()
    assert asked(path, "SELECT typeof(body), typeof(properties), hex(body) FROM retry") == [
        ("blob", "blob", "00FF")
    ]
