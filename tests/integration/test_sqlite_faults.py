"""SQLite when the world is unkind: locked, full, read-only, removed, replaced, killed. Real files and processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.small_disk import SmallDisk

from leveret.core.errors import NotFound, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.stores.sqlite import SqliteStore
from leveret.testing.store_contract import a_letter, an_entry

KIB, MIB = 1024, 1024 * 1024


class WallClock:
    """The real time: other processes go by it too."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leveret.db"


@pytest_asyncio.fixture
async def open_store():
    """Opens stores, and closes them in the end."""
    opened = []

    async def open_store(path: Path, *, busy_timeout: float = 30.0, create: bool = True) -> SqliteStore:
        store = SqliteStore(path, clock=WallClock(), busy_timeout=busy_timeout)
        opened.append(store)
        await store.open(create=create)
        return store

    yield open_store
    for store in opened:
        await store.close()


@contextlib.contextmanager
def process(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A second Python process, ended with the block."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            # What was not taken before the child ended does not matter any more.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def keys_in(path: Path) -> set[str]:
    """The keys that a file holds, read without leveret."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {key.removeprefix("shop.charge/") for (key,) in connection.execute("SELECT key FROM retry")}


# ── Locked ────────────────────────────────────────────────────────────────────────────────────────────────────────────

HOLD_LOCK = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN" if sys.argv[2] == "read" else "BEGIN IMMEDIATE")
connection.execute("SELECT * FROM sqlite_master").fetchall()
print("held", flush=True)
time.sleep(float(sys.argv[3])) if len(sys.argv) > 3 else sys.stdin.readline()
connection.execute("COMMIT")
print("released", flush=True)
sys.stdin.readline()
"""


async def test_a_file_that_somebody_else_locks_for_a_while_is_waited_for(open_store, path):
    store = await open_store(path)
    began = time.monotonic()
    with process(HOLD_LOCK, path, "write", 1.0) as other:
        assert other.stdout.readline() == "held\n"
        placed = await asyncio.gather(
            *(store.put([an_entry(str(number))]) for number in range(20)),
            store.keep([a_letter()]),
            store.next_due("x"),
        )
    assert time.monotonic() - began > 0.9
    assert [each[0].written for each in placed[:20]] == [True] * 20
    assert keys_in(path) == {str(number) for number in range(20)}


async def test_waiting_for_a_locked_file_is_bounded_for_all_and_ends_in_a_plain_sentence(open_store, path):
    store = await open_store(path, busy_timeout=0.5)
    with process(HOLD_LOCK, path, "write") as other:
        assert other.stdout.readline() == "held\n"
        began = time.monotonic()
        calls = []
        for number in range(10):
            calls += [store.put([an_entry(str(number))]), store.count_entries(Filter())]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        # One after the other, ten waits would take 5 s.
        assert time.monotonic() - began < 3.0
        assert answers[1::2] == [0] * 10
        for error in answers[::2]:
            assert isinstance(error, StoreUnavailable)
            assert str(path) in str(error)
            assert "locked for 0.5 s" in str(error)
            assert "What to do: " in str(error)
            assert "database is locked" not in str(error)
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "released\n"
        assert (await store.put([an_entry()]))[0].written


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_opening_a_locked_file_is_bounded_too(path, kind):
    sqlite3.connect(path).close()
    with process(HOLD_LOCK, path, kind) as other:
        assert other.stdout.readline() == "held\n"
        store = SqliteStore(path, clock=WallClock(), busy_timeout=0.5)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"locked for 0\.5 s"):
            await store.open()
        assert time.monotonic() - began < 3.0


async def test_a_locked_file_can_be_read(open_store, path):
    store = await open_store(path)
    await store.put([an_entry()])
    with process(HOLD_LOCK, path, "write") as other:
        assert other.stdout.readline() == "held\n"
        reader = await open_store(path, create=False)
        assert await reader.count_entries(Filter()) == 1
        assert await store.entry(None, "retry-id-one") is not None


# ── Full ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class FullableDisk(SmallDisk):
    """A disk that can be filled; where none may be mounted, a bound on the file itself."""

    async def fill_for(self, store: SqliteStore) -> None:
        if self.mounted:
            self.fill()
        else:
            await self._bound(store, 1)

    async def make_room_for(self, store: SqliteStore) -> None:
        if self.mounted:
            self.make_room()
        else:
            await self._bound(store, 999_999)

    async def _bound(self, store: SqliteStore, pages: int) -> None:
        await store.file.write(
            lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
        )


@pytest.fixture
def small_disk(tmp_path):
    disk = FullableDisk(tmp_path / "disk", size=4)
    yield disk
    disk.close()


