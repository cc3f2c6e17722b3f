from __future__ import annotations

import asyncio
import threading

import pytest

from leveret.core.errors import StoreRefused, StoreUnavailable
from leveret.stores.sqlite.file import SqliteFile


@pytest.fixture
async def file(tmp_path):
    file = SqliteFile(tmp_path / "leveret.db", busy_timeout=5.0)
    await file.open(create=True)
    yield file
    await file.close()


def count(connection):
    return connection.execute("SELECT count(*) FROM lease").fetchone()[0]


def add(name):
    def add(connection):
        connection.execute("INSERT INTO lease VALUES (?, 'x', 1, 1.0, 1.0, '')", (name,))

    return add


class Gate:
    """Holds the thread in a read until it is opened, so that calls pile up behind it."""

    def __init__(self, file):
        self._open = threading.Event()
        self._passed = asyncio.ensure_future(file.read(lambda _: self._open.wait(10)))

    async def open(self):
        self._open.set()
        assert await self._passed


def pile_up(*calls):
    return [asyncio.ensure_future(call) for call in calls]


async def commits_of(file, calls):
    """The answers of calls that were made together, and how many commits they took."""
    statements = []
    await file.read(lambda connection: connection.set_trace_callback(statements.append))
    gate = Gate(file)
    asked = pile_up(*calls)
    await asyncio.sleep(0)
    await gate.open()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    await file.read(lambda connection: connection.set_trace_callback(None))
    return answers, sum(statement == "COMMIT" for statement in statements)


async def test_writes_that_wait_together_share_a_commit(file):
    answers, commits = await commits_of(file, [file.write(add(str(n))) for n in range(20)])
    assert answers == [None] * 20
    assert commits == 1
    assert await file.read(count) == 20


async def test_a_group_of_writes_is_bounded(file):
    _, commits = await commits_of(file, [file.write(add(str(n))) for n in range(100)])
    assert commits == 4


async def test_each_write_of_a_group_keeps_its_own_failure(file):
    def refused(connection):
        add("to be undone")(connection)
        raise StoreRefused("not this")

    calls = [file.write(add("a")), file.write(refused), file.write(add("a")), file.write(add("b"))]
    answers, commits = await commits_of(file, calls)
    assert commits == 1
    assert [type(answer) for answer in answers] == [type(None), StoreRefused, StoreRefused, type(None)]
    assert await file.read(count) == 2


async def test_a_failure_of_the_file_fails_the_whole_group_each_with_an_error_of_its_own(file):
    def broken(connection):
        raise StoreUnavailable("the disk is gone")

    answers, commits = await commits_of(
        file, [file.write(add("a")), file.write(broken), file.write(add("b"))]
    )
    assert commits == 0
    assert [str(answer) for answer in answers] == ["the disk is gone"] * 3
    assert len({id(answer) for answer in answers}) == 3
    assert await file.read(count) == 0


async def test_calls_are_served_in_order_reads_and_writes_alike(file):
    answers, _ = await commits_of(
        file,
        [file.read(count), file.write(add("a")), file.read(count), file.write(add("b")), file.read(count)],
    )
    assert answers == [0, None, 1, None, 2]


async def test_a_call_that_was_given_up_before_its_turn_is_not_made(file):
    gate = Gate(file)
    kept, given_up, also_kept = pile_up(*(file.write(add(name)) for name in "abc"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    await gate.open()
    await asyncio.gather(kept, also_kept)
    assert await file.read(lambda connection: connection.execute("SELECT name FROM lease").fetchall()) == [
        ("a",),
        ("c",),
    ]


async def test_a_read_cannot_change_anything_that_stays(file):
    await file.read(add("a"))
    assert await file.read(count) == 0


async def test_closing_serves_first_what_was_asked_for(file):
    gate = Gate(file)
    asked = pile_up(*(file.write(add(str(n))) for n in range(5)), file.close())
    await asyncio.sleep(0)
    await gate.open()
    await asyncio.gather(*asked)
    await file.open(create=False)
    assert await file.read(count) == 5


async def test_no_thread_is_left_behind(file):
    await file.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("leveret-store")] == []


async def test_a_file_that_cannot_be_opened_leaves_no_thread(tmp_path):
    with pytest.raises(StoreUnavailable):
        await SqliteFile(tmp_path / "no" / "x.db", busy_timeout=5.0).open(create=True)
    assert [thread.name for thread in threading.enumerate() if thread.name == "leveret-store-x.db"] == []
