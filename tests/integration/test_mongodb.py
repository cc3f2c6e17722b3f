"""The MongoDB store beyond the contract: what lies there, who may act, what is told. On FerretDB, or on MongoDB."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest
import pytest_asyncio
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient, ReadPreference
from pymongo.errors import DuplicateKeyError

from leveret.core.errors import ConfigError, LeaseLost, NotFound, StoreRefused, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.core.urls import parse_store
from leveret.ports import Acknowledged, Act
from leveret.retry.acts import RetryActs
from leveret.runtime.here import no_transport, parts_here
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world
from leveret.stores.mongodb import MongoStore, bodies, filters, retries
from leveret.stores.mongodb.lease import LOCK_STALE
from leveret.stores.mongodb.server import MongoServer
from leveret.testing.store_contract import a_letter, an_entry

ROW = ("shop.charge/one", 3)


@pytest_asyncio.fixture
async def opened(mongodb_url):
    """Opens stores on one database, and closes them in the end."""
    stores = []

    async def opened() -> MongoStore:
        store = MongoStore(mongodb_url)
        stores.append(store)
        await store.open()
        return store

    yield opened
    for store in stores:
        await store.close()


@pytest.fixture
def lying(mongodb_url):
    """The database itself."""
    with MongoClient(mongodb_url) as client:
        yield client.get_default_database()


# ── There, or not ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_who_only_reads_never_creates_a_store(mongodb_url, lying):
    store = MongoStore(mongodb_url)
    with pytest.raises(NotFound, match="there is no store at mongodb://"):
        await store.open(create=False)
    assert lying.list_collection_names() == []
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.namespaces()


async def test_a_store_of_a_newer_leveret_is_refused_and_left_as_it_is(mongodb_url, opened, lying):
    await opened()
    lying["leveret_meta"].update_one({"_id": "schema"}, {"$set": {"version": 99}})
    with pytest.raises(StoreRefused, match=r"schema 99.*Upgrade leveret"):
        await opened()
    assert lying["leveret_meta"].find_one({"_id": "schema"})["version"] == 99


async def test_two_who_create_a_store_at_once_both_find_it(mongodb_url):
    stores = [MongoStore(mongodb_url) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    assert [(await store.check())["schema"] for store in stores] == [1, 1, 1]
    for store in stores:
        await store.close()


async def test_a_mistyped_option_is_told_without_the_password():
    with pytest.raises(ConfigError, match=r"mongodb://shop:\*\*\*@localhost") as told:
        await MongoStore("mongodb://shop:s3cret@localhost/shop?retryWritez=true").open()
    assert "s3cret" not in str(told.value)


async def test_a_server_that_is_not_there_is_told_soon_and_without_the_password(cut_off):
    store = MongoStore("mongodb://shop:s3cret@127.0.0.1:1/shop?serverSelectionTimeoutMS=200")
    with pytest.raises(StoreUnavailable, match=r"shop:\*\*\*@127.0.0.1:1.*nobody answers") as told:
        await store.open()
    assert "s3cret" not in str(told.value)
    assert "s3cret" not in repr(store)


async def test_a_url_of_mongodb_is_this_store():
    store = make_store(parse_store("mongodb://a,b/shop?replicaSet=rs0", "--store"), system_world())
    assert isinstance(store, MongoStore)
    assert (store.shared, store.lasting) == (True, True)
    assert store.display == "mongodb://a,b/shop?replicaSet=rs0"


def test_without_pymongo_the_way_to_get_it_is_told():
    code = "import sys; sys.modules['pymongo'] = None\nimport leveret.stores.mongodb"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'leveret[mongodb]'" in done.stderr


def test_leveret_store_check_and_migrate_work_on_it_and_create_nothing(mongodb_url):
    def leveret(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "leveret.cli", "store", *words, "--store", mongodb_url]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    missing = leveret("check")
    assert (missing.returncode, "there is no store" in missing.stderr) == (4, True)

    async def create() -> None:
        store = MongoStore(mongodb_url)
        await store.open()
        await store.put([an_entry()])
        await store.close()

    asyncio.run(create())
    for words in ("check", "migrate"):
        done = leveret(words)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{mongodb_url}: schema 1, up to date; 1 waiting, 0 dead, integrity ok" in done.stdout.replace(
            "\n", " "
        )


# ── What lies there ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_d09_what_the_server_judges_lies_as_dates(opened, lying):
    store = await opened()
    await store.put([an_entry()])
    await store.lease("shop/retry").acquire_or_renew("me", 0.0, 30.0)
    await store.ask(Act(id="a", namespace="shop", verb="retries.now", arguments={}, asked_at=1.0))
    await store.report("a", Acknowledged("me", 1, 1, (), finished=True))
    assert lying["leveret_retry"].count_documents({"due_at": {"$type": 9}, "try_at": {"$type": 9}}) == 1
    assert lying["leveret_lease"].count_documents({"expires_at": {"$type": 9}}) == 1
    assert lying["leveret_act"].count_documents({"finished_at": {"$type": 9}}) == 1


async def test_d09_reports_older_than_a_day_are_deleted(opened, lying):
    store = await opened()
    act = Act(id="a", namespace="shop", verb="retries.now", arguments={}, asked_at=1.0)
    await store.ask(act)
    await store.report("a", Acknowledged("me", 1, 1, (), finished=True))
    a_day_ago = DatetimeMS(int((time.time() - 86_401) * 1000))
    lying["leveret_act"].update_one({"_id": "a"}, {"$set": {"finished_at": a_day_ago}})
    await store.ask(Act(id="b", namespace="shop", verb="retries.now", arguments={}, asked_at=1.0))
    assert [doc["_id"] for doc in lying["leveret_act"].find()] == ["b"]


async def test_b19_time_is_the_servers_and_no_clock_of_a_client_counts(opened, mongodb):
    store = await opened()
    with MongoClient(mongodb) as client:
        theirs = client.admin.command("hello")["localTime"].timestamp()
    assert abs(await store.server.now() / 1000 - theirs) < 86_400
    before = await store.server.now()
    await store.put([an_entry(wait=5.0)])
    ((entry,), _) = await store.entries(Filter(), limit=1)
    assert before + 5000 <= entry.due_at * 1000 <= await store.server.now() + 5000


async def test_a_due_time_that_no_date_can_say_is_refused(opened):
    store = await opened()
    with pytest.raises(StoreRefused, match="no date before the year 10000"):
        await store.put([an_entry(wait=1e15)])
    assert await store.count_entries(Filter()) == 0


#: A body in two pieces.
LARGE = b"x" * 8_000_001


def large(size: int) -> bytes:
    """Bytes that no text holds, with a NUL and a lone surrogate."""
    return (b"\x00\xff" + "\ud800".encode("utf-8", "surrogatepass")) * (size // 5)


async def test_a15_a_body_as_large_as_a_document_waits_in_pieces(opened, lying):
    body = large(15_900_000)
    store = await opened()
    await store.put([an_entry(body=body)])
    assert lying["leveret_piece"].count_documents({}) == 2
    (taken,) = await store.take("shop", [ROW])
    same = taken.body == body
    assert (same, taken.size) == (True, len(body))
    assert await store.remove("shop", [ROW]) == 1
    assert lying["leveret_piece"].count_documents({}) == 0


async def test_a15_the_pieces_of_a_larger_body_go_with_what_they_belong_to(opened, lying):
    body = large(17_000_000)
    store = await opened()
    await store.put([an_entry(body=body)])
    await store.put([an_entry(body=b"small", failure=4)])
    assert lying["leveret_piece"].count_documents({}) == 0
    assert await store.bury([("shop.charge/one", 4)], [a_letter(body=body)]) == [True]
    letter = await store.letter(None, "letter-id-one")
    assert letter is not None
    same = letter.body == body
    assert same
    assert (await store.check())["integrity"] == "ok"
    await store.edit("shop", "letter-id-one", b"mended")
    # The old body lies in a letter of its own.
    assert lying["leveret_piece"].count_documents({}) == 3


@pytest.mark.parametrize("failure", [2, 3])
async def test_a_large_retry_that_is_there_already_leaves_no_pieces_behind(opened, lying, failure):
    store = await opened()
    await store.put([an_entry(body=LARGE)])
    placed = await store.put([an_entry(body=LARGE, failure=failure), an_entry("new", body=LARGE)])
    assert [each.written for each in placed] == [False, True]
    assert lying["leveret_piece"].count_documents({}) == 4
    taken = await store.take("shop", [ROW, ("shop.charge/new", 3)])
    whole = [entry.body == LARGE for entry in taken]
    assert whole == [True, True]
    assert await store.remove("shop", [ROW, ("shop.charge/new", 3)]) == 2
    assert lying["leveret_piece"].count_documents({}) == 0


async def test_a_large_retry_that_another_one_was_quicker_to_write_leaves_no_pieces_behind(
    by_condition, opened, lying
):
    mine, theirs = await opened(), await opened()
    mine.server.transactions = theirs.server.transactions = False
    await mine.put([an_entry()])
    found = mine.server.found

    async def found_and_then_replaced(*asked):
        docs = await found(*asked)
        mine.server.found = found
        await theirs.put([an_entry(failure=4, body=LARGE)])
        return docs

    mine.server.found = found_and_then_replaced
    await mine.put([an_entry(failure=4, body=LARGE)])
    assert lying["leveret_piece"].count_documents({}) == 2
    (taken,) = await mine.take("shop", [("shop.charge/one", 4)])
    same = taken.body == LARGE
    assert same


async def test_a_body_that_has_lost_a_piece_is_told(opened, lying):
    store = await opened()
    await store.put([an_entry(body=LARGE)])
    lying["leveret_piece"].delete_one({})
    with pytest.raises(StoreRefused, match="has lost piece"):
        await store.entry("shop", "retry-id-one")
    assert "shop/shop.charge/one has lost a piece" in (await store.check())["integrity"]


@pytest.mark.parametrize("under", ["a lease", "no lease"])
async def test_a_retry_that_has_lost_a_piece_is_held_with_its_reason_and_its_neighbours_are_taken(
    opened, lying, under
):
    store = await opened()
    grant = await a_term(store, "me") if under == "a lease" else None
    await store.put([an_entry(body=LARGE, wait=0.0), an_entry("small", wait=0.0)])
    piece = lying["leveret_piece"].find_one_and_delete({})
    taken = await store.take("shop", [ROW, ("shop.charge/small", 3)], grant=grant)
    assert [entry.key for entry in taken] == ["shop.charge/small"]
    assert [due.key for due, _ in await store.upcoming("shop", within=9.0, limit=9)] == ["shop.charge/small"]
    by_key = {entry.key: entry for entry in (await store.entries(Filter(), limit=9))[0]}
    lost, small = by_key["shop.charge/one"], by_key["shop.charge/small"]
    assert (lost.state, small.state) == ("held", "waiting")
    assert f"has lost piece {piece['_id']} of its body" in lost.state_reason
    lying["leveret_piece"].insert_one(piece)
    await store.hold([("shop", "shop.charge/one")], held=False)
    (taken,) = await store.take("shop", [ROW], grant=grant)
    same = taken.body == LARGE
    assert (same, taken.state, taken.state_reason) == (True, "waiting", "")


async def test_who_asks_for_held_ones_is_told_which_is_not_whole_and_nothing_is_changed(opened, lying):
    store = await opened()
    await store.put([an_entry(body=LARGE), an_entry("small")])
    lying["leveret_piece"].delete_one({})
    lost, small = await store.take("shop", [ROW, ("shop.charge/small", 3)], held=True)
    assert (lost.body, small.body) == (None, b'{"order": 17}')
    assert "has lost piece" in lost.state_reason
    assert {entry.state for entry in (await store.entries(Filter(), limit=9))[0]} == {"waiting"}


@pytest.mark.parametrize("meanwhile", ["fails anew", "is removed"])
async def test_a_row_that_goes_while_it_is_read_has_lost_nothing(opened, monkeypatch, meanwhile):
    store, other = await opened(), await opened()
    await store.put([an_entry(body=LARGE)])
    read = bodies.body_of

    async def read_late(*asked):
        monkeypatch.setattr(bodies, "body_of", read)
        if meanwhile == "is removed":
            await other.remove("shop", [ROW])
        else:
            await other.put([an_entry(failure=4, body=b"four")])
        return await read(*asked)

    monkeypatch.setattr(bodies, "body_of", read_late)
    assert await store.take("shop", [ROW], held=True) == []
    assert {entry.state for entry in (await store.entries(Filter(), limit=9))[0]} <= {"waiting"}


async def test_a_retry_that_has_lost_a_piece_cannot_be_cancelled_and_the_report_says_why(opened, lying):
    store, world = await opened(), system_world()
    await store.put([an_entry(body=LARGE), an_entry("small")])
    lying["leveret_piece"].delete_one({})
    acts = RetryActs(parts_here(store, world, "shop", transport=no_transport(world)), None)
    wanted = {"ids": ["retry-id-one", "retry-id-small"]}
    await store.ask(Act(id="a", namespace="shop", verb="retries.cancel", arguments=wanted, asked_at=1.0))
    await acts.obey(await a_term(store, "me"))
    report = (await store.act("a")).report
    assert (report.asked, report.done, report.finished) == (2, 1, True)
    (note,) = report.notes
    assert note.startswith("1 could not be done: 'shop/shop.charge/one' in mongodb://")
    assert "has lost piece" in note
    assert [entry.key for entry in (await store.entries(Filter(), limit=9))[0]] == ["shop.charge/one"]
    assert [letter.ending for letter in (await store.letters(Filter(), limit=9))[0]] == ["cancelled"]


async def test_a_dead_letter_that_has_lost_a_piece_is_claimed_without_its_body_and_stops_no_other(
    opened, lying
):
    store = await opened()
    await store.keep([a_letter(body=LARGE), a_letter("small")])
    lying["leveret_piece"].delete_one({})
    for state in ("dead", "claimed"):
        claimed = await store.claim(Filter(worker="charge"), replay_id="r", limit=9)
        assert {letter.id: (letter.state, letter.body) for letter in claimed} == {
            "letter-id-one": (state, None),
            "letter-id-small": (state, b'{"order": 17}'),
        }
    with pytest.raises(StoreRefused, match="has lost piece"):
        await store.letter("shop", "letter-id-one")


async def test_a_search_for_a_text_goes_on_past_a_body_that_has_lost_a_piece(opened, lying):
    store = await opened()
    await store.put([an_entry(body=LARGE), an_entry("small")])
    await store.keep([a_letter(body=LARGE), a_letter("small")])
    lying["leveret_piece"].delete_many({})
    assert await store.count_entries(Filter(text="order")) == 1
    assert await store.set_state(Filter(text="order"), was="dead", to="discarded") == 1


# ── Who may act ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def a_term(store, holder):
    lease = store.lease("shop/retry")
    assert await lease.acquire_or_renew(holder, 0.0, 30.0)
    return await lease.grant(holder)


@pytest.fixture
def by_condition(monkeypatch):
    """Servers that change a document by condition in one step, and have no transactions: a MongoDB alone."""
    from leveret.stores.mongodb import lease, server

    monkeypatch.setattr(lease, "is_ferretdb", lambda about: False)
    monkeypatch.setattr(server, "is_ferretdb", lambda about: False)


async def test_what_the_next_holder_has_taken_its_last_one_cannot_remove_any_more(by_condition, opened):
    mine, theirs = await opened(), await opened()
    mine.server.transactions = theirs.server.transactions = False
    await mine.put([an_entry(wait=0.0)])
    grant = await a_term(mine, "mine")
    assert len(await mine.take("shop", [ROW], grant=grant)) == 1
    found = mine.server.found

    async def found_and_then_superseded(*asked):
        # The lease was checked, and then this process stood still for longer than it lasts.
        docs = await found(*asked)
        mine.server.found = found
        await mine.lease("shop/retry").release("mine")
        assert len(await theirs.take("shop", [ROW], grant=await a_term(theirs, "theirs"))) == 1
        return docs

    mine.server.found = found_and_then_superseded
    assert await mine.remove("shop", [ROW], grant=grant) == 0
    assert await mine.count_entries(Filter()) == 1
    with pytest.raises(LeaseLost):
        await mine.remove("shop", [ROW], grant=grant)


async def test_many_rows_are_unblocked_in_portions_and_a_lease_that_is_taken_over_stops_the_rest(
    opened, monkeypatch
):
    monkeypatch.setattr(retries, "UNBLOCKED_AT_ONCE", 2)
    store = await opened()
    await store.put([an_entry(name, wait=0.0) for name in "abcdef"])
    rows = [(f"shop.charge/{name}", 3) for name in "abcdef"]
    await store.postpone("shop", rows, seconds=300.0, blocked="gone")
    grant = await a_term(store, "mine")
    write = store.server.write

    async def superseded(*asked, **options):
        store.server.write = write
        written = await write(*asked, **options)
        await store.lease("shop/retry").release("mine")
        await a_term(store, "other")
        return written

    store.server.write = superseded
    with pytest.raises(LeaseLost):
        await store.unblock("shop", "shop.charge", grant=grant)
    page, _ = await store.entries(Filter(), limit=9)
    assert sorted(entry.state for entry in page) == ["blocked"] * 4 + ["waiting"] * 2
    assert await store.unblock("shop", "shop.charge") == 4


async def test_rows_that_bear_a_term_of_a_lease_that_was_deleted_can_still_be_taken(
    by_condition, opened, lying
):
    store = await opened()
    store.server.transactions = False
    await store.put([an_entry(wait=0.0)])
    for holder in ("a", "b", "c"):
        grant = await a_term(store, holder)
        assert len(await store.take("shop", [ROW], grant=grant)) == 1
        await store.lease("shop/retry").release(holder)
    lying["leveret_lease"].delete_many({})
    grant = await a_term(store, "d")
    assert grant.term == 1
    assert len(await store.take("shop", [ROW], grant=grant)) == 1
    assert await store.remove("shop", [ROW], grant=grant) == 1


async def test_of_two_that_write_a_key_at_once_the_higher_failure_stays(by_condition, opened):
    mine, theirs = await opened(), await opened()
    mine.server.transactions = theirs.server.transactions = False
    await mine.put([an_entry()])
    found = mine.server.found

    async def found_and_then_replaced(*asked):
        docs = await found(*asked)
        mine.server.found = found
        await theirs.put([an_entry(failure=9, body=b"nine")])
        return docs

    mine.server.found = found_and_then_replaced
    (placed,) = await mine.put([an_entry(failure=4)])
    assert not placed.written
    assert (await mine.take("shop", [("shop.charge/one", 9)]))[0].body == b"nine"


async def test_a_letter_that_a_replay_claims_while_bodies_are_searched_is_not_discarded(
    by_condition, opened, monkeypatch
):
    mine, theirs = await opened(), await opened()
    mine.server.transactions = theirs.server.transactions = False
    await mine.keep([a_letter(), a_letter("other")])
    holding = filters._holding

    async def held_and_then_claimed(*asked):
        found = await holding(*asked)
        await theirs.claim(Filter(ids=("letter-id-one",)), replay_id="r", limit=9)
        return found

    monkeypatch.setattr(filters, "_holding", held_and_then_claimed)
    assert await mine.set_state(Filter(text='"order"'), was="dead", to="discarded") == 1
    states = {id: (await mine.letter("shop", f"letter-id-{id}")).state for id in ("one", "other")}
    assert states == {"one": "claimed", "other": "discarded"}


async def test_what_a_killed_process_left_locked_is_free_again(opened, lying):
    store = await opened()
    if store.server.atomic:
        pytest.skip("this server needs no locks")
    long_ago = DatetimeMS(await store.server.now() - 31_000)
    lying["leveret_lock"].insert_one({"_id": "store", "token": "gone", "taken_at": long_ago})
    await store.put([an_entry()])
    assert lying["leveret_lock"].count_documents({}) == 0


async def test_b31_who_was_killed_while_it_asked_for_a_short_lease_is_waited_for_as_long_as_that_lasts(
    opened, lying
):
    store = await opened()
    if store.server.atomic:
        pytest.skip("this server needs no locks")
    a_moment_ago = DatetimeMS(await store.server.now() - 1_000)
    lying["leveret_lock"].insert_one({"_id": "lease/shop/retry", "token": "gone", "taken_at": a_moment_ago})
    async with asyncio.timeout(LOCK_STALE - 2):
        assert await store.lease("shop/retry").acquire_or_renew("standby", 0.0, 1.0)
    assert lying["leveret_lock"].count_documents({}) == 0


async def test_a_lock_that_this_process_could_not_give_back_is_its_own_to_remove(opened, lying):
    store = await opened()
    if store.server.atomic:
        pytest.skip("this server needs no locks")
    alone = store.server._alone
    collection = alone._collection

    async def cut_while_it_writes() -> None:
        async with alone():
            alone._collection = Away()

    with pytest.raises(ConnectionError):
        await cut_while_it_writes()
    alone._collection = collection
    assert lying["leveret_lock"].count_documents({}) == 1
    async with asyncio.timeout(5):
        await store.put([an_entry()])
    assert lying["leveret_lock"].count_documents({}) == 0


class Away:
    async def delete_one(self, query):
        raise ConnectionError("the server is away")


async def test_who_is_cancelled_is_so_at_once_and_the_call_comes_to_its_end(opened):
    store = await opened()
    await store.put([an_entry()])
    asked, answers = asyncio.Event(), asyncio.Event()
    ended = 0

    async def slow() -> int:
        nonlocal ended
        if not answers.is_set():
            asked.set()
            # Never cancelled: pymongo might keep its lock for ever.
            await answers.wait()
            ended += 1
        return int(time.time() * 1000)

    store.server.now = slow
    lease = store.lease("shop/retry")
    for call in (store.put([an_entry()]), lease.acquire_or_renew("me", 0.0, 30.0), store.next_due("shop")):
        asked.clear()
        task = asyncio.create_task(call)
        async with asyncio.timeout(5):
            await asked.wait()
        task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.cancelled()
    answers.set()
    await store.close()
    assert ended == 3


# ── Transactions, where a replica set has them ────────────────────────────────────────────────────────────────────────


class Session:
    def __init__(self, client) -> None:
        self.client = client

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.client.ended += 1

    async def with_transaction(self, ask, *, write_concern, read_preference):
        assert read_preference == ReadPreference.PRIMARY
        assert write_concern.document == {"w": "majority", "j": True}
        return await ask(self)


class Client:
    ended = 0

    def start_session(self):
        return Session(self)


async def test_a_transaction_that_met_anothers_insert_begins_anew():
    client, answers = Client(), [DuplicateKeyError("E11000"), DuplicateKeyError("E11000"), None]

    async def ask(session):
        assert isinstance(session, Session)
        if (error := answers.pop(0)) is not None:
            raise error
        return "done"

    assert await MongoServer("mongodb://nowhere")._in_transaction(client, ask) == "done"
    assert client.ended == 3
