from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from leveret.core.errors import LeaseLost, StoreRefused, StoreUnavailable
from leveret.stores.sqlite import SqliteStore
from leveret.stores.sqlite.errors import translated
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import a_letter, an_entry

PATH = Path("/srv/shop/leveret.db")

#: Every result code that this SQLite knows, the extended ones too; the first three are no errors.
CODES = {
    name: value
    for name, value in vars(sqlite3).items()
    if name.startswith("SQLITE_")
    and isinstance(value, int)
    and name not in {"SQLITE_OK", "SQLITE_ROW", "SQLITE_DONE"}
    and not name.startswith(
        ("SQLITE_LIMIT", "SQLITE_DENY", "SQLITE_IGNORE", "SQLITE_NOTICE", "SQLITE_WARNING")
    )
    and hasattr(sqlite3, "SQLITE_ERROR")
    and (value & 0xFF) <= sqlite3.SQLITE_NOTADB
}


def an_error(code: int, words: str = "database is locked") -> sqlite3.Error:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error


def test_there_are_codes_to_walk():
    assert len(CODES) > 60


@pytest.mark.parametrize("name", CODES)
def test_every_code_of_sqlite_comes_out_as_one_of_ours_with_a_plain_sentence(name):
    ours = translated(an_error(CODES[name], "words of SQLite"), PATH, waited=30.0)
    if isinstance(ours, StoreRefused):
        assert CODES[name] & 0xFF in {
            sqlite3.SQLITE_TOOBIG,
            sqlite3.SQLITE_CONSTRAINT,
            sqlite3.SQLITE_MISMATCH,
        }
    else:
        assert isinstance(ours, StoreUnavailable)
        assert str(ours).startswith(f"the store {PATH} cannot be used: ")
        assert "What to do: " in str(ours)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_BUSY_SNAPSHOT])
def test_a_lock_is_never_called_database_is_locked(code):
    ours = translated(an_error(code), PATH, waited=30.0)
    assert "somebody else has kept it locked for 30 s" in str(ours)
    assert "database is locked" not in str(ours)


def test_what_is_ours_already_and_what_is_nobodys_pass_as_they_are():
    for error in (LeaseLost("x"), TypeError("x")):
        assert translated(error, PATH, waited=30.0) is error


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "leveret.db", clock=FakeClock())
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize("changes", [{"failure": 2**63}, {"attempt": -(2**70)}])
async def test_a_number_that_is_too_large_is_refused_with_its_batch(store, changes):
    with pytest.raises(StoreRefused, match="SQLite cannot hold this"):
        await store.put([an_entry("good"), an_entry("bad", **changes)])
    assert await store.next_due("shop") is None


async def test_a_body_that_is_too_large_for_a_row_is_refused_with_its_batch(store):
    # The bound of every build is 1 000 000 000 bytes; it is lowered here, for this machine's sake.
    await store.file.read(lambda connection: connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000))
    with pytest.raises(StoreRefused, match="too large for one row"):
        await store.put([an_entry("good"), an_entry("bad", body=b"x" * 1_000_001)])
    with pytest.raises(StoreRefused, match="too large for one row"):
        await store.put([an_entry("good"), an_entry("bad", body=b"x" * 999_999)])
    with pytest.raises(StoreRefused, match="too large for one row"):
        await store.keep([a_letter(body=b"x" * 1_000_001)])
    assert await store.next_due("shop") is None
    assert (await store.put([an_entry("good", body=b"x" * 900_000)]))[0].written


async def test_a_shortage_of_memory_is_the_stores_for_a_while_and_no_fault_of_the_data(store):
    def short(connection):
        connection.execute("INSERT INTO lease VALUES ('x', 'x', 1, 1, 1, 'x')")
        raise MemoryError

    with pytest.raises(StoreUnavailable, match=r"too little memory .* once the shortage is over"):
        await store.file.write(short)
    assert await store.leases(None) == {}
    assert (await store.put([an_entry()]))[0].written


def test_what_is_longer_than_sqlite_can_be_given_is_refused_whatever_memory_there_is():
    ours = translated(OverflowError("BLOB longer than INT_MAX bytes"), PATH, waited=30.0)
    assert type(ours) is StoreRefused


async def test_an_entry_that_failed_at_no_time_is_refused(store):
    with pytest.raises(StoreRefused, match="missing or is no number"):
        await store.put([an_entry(failed_at=float("nan"))])


async def test_a_fault_of_ours_reaches_its_caller_as_it_is_and_undoes_its_part(store):
    def faulty(connection):
        connection.execute("INSERT INTO lease VALUES ('x', 'x', 1, 1, 1, 'x')")
        raise TypeError("a fault")

    with pytest.raises(TypeError, match="a fault"):
        await store.file.write(faulty)
    assert await store.leases(None) == {}
