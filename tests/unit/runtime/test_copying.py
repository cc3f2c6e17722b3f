"""StoreCopy: everything from one store into another, as often as one likes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.cases.scene import WatchedFile

from leveret.core.dead_letter import Replay
from leveret.core.errors import LeaseLost, StoreError, StoreRefused, StoreUnavailable
from leveret.core.retry_entry import Filter
from leveret.ports import Act
from leveret.runtime import copying
from leveret.runtime.copying import STATES, StoreCopy
from leveret.stores.documents import MemoryDocumentStore
from leveret.stores.memory import MemoryStore
from leveret.stores.sqlite import SqliteStore
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.store_contract import a_letter, an_entry
from leveret.testing.worlds import fake_world

SHOP = Filter(namespace="shop")
HOSTILE = [b"", b"\0", "\ud800".encode("utf-8", "surrogatepass"), bytes(range(256)) * 40]


class Scene:
    """A source and a target whose wall clocks are an hour apart."""

    def __init__(self, kinds: str, folder: Path) -> None:
        self.files: list[WatchedFile] = []
        self.clock = FakeClock(settle=self._settled)
        clocks = (self.clock, FakeClock(start=self.clock.now() + 3600))
        self.stores = [
            self._made(kind, folder / f"{number}.db", clock)
            for number, (kind, clock) in enumerate(zip(kinds.split(" to "), clocks, strict=True))
        ]

    def _made(self, kind: str, path: Path, clock: FakeClock) -> MemoryStore | SqliteStore:
        if kind == "memory":
            return MemoryStore(clock=clock)
        store = SqliteStore(path, clock=clock)
        store.file = WatchedFile(path)
        self.files.append(store.file)
        return store

    async def _settled(self) -> None:
        for file in self.files:
            await file.rests.wait()
            await idle()


@pytest.fixture(params=["memory to sqlite", "sqlite to memory"])
async def scene(request, tmp_path):
    scene = Scene(request.param, tmp_path)
    for store in scene.stores:
        await store.open()
    yield scene
    for store in scene.stores:
        await store.close()


@pytest.fixture
def stores(scene):
    return scene.stores


@pytest.fixture
def clock(scene):
    return scene.clock


@pytest.fixture
def copy(stores, clock):
    return StoreCopy(*stores, world=fake_world(clock=clock), ttl=30.0)


async def copied(copy: StoreCopy, namespace: str = "shop"):
    async with copy.holding([namespace]):
        return await copy.run(namespace)


async def everything(store, namespace: str = "shop"):
    """All rows of a store, whole, without what its clock decides."""
    wanted = Filter(namespace=namespace)
    entries, _ = await store.entries(wanted, limit=10_000)
    letters, _ = await store.letters(wanted, limit=10_000, states=STATES)
    whole = [await store.entry(namespace, each.retry_id) for each in entries]
    return (
        {each.key: replace(each, due_at=0.0, due_in=round(each.due_in, 3)) for each in whole},
        {each.id: await store.letter(namespace, each.id) for each in letters},
    )


async def test_all_states_bodies_and_what_is_left_of_each_delay_arrive(stores, copy, clock):
    source, target = stores
    waits = [0.0, 0.001, -500.0, 40 * 86_400.0, 3650 * 86_400.0]
    await source.put([an_entry(f"wait {each}", wait=each) for each in waits])
    await source.put([an_entry(f"body {n}", body=body) for n, body in enumerate(HOSTILE)])
    await source.put([
        an_entry("held", state="held", state_reason="by ann", wait=60.0),
        an_entry("blocked", wait=0.0),
        an_entry("delayed", kind="delayed", queue="", through_exchange=True, message_id=None, attempt=0),
    ])  # fmt: skip
    await source.postpone("shop", [("shop.charge/blocked", 3)], seconds=300.0, blocked="queue gone")
    replays = (Replay(at=1.0, replay_id="r", to="shop.charge", outcome="published"),)
    await source.keep([a_letter("replayed", state="replayed", replays=replays, rpc=False)])
    await source.keep([a_letter(f"body {n}", body=body) for n, body in enumerate(HOSTILE)])
    await source.keep([a_letter("put aside", state="discarded")])
    await clock.advance(7)
    came_to = await copied(copy)
    assert came_to.whole
    assert (came_to.retries.copied, came_to.retries.source, came_to.retries.target) == (12, 12, 12)
    assert (came_to.letters.copied, came_to.letters.source, came_to.letters.target) == (6, 6, 6)
    assert await everything(target) == await everything(source)
    assert (await everything(target))[0]["shop.charge/held"].due_in == 53.0
    await target.hold([("shop", "shop.charge/held")], held=False)
    assert (await target.entry("shop", "retry-id-held")).due_in == pytest.approx(53.0)


async def test_two_held_rows_of_one_retry_id_both_arrive(stores, copy):
    source, target = stores
    rows = [an_entry(name, retry_id="same", state="held", state_reason=f"for {name}") for name in "ab"]
    await source.put(rows)
    came_to = await copied(copy)
    assert (came_to.whole, came_to.retries.copied) == (True, 2)
    taken = await target.take("shop", [(row.key, row.failure) for row in rows], held=True)
    assert [(each.key, each.retry_id, each.state_reason) for each in taken] == [
        ("shop.charge/a", "same", "for a"),
        ("shop.charge/b", "same", "for b"),
    ]


async def test_done_again_it_copies_nothing_and_changes_nothing(stores, copy):
    source, target = stores
    await source.put([an_entry(str(n)) for n in range(5)])
    await source.keep([a_letter(str(n)) for n in range(3)])
    await copied(copy)
    before = await everything(target)
    came_to = await copied(copy)
    assert (came_to.retries.copied, came_to.retries.there) == (0, 5)
    assert (came_to.letters.copied, came_to.letters.there) == (0, 3)
    assert came_to.whole
    assert await everything(target) == before


@pytest.mark.parametrize("fails_at", [1, 2, 4, 5, 8])
async def test_cut_short_anywhere_and_done_again_nothing_is_missing_and_nothing_twice(
    stores, copy, monkeypatch, fails_at
):
    source, target = stores
    monkeypatch.setattr(copying, "ROWS", 3)
    await source.put([an_entry(str(n)) for n in range(10)])
    await source.put([an_entry("held", state="held")])
    await source.keep([a_letter(str(n)) for n in range(10)])
    calls = 0

    def cut_short(write):
        async def maybe(rows):
            nonlocal calls
            calls += 1
            result = await write(rows)
            # Written, and then gone: the worst moment.
            if calls == fails_at:
                raise StoreUnavailable("cut short")
            return result

        return maybe

    with monkeypatch.context() as patch:
        patch.setattr(target, "put", cut_short(target.put))
        patch.setattr(target, "keep", cut_short(target.keep))
        with pytest.raises(StoreUnavailable):
            await copied(copy)
    assert await copy.at_work_since("shop") == []
    came_to = await copied(copy)
    assert came_to.whole
    assert came_to.retries.there + came_to.letters.there > 0
    assert await everything(target) == await everything(source)


async def test_a_failure_that_the_target_knows_of_already_is_left_and_a_newer_one_replaces_it(stores, copy):
    source, target = stores
    await target.put([an_entry("newer", failure=4, reason="there"), an_entry("older", failure=2)])
    await source.put([an_entry("newer"), an_entry("older", reason="here")])
    came_to = await copied(copy)
    assert (came_to.retries.copied, came_to.retries.there) == (1, 1)
    rows = (await everything(target))[0]
    assert [rows[f"shop.charge/{name}"].reason for name in ("newer", "older")] == ["there", "here"]


async def test_what_passes_while_copying_is_not_waited_for_once_more(stores, copy, clock, monkeypatch):
    source, target = stores
    await source.put([an_entry(wait=100.0)])
    entries = copy._entries

    async def slowly(namespace):
        async for portion in entries(namespace):
            await clock.advance(8)
            yield portion

    monkeypatch.setattr(copy, "_entries", slowly)
    await copied(copy)
    assert (await target.entry("shop", "retry-id-one")).due_in == pytest.approx(92.0)


async def test_a_letter_that_a_replay_had_claimed_lies_as_dead_with_a_note(stores, copy, clock):
    source, target = stores
    await source.keep([a_letter("claimed"), a_letter("dead", died_at=1_750_000_700.0)])
    await source.claim(SHOP, replay_id="r1", limit=1)
    came_to = await copied(copy)
    assert came_to.claimed == 1
    assert came_to.whole
    letter = await target.letter("shop", "letter-id-claimed")
    assert letter.state == "dead"
    assert [(each.to, each.outcome) for each in letter.replays] == [("shop.charge", "maybe twice")]
    assert (await copied(copy)).letters.there == 2
    assert len((await target.letter("shop", "letter-id-claimed")).replays) == 1
    assert [each.id for each in await target.claim(SHOP, replay_id="r2", limit=9)] == [
        "letter-id-claimed",
        "letter-id-dead",
    ]


async def test_what_people_have_asked_for_and_nobody_has_done_comes_along(stores, copy):
    source, target = stores
    act = Act(
        id="a1", namespace="shop", verb="retries.cancel", arguments={"ids": ["retry-id-one"]}, asked_at=1.0
    )
    await source.ask(act)
    assert (await copied(copy)).acts == 1
    await copied(copy)
    assert await target.asked("shop", ["retries.cancel", "dead.replay"]) == [act]


async def test_each_namespace_is_copied_for_itself(stores, copy):
    source, target = stores
    await source.put([an_entry(), an_entry(namespace="other")])
    await source.keep([a_letter(namespace="other")])
    assert (await copied(copy, "other")).whole
    assert await target.count_entries(Filter()) == 1
    assert await everything(target, "other") == await everything(source, "other")
    assert sorted(await target.namespaces()) == ["other"]


async def test_a_row_that_the_target_refuses_is_told_and_its_neighbours_arrive(stores, copy, monkeypatch):
    source, target = stores
    await source.put([an_entry(str(n)) for n in range(7)])
    await source.keep([a_letter(str(n)) for n in range(4)])

    def refusing(write, name):
        async def maybe(rows):
            if any(name in repr(row) for row in rows):
                raise StoreRefused("too large for it")
            return await write(rows)

        return maybe

    monkeypatch.setattr(target, "put", refusing(target.put, "retry-id-4"))
    monkeypatch.setattr(target, "keep", refusing(target.keep, "letter-id-2"))
    came_to = await copied(copy)
    assert not came_to.whole
    assert (came_to.retries.copied, came_to.retries.there) == (6, 0)
    assert came_to.retries.refused == ("retry shop.charge/4: too large for it",)
    assert (came_to.letters.copied, came_to.letters.refused) == (
        3,
        ("dead letter letter-id-2: too large for it",),
    )
    assert set((await everything(source))[0]) - set((await everything(target))[0]) == {"shop.charge/4"}


async def test_what_arrives_at_the_source_meanwhile_is_told_as_missing(stores, copy, monkeypatch):
    source, _ = stores
    await source.put([an_entry("early", wait=5.0)])
    entries = copy._entries

    async def and_one_arrives(namespace):
        async for portion in entries(namespace):
            yield portion
        await source.put([an_entry("late", wait=1.0)])

    monkeypatch.setattr(copy, "_entries", and_one_arrives)
    first, second = await copied(copy), await copied(copy)
    assert (first.whole, first.retries.source, first.retries.copied) == (False, 2, 1)
    assert (second.whole, second.retries.copied, second.retries.there) == (True, 1, 1)


# ── Documents ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def documents(clock):
    return tuple(
        MemoryDocumentStore(collection_name="shop.retry_worker", doc_id_field="retry_key", clock=clock)
        for _ in range(2)
    )


@pytest.fixture
def copy_all(stores, clock, documents):
    return StoreCopy(*stores, world=fake_world(clock=clock), ttl=30.0, documents={"shop": documents})


async def all_of(documents):
    return [doc async for doc in documents.query({})]


async def test_documents_come_along_in_their_order_and_a_later_generation_over_there_stays(
    copy, copy_all, documents
):
    ours, theirs = documents
    await ours.upsert_many([{"retry_key": f"{n}", "message": {"a.b": "\ud800"}, "n": n} for n in range(120)])
    await theirs.insert({"retry_key": "7", "generation": 2})
    assert (await copied(copy)).documents is None
    came_to = (await copied(copy_all)).documents
    assert (came_to.copied, came_to.there, came_to.source, came_to.target) == (119, 1, 120, 120)
    assert came_to.whole
    later, *others = await all_of(theirs)
    assert later == {"retry_key": "7", "generation": 2}
    assert others == [doc for doc in await all_of(ours) if doc["n"] != 7]
    again = (await copied(copy_all)).documents
    assert (again.copied, again.there, again.whole) == (0, 120, True)


async def test_a_document_that_the_target_refuses_is_told_and_its_neighbours_arrive(
    copy_all, documents, monkeypatch
):
    ours, theirs = documents
    await ours.upsert_many([{"retry_key": f"{n}"} for n in range(5)])
    upsert_many = theirs.upsert_many

    async def refusing(docs):
        if {"retry_key": "3"} in docs:
            raise StoreRefused("too large for it")
        return await upsert_many(docs)

    monkeypatch.setattr(theirs, "upsert_many", refusing)
    came_to = await copied(copy_all)
    assert came_to.documents.refused == ("document 3: too large for it",)
    assert came_to.documents.copied == 4
    assert not came_to.whole


@pytest.mark.parametrize("side", [0, 1])
async def test_while_a_runner_is_at_work_on_either_side_nothing_is_copied_and_later_it_is_known(
    stores, copy_all, documents, side
):
    await documents[0].insert({"retry_key": "a"})
    lease = documents[side].lease("shop/retry_worker")
    await lease.acquire_or_renew("web-1/4711", 0.0, 30.0)
    words = "web-1/4711 holds the retry_worker lease of shop"
    assert [each[: len(words)] for each in await copy_all.in_the_way("shop")] == [words]
    with pytest.raises(StoreError, match=words):
        await copied(copy_all)
    assert await all_of(documents[1]) == []
    await lease.release("web-1/4711")
    await copied(copy_all)
    assert await copy_all.at_work_since("shop") == []
    await lease.acquire_or_renew("web-1/4711", 0.0, 30.0)
    assert await copy_all.at_work_since("shop") == [
        f"{stores[side].display}: somebody held the retry_worker lease of shop"
    ]


# ── Leases ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("lease", ["retry", "keeper"])
async def test_while_somebody_holds_a_lease_on_either_side_nothing_is_copied(stores, copy, side, lease):
    source, target = stores
    await source.put([an_entry()])
    await stores[side].lease(f"shop/{lease}").acquire_or_renew("web-1/4711", 0.0, 30.0)
    words = rf"web-1/4711 holds the {lease} lease of shop in .* \(30 s left\)"
    assert len(await copy.in_the_way("shop")) == 1
    with pytest.raises(StoreError, match=words):
        await copied(copy)
    assert await target.count_entries(SHOP) == 0
    free = [await store.lease(f"shop/{name}").state() for store in stores for name in ("retry", "keeper")]
    assert sum(state is not None and state.left > 0 for state in free) == 1


async def test_while_it_copies_nobody_else_gets_a_lease_however_long_it_takes_and_then_all_are_free(
    stores, copy, clock
):
    async with copy.holding(["shop"]):
        for _ in range(10):
            await clock.advance(11)
        for store in stores:
            for lease in ("retry", "keeper"):
                assert not await store.lease(f"shop/{lease}").acquire_or_renew("other", 0.0, 30.0)
    for store in stores:
        for lease in ("retry", "keeper"):
            assert await store.lease(f"shop/{lease}").acquire_or_renew("other", 0.0, 30.0)


def lost(keeper, _grant) -> None:
    keeper._step_down("taken")


def lost_and_taken_again(keeper, grant) -> None:
    # Another one had it in between.
    keeper._grant = grant._replace(term=grant.term + 2)


@pytest.mark.parametrize("befalls", [lost, lost_and_taken_again])
async def test_where_a_lease_is_lost_it_stops_before_it_writes_more(stores, copy, monkeypatch, befalls):
    source, target = stores
    monkeypatch.setattr(copying, "ROWS", 2)
    await source.put([an_entry(str(n)) for n in range(6)])
    async with copy.holding(["shop"]):
        with pytest.raises(LeaseLost, match="run it again"):
            await copy.run("shop", told=lambda _: befalls(*copy._keepers["shop"][0]))
    assert await target.count_entries(SHOP) == 2


async def test_without_the_leases_it_does_not_begin(stores, copy):
    with pytest.raises(LeaseLost):
        await copy.run("shop")
    assert await stores[1].namespaces() == []


@pytest.mark.parametrize("side", [0, 1])
async def test_who_was_at_work_after_a_copy_is_known_before_the_next_one(stores, copy, side):
    await stores[0].put([an_entry()])
    assert await copy.at_work_since("shop") == []
    await copied(copy)
    await copied(copy)
    assert await copy.at_work_since("shop") == []
    lease = stores[side].lease("shop/retry")
    await lease.acquire_or_renew("web-1/4711", 0.0, 30.0)
    await lease.release("web-1/4711")
    assert await copy.at_work_since("shop") == [
        f"{stores[side].display}: somebody held the retry lease of shop"
    ]
    await copied(copy)
    assert await copy.at_work_since("shop") == []
    assert len(await stores[1].asked("shop", [copying.MARK])) == 1


async def test_no_more_bodies_are_in_memory_than_are_meant_to_be(stores, copy, monkeypatch):
    source, target = stores
    monkeypatch.setattr(copying, "BYTES", 1000)
    await source.put([an_entry(str(n), body=bytes(size)) for n, size in enumerate((400, 400, 400, 5000, 1))])
    sizes = []
    put = target.put

    async def watched(entries):
        sizes.append([len(each.body) for each in entries])
        return await put(entries)

    monkeypatch.setattr(target, "put", watched)
    assert (await copied(copy)).whole
    assert sizes == [[400, 400], [400], [5000], [1]]