async def test_a_full_disk_is_told_and_with_room_again_the_store_goes_on(small_disk):
    store = SqliteStore(small_disk.folder / "leveret.db", clock=WallClock())
    await store.open()
    await store.put([an_entry("before")])
    await small_disk.fill_for(store)
    big = an_entry("big", body=b"x" * 512 * KIB)
    for _ in range(3):
        with pytest.raises(
            StoreUnavailable, match=r"leveret\.db cannot be used: its disk is full\. What to do: "
        ):
            await store.put([an_entry("small beside it"), big])
    assert await store.count_entries(Filter()) == 1
    await small_disk.make_room_for(store)
    assert [each.written for each in await store.put([an_entry("after"), big])] == [True, True]
    assert (await store.check())["integrity"] == "ok"
    await store.close()
    assert keys_in(store.file.path) == {"before", "after", "big"}


async def test_a_full_disk_fails_all_who_shared_the_transaction_and_nothing_of_it_is_kept(small_disk):
    store = SqliteStore(small_disk.folder / "leveret.db", clock=WallClock())
    await store.open()
    await small_disk.fill_for(store)
    body = b"x" * 256 * KIB
    answers = await asyncio.gather(
        *(store.put([an_entry(str(number), body=body)]) for number in range(5)), return_exceptions=True
    )
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert len({id(answer) for answer in answers}) == 5
    await small_disk.make_room_for(store)
    assert await store.count_entries(Filter()) == 0
    await store.close()


