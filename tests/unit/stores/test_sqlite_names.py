from __future__ import annotations

import sqlite3

import pytest

from leveret.core.retry_entry import Filter
from leveret.stores.sqlite import SqliteStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import a_letter, an_entry
from leveret.testing.store_contract.rows import AWKWARD


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "leveret.db", clock=FakeClock())
    await store.open()
    yield store
    await store.close()


async def test_more_ids_than_a_statement_of_sqlite_has_variables_name_what_they_name(store):
    # The bound of old builds is 999; no statement of ours but this one needs as many as its rows have columns.
    await store.file.read(lambda connection: connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 99))
    ids = ["retry-id-a", f"retry-id-{AWKWARD}", "retry-id-naïve", "x\ud800 of others"]
    await store.put([an_entry(str(number), retry_id=id) for number, id in enumerate(ids)])
    await store.put([an_entry("other", retry_id="retry-id-other")])
    await store.keep([a_letter("a"), a_letter("b")])
    others = [f"no-such-{number}-\ud800" for number in range(1000)]
    wanted = Filter(namespace="shop", ids=[*ids[:3], "\ud800 of others", *others])
    page, _ = await store.entries(wanted, limit=99)
    assert sorted(entry.retry_id for entry in page) == sorted(ids)
    assert await store.count_letters(Filter(namespace="shop", ids=["letter-id-a", *others])) == 1