async def test_a_disk_that_fails_to_write_is_told_and_the_store_goes_on_when_it_works(open_store, path):
    store = await open_store(path)
    await store.put([an_entry("before")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * KIB, hard))
    try:
        with pytest.raises(StoreUnavailable, match="its disk"):
            await store.put([an_entry("big", body=b"x" * MIB)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await store.put([an_entry("after", body=b"x" * MIB)])
    assert keys_in(path) == {"before", "after"}


# ── Read-only ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def nobodys_rights() -> Iterator[None]:
    """Without the powers of root, for whom no file is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_folder():
    """A folder that everybody may reach."""
    folder = Path(tempfile.mkdtemp(prefix="leveret-"))
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.parametrize("folder_mode", [0o777, 0o555])
async def test_a_file_that_may_only_be_read_is_read_and_writing_is_told(
    open_store, public_folder, folder_mode
):
    path = public_folder / "leveret.db"
    store = await open_store(path)
    await store.put([an_entry()])
    await store.keep([a_letter()])
    await store.close()
    path.chmod(0o444)
    public_folder.chmod(folder_mode)
    with nobodys_rights():
        reader = await open_store(path, create=False)
        assert (await reader.entries(Filter(), limit=9))[0][0].key == "shop.charge/one"
        assert await reader.count_letters(Filter()) == 1
        with pytest.raises(
            StoreUnavailable, match=r"leveret\.db cannot be used: it cannot be written\. What to do: "
        ):
            await reader.put([an_entry("two")])
        assert await reader.count_entries(Filter()) == 1
        await reader.close()


async def test_a_store_cannot_be_created_where_nobody_may_write(public_folder):
    public_folder.chmod(0o555)
    with nobodys_rights(), pytest.raises(StoreUnavailable, match=r"it cannot be opened.*folder"):
        await SqliteStore(public_folder / "leveret.db", clock=WallClock()).open()


# ── Removed and replaced ──────────────────────────────────────────────────────────────────────────────────────────────


async def test_nothing_is_acked_into_a_file_that_was_removed(open_store, path):
    store = await open_store(path)
    await store.put([an_entry()])
    path.unlink()
    for _ in range(2):
        with pytest.raises(
            StoreUnavailable, match=r"leveret\.db was removed while it was open\. What to do: move it back"
        ):
            await store.put([an_entry("two")])
        with pytest.raises(StoreUnavailable, match="was removed"):
            await store.upcoming("shop", within=60.0, limit=9)
    assert not path.exists()


async def test_a_file_that_is_removed_in_the_middle_of_a_write_is_noticed_before_the_answer(open_store, path):
    store = await open_store(path)
    with pytest.raises(StoreUnavailable, match="was removed"):
        await store.file.write(lambda connection: path.unlink())


async def test_a_file_that_is_moved_back_is_used_again(open_store, path):
    store = await open_store(path)
    await store.put([an_entry()])
    away = path.rename(path.with_name("away.db"))
    with pytest.raises(StoreUnavailable, match="was removed"):
        await store.put([an_entry("two")])
    away.rename(path)
    await store.put([an_entry("three")])
    await store.close()
    assert keys_in(path) == {"one", "three"}


async def test_a_removed_log_is_noticed_before_anything_is_acked_into_it(open_store, path):
    store = await open_store(path)
    await store.put([an_entry()])
    Path(f"{path}-wal").unlink()
    with pytest.raises(StoreUnavailable, match=r"leveret\.db-wal was removed while it was open"):
        await store.put([an_entry("two")])
    # What was acked before lay in that log: it is in the file when the store is closed.
    await store.close()
    assert keys_in(path) == {"one"}


async def test_a_store_that_takes_the_place_of_the_open_one_is_used_and_the_old_one_keeps_all_it_was_given(
    open_store, path
):
    new = await open_store(path.with_name("new.db"))
    await new.put([an_entry("new")])
    await new.close()
    store = await open_store(path)
    await store.put([an_entry(f"old {number}") for number in range(50)])
    old = path.rename(path.with_name("old.db"))
    path.with_name("new.db").rename(path)
    # What the old file was given lies in its log, which must not be taken for the new file's.
    assert [entry.key for entry in (await store.entries(Filter(), limit=9))[0]] == ["shop.charge/new"]
    await store.put([an_entry("newer")])
    await store.close()
    assert keys_in(path) == {"new", "newer"}
    assert keys_in(old) == {f"old {number}" for number in range(50)}


async def test_two_users_of_a_file_that_is_replaced_both_go_over_to_the_new_one(open_store, path):
    new = await open_store(path.with_name("new.db"))
    await new.put([an_entry(f"new {number}", body=b"x" * 9000) for number in range(50)])
    await new.close()
    one, two = await open_store(path), await open_store(path)
    await one.put([an_entry("old one")])
    await two.put([an_entry("old two")])
    old = path.rename(path.with_name("old.db"))
    path.with_name("new.db").rename(path)
    await one.put([an_entry("newer one")])
    await two.put([an_entry("newer two")])
    await one.put([an_entry("newest")])
    assert await two.count_entries(Filter()) == 53
    await one.close()
    await two.close()
    assert keys_in(path) == {"newer one", "newer two", "newest", *(f"new {number}" for number in range(50))}
    assert keys_in(old) == {"old one", "old two"}


@pytest.mark.parametrize(
    ("kind", "words"), [("text", "not a SQLite database"), ("foreign", "another program"), ("empty", "empty")]
)
async def test_what_takes_the_place_of_the_open_store_and_is_none_makes_it_unavailable_and_stays_untouched(
    open_store, path, kind, words
):
    store = await open_store(path)
    await store.put([an_entry()])
    good = path.rename(path.with_name("good.db"))
    if kind == "text":
        path.write_text("shopping list: " + "carrots, " * 200)
    elif kind == "foreign":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE songs (name)")
    else:
        path.touch()
    content = path.read_bytes()
    for _ in range(2):
        # Unavailable, not refused: the data is not to blame, and must not be buried for it.
        with pytest.raises(StoreUnavailable, match=words):
            await store.put([an_entry("two")])
    assert path.read_bytes() == content
    good.replace(path)
    await store.put([an_entry("three")])
    await store.close()
    assert keys_in(path) == {"one", "three"}


# ── Two processes ─────────────────────────────────────────────────────────────────────────────────────────────────────

PUT_ROWS = """
import asyncio, sys, time
from leveret.stores.sqlite import SqliteStore
from leveret.testing.store_contract import an_entry

class WallClock:
    now, monotonic = staticmethod(time.time), staticmethod(time.monotonic)

async def main(path, name, batches, size):
    store = SqliteStore(path, clock=WallClock())
    await store.open()
    for batch in range(batches):
        names = [f"{name}/{batch}/{row}" for row in range(size)]
        await store.put([an_entry(each, body=f"{each} ".encode() * 200) for each in names])
        print(batch, flush=True)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


async def test_two_processes_share_one_file_from_its_creation_on(open_store, path):
    with process(PUT_ROWS, path, "a", 10, 100) as one, process(PUT_ROWS, path, "b", 10, 100) as two:
        # Both create it, and this process too.
        store = await open_store(path)
        await store.put([an_entry("here")])
        assert [child.wait(60) for child in (one, two)] == [0, 0]
    names = {f"{name}/{batch}/{row}" for name in "ab" for batch in range(10) for row in range(100)}
    assert await store.count_entries(Filter()) == 2001
    assert keys_in(path) == names | {"here"}


async def test_after_a_kill_in_the_middle_of_puts_every_acked_row_is_there_and_every_row_is_whole(
    open_store, path
):
    with process(PUT_ROWS, path, "a", 100_000, 50) as child:
        acked = [int(child.stdout.readline()) for _ in range(20)]
        child.send_signal(signal.SIGKILL)
        # What it said before it died, and we had not read yet, was acked too.
        acked += [int(line) for line in child.stdout.read().splitlines()]
    store = await open_store(path, create=False)
    assert (await store.check())["integrity"] == "ok"
    rows: dict[int, set[str]] = {}
    after = None
    while True:
        page, after = await store.entries(Filter(), limit=500, after=after)
        for entry in await store.take("shop", [(entry.key, entry.failure) for entry in page]):
            name = entry.key.removeprefix("shop.charge/")
            assert entry.body == f"{name} ".encode() * 200
            rows.setdefault(int(name.split("/")[1]), set()).add(name)
        if after is None:
            break
    assert set(rows) >= set(acked)
    assert {len(names) for names in rows.values()} == {50}


async def test_a_reading_command_never_creates_a_store(open_store, path):
    with pytest.raises(NotFound, match=r"there is no store at .*leveret\.db"):
        await open_store(path, create=False)
    assert list(path.parent.iterdir()) == []
