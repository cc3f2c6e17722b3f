"""RetryWorker: stores soft failures of the JSON form, gives them back when they are due, and loses none."""

from __future__ import annotations

import asyncio
import copy
import logging
from itertools import pairwise

import pytest

from leveret.core.envelope import Malformed
from leveret.core.errors import StoreUnavailable
from leveret.retry import MemoryRetryLease, RetryWorker
from leveret.retry.worker import AT_ONCE, MOST_SILENT, PATIENCE
from leveret.stores.documents import MemoryDocumentStore
from leveret.testing.fake_clock import FakeClock


class Publisher:
    """Keeps what is published; fails as often as it is told to."""

    def __init__(self, *, failures: int = 0) -> None:
        self.published: list[dict] = []
        self.failures = failures
        self.any = asyncio.Event()

    async def setup(self) -> None: ...

    async def teardown(self) -> None: ...

    async def __call__(self, message: dict) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the broker is away")
        self.published.append(message)
        self.any.set()


class QueuePublisher(Publisher):
    """Also publishes straight to the queues that it is told of."""

    def __init__(self, *queues: str) -> None:
        super().__init__()
        self.queues = queues
        self.straight: list[tuple[str, dict]] = []

    async def to_worker(self, worker: str, message: dict) -> bool:
        if worker in self.queues:
            self.straight.append((worker, message))
        return worker in self.queues


class HeldPublisher(Publisher):
    """Publishes when it is let; with *only*, all but that document at once."""

    def __init__(self, *, only: str | None = None) -> None:
        super().__init__()
        self.only = only
        self.entered = 0
        self.begun = asyncio.Event()
        self.let = asyncio.Event()

    async def __call__(self, message: dict) -> None:
        self.entered += 1
        self.begun.set()
        if self.only in (None, message["data"].get("doc_id")):
            await self.let.wait()
        await super().__call__(message)


def a_store(**changes) -> MemoryDocumentStore:
    return MemoryDocumentStore(**{"collection_name": "retries", "doc_id_field": "retry_key"} | changes)


def an_envelope(
    doc_id: str | None = "d1", *, worker: str | None = "parser", after=5, count: int = 1, **more
) -> dict:
    message = {
        "data_type": "page",
        "data": {"part_idx": 2} | ({} if doc_id is None else {"doc_id": doc_id}),
        "job_id": "j1",
        "origin": {"type": "splitter", "name": "host-1"},
        "job_parameters": {"cents": 2**70},
        "retry": {"count": count, "after": after, "reason": "503", "max": 5},
        "_replay_routing_key": "fast.page",
    } | more
    outer = {"data_type": "soft-failure", "data": message, "job_id": "j1"}
    return outer if worker is None else outer | {"origin": {"type": worker, "name": "host-2"}}


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store():
    return a_store()


@pytest.fixture
def publisher():
    return Publisher()


@pytest.fixture
async def make(clock, store, publisher):
    made: list[RetryWorker] = []

    def make(name: str = "retry", **changes) -> RetryWorker:
        given = {"retry_store": store, "republish_publisher": publisher}
        worker = RetryWorker(name, **(given | {"clock": clock.now, "sleep": clock.sleep} | changes))
        made.append(worker)
        return worker

    yield make
    for worker in made:
        await worker.shutdown()


async def rows(store: MemoryDocumentStore) -> list[dict]:
    return [row async for row in store.query({})]


# ── What it is built on ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_store_with_another_id_field_is_refused():
    with pytest.raises(ValueError, match="doc_id_field='doc_id'"):
        RetryWorker("retry", retry_store=a_store(doc_id_field="doc_id"), republish_publisher=Publisher())


@pytest.mark.parametrize("ttl", [0, 0.0, -1, float("nan"), "30", True, None])
def test_a_lease_that_lasts_no_time_is_refused(ttl):
    with pytest.raises(ValueError, match="lease_ttl_seconds"):
        RetryWorker("retry", retry_store=a_store(), republish_publisher=Publisher(), lease_ttl_seconds=ttl)


# ── In ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_soft_failure_is_stored_before_the_call_returns(make, store, clock):
    envelope = an_envelope()
    assert await make()(envelope) is None
    (row,) = await rows(store)
    key = row.pop("retry_key")
    assert key.startswith("job:j1:doc:d1:part:2:parser:")
    assert row == {
        "message": envelope["data"],
        "fire_at": clock.now() + 5,
        "retry_after_seconds": 5,
        "generation": 1,
        "worker": "parser",
    }


@pytest.mark.parametrize(
    "message",
    [
        {"data_type": "page", "data": {}},
        {"data_type": "hard-failure", "data": {}, "error": "no"},
        {"data_type": ["soft-failure"]},
        {},
        [],
        "soft-failure",
        None,
    ],
)
async def test_anything_else_is_ignored(make, store, message):
    assert await make()(message) is None
    assert await rows(store) == []


async def test_the_copy_of_a_failure_that_leveret_itself_keeps_is_ignored(make, store):
    await make()(an_envelope() | {"retry_id": "0f1e"})
    assert await rows(store) == []


@pytest.mark.parametrize(
    "broken", [{"data": None}, {"data": []}, {"data": {"retry": {"after": "30"}}}, {"data": {"retry": 5}}]
)
async def test_a_soft_failure_that_cannot_be_read_is_told(make, store, broken):
    with pytest.raises(Malformed):
        await make()(an_envelope() | broken)
    assert await rows(store) == []


async def test_a_failure_of_the_store_reaches_the_caller(make, store, monkeypatch):
    async def away(doc, overwrite_existing=False):
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(store, "insert", away)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        await make()(an_envelope())


@pytest.mark.parametrize(
    ("retry", "seconds"),
    [
        ({"after": 0}, 0),
        ({"after": 0.001}, 0.001),
        ({"after": 3600}, 3600),
        ({}, 30),
        ({"after": None}, 30),
        (None, 30),
    ],
)
async def test_c12_after_is_final_zero_is_zero_and_what_is_missing_is_thirty(
    make, store, publisher, clock, retry, seconds
):
    await make()(an_envelope(retry=retry))
    await clock.advance(seconds * 0.99)
    assert len(publisher.published) == (seconds == 0)
    await clock.advance(seconds * 0.01)
    assert len(publisher.published) == 1


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a25_two_workers_that_fail_one_message_keep_a_row_each(make, store, publisher, clock):
    worker = make()
    await worker(an_envelope(worker="a", after=5))
    await worker(an_envelope(worker="b", after=9))
    assert len(await rows(store)) == 2
    await clock.advance(5)
    assert [message["retry"]["after"] for message in publisher.published] == [5]
    await clock.advance(4)
    assert [message["retry"]["after"] for message in publisher.published] == [5, 9]
    assert await rows(store) == []


async def test_a25_a_thousand_messages_without_a_document_never_overwrite_each_other(make, store):
    worker = make()
    await asyncio.gather(*(worker(an_envelope(None)) for _ in range(1000)))
    assert len({row["retry_key"] for row in await rows(store)}) == 1000


async def test_a25_two_messages_of_one_document_and_part_keep_a_row_each(make, store):
    worker = make()
    await worker(an_envelope(data_type="page"))
    await worker(an_envelope(data_type="table"))
    assert len(await rows(store)) == 2


async def test_missing_ids_are_a_dash_and_a_missing_part_is_0(make, store):
    await make()(an_envelope(data={}, job_id=None) | {"job_id": None})
    (row,) = await rows(store)
    assert row["retry_key"].startswith("job:-:doc:-:part:0:parser:")


async def test_the_first_part_of_the_key_can_be_given(make, store):
    await make(message_key_func=lambda message: f"mine:{message['job_id']}")(an_envelope())
    assert (await rows(store))[0]["retry_key"].startswith("mine:j1:parser:")


@pytest.mark.parametrize(
    ("scope", "enabled", "prefix", "kept"),
    [
        ("tenant-7", True, "s:tenant-7:job:", "tenant-7"),
        ("tenant-7", False, "job:", None),
        ("Not Valid", True, "job:", None),
        ("x" * 41, True, "job:", None),
        (7, True, "job:", None),
    ],
)
async def test_a_valid_scope_stands_in_front_where_scoping_is_on(make, store, scope, enabled, prefix, kept):
    await make(scoping_enabled=enabled)(an_envelope() | {"scope": scope})
    (row,) = await rows(store)
    assert row["retry_key"].startswith(prefix)
    assert row.get("scope") == kept


# ── Generations ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_later_failure_takes_the_place_of_an_earlier_one(make, store, publisher, clock):
    worker = make()
    await worker(an_envelope(count=1, after=5))
    await worker(an_envelope(count=2, after=9))
    (row,) = await rows(store)
    assert (row["generation"], row["message"]["retry"]["count"]) == (2, 2)
    await clock.advance(8)
    assert publisher.published == []
    await clock.advance(1)
    assert [message["retry"]["count"] for message in publisher.published] == [2]


async def test_a_late_envelope_of_an_earlier_failure_changes_nothing(make, store):
    worker = make()
    await worker(an_envelope(count=2))
    before = await rows(store)
    await worker(an_envelope(count=1))
    assert await rows(store) == before


async def test_the_same_envelope_once_more_does_not_put_it_off(make, store, publisher, clock):
    worker = make()
    await worker(an_envelope(after=5))
    await clock.advance(4)
    await worker(an_envelope(after=5))
    await clock.advance(1)
    assert len(publisher.published) == 1
    assert await rows(store) == []


async def test_a_failure_that_spends_no_attempt_and_comes_before_the_row_is_removed_is_kept(
    make, store, clock, monkeypatch
):
    """A poll: published, run, failed again alike, all before the store has removed the row."""
    publisher = HeldPublisher()
    worker = make(republish_publisher=publisher)
    await worker(an_envelope(after=5))
    await clock.advance(5)
    await publisher.begun.wait()
    await worker(an_envelope(after=5))
    publisher.let.set()
    await clock.advance(0)
    assert (len(publisher.published), len(await rows(store))) == (1, 1)
    await clock.advance(5)
    assert (len(publisher.published), await rows(store)) == (2, [])


# ── Out ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_goes_back_is_the_failed_message_as_it_came(make, publisher, clock):
    envelope = an_envelope()
    sent = copy.deepcopy(envelope["data"])
    await make()(envelope)
    await clock.advance(5)
    assert publisher.published == [sent]


async def test_a_publisher_of_ours_goes_straight_to_the_worker_that_failed(make, store, clock):
    publisher = QueuePublisher("parser", "odd:name:" + "0" * 32)
    worker = make(republish_publisher=publisher)
    await worker(an_envelope())
    await worker(an_envelope(None, worker="odd:name:" + "0" * 32))
    await worker(an_envelope(worker="gone"))
    await worker(an_envelope(worker=None))
    await clock.advance(5)
    assert [name for name, _ in publisher.straight] == ["parser", "odd:name:" + "0" * 32]
    assert len(publisher.published) == 2
    assert await rows(store) == []


async def test_the_failing_worker_is_found_behind_a_scope_too(make, clock):
    publisher = QueuePublisher("parser")
    await make(republish_publisher=publisher, scoping_enabled=True)(an_envelope() | {"scope": "t7"})
    await clock.advance(5)
    assert [name for name, _ in publisher.straight] == ["parser"]


async def test_what_cannot_be_published_stays_stored_and_is_tried_again(make, store, clock, caplog):
    publisher = Publisher(failures=3)
    await make(republish_publisher=publisher)(an_envelope(after=5))
    await clock.advance(5)
    assert (publisher.published, len(await rows(store))) == ([], 1)
    assert "again in 1 s: ConnectionError: the broker is away" in caplog.text
    await clock.advance(1 + 2 + 4)
    assert (len(publisher.published), await rows(store)) == (1, [])


async def test_one_whose_publish_does_not_end_holds_up_no_other(make, clock):
    publisher = HeldPublisher(only="a")
    worker = make(republish_publisher=publisher)
    await worker(an_envelope("a", after=1))
    await worker(an_envelope("b", after=2))
    await clock.advance(1)
    await publisher.begun.wait()
    await clock.advance(1)
    assert [message["data"]["doc_id"] for message in publisher.published] == ["b"]
    publisher.let.set()


async def test_a_worker_whose_queue_withholds_its_answers_holds_up_no_other_and_gets_no_more(
    make, store, clock
):
    class Withholding(QueuePublisher):
        answers = asyncio.Event()
        entered = 0

        async def to_worker(self, worker, message):
            if worker == "stuck":
                self.entered += 1
                await self.answers.wait()
            return await super().to_worker(worker, message)

    publisher = Withholding("stuck", "free")
    worker = make(republish_publisher=publisher)
    for number in range(3 * AT_ONCE):
        await worker(an_envelope(f"s{number}", worker="stuck", after=1))
    await worker(an_envelope("f", worker="free", after=2))
    await clock.advance(1 + PATIENCE)
    assert publisher.straight == [("free", an_envelope("f", after=2)["data"])]
    await clock.advance(3600)
    # Those that filled the room before the silence was noticed, and one room full until its answers are late as well.
    assert publisher.entered <= 2 * AT_ONCE
    assert len(await rows(store)) == 3 * AT_ONCE
    await worker(an_envelope("g", worker="free", after=1))
    await clock.advance(1)
    assert publisher.straight[-1][1]["data"]["doc_id"] == "g"
    publisher.answers.set()
    await clock.advance(1)
    assert sorted(
        message["data"]["doc_id"] for name, message in publisher.straight if name == "stuck"
    ) == sorted(f"s{number}" for number in range(3 * AT_ONCE))
    assert await rows(store) == []


async def test_what_waits_for_a_silent_queue_is_found_once_and_a_later_failure_of_it_counts(
    make, store, clock
):
    publisher = HeldPublisher()
    worker = make(republish_publisher=publisher)
    for number in range(MOST_SILENT):
        await worker(an_envelope(f"d{number}", worker=None, after=0))
    await worker(an_envelope("last", worker=None, after=PATIENCE + 1))
    await clock.advance(PATIENCE + 1)
    assert publisher.entered == MOST_SILENT
    await worker.schedule_pending()
    await clock.advance(60)
    await worker(an_envelope("last", worker=None, count=2, after=5))
    publisher.let.set()
    await clock.advance(4)
    assert publisher.entered == MOST_SILENT
    await clock.advance(1)
    assert publisher.published[-1]["retry"]["count"] == 2
    assert len(publisher.published) == MOST_SILENT + 1
    assert await rows(store) == []


async def test_a_row_that_goes_while_it_is_looked_up_is_none(make, clock):
    class Vanishing(MemoryDocumentStore):
        vanishes = True

        async def exists(self, doc_id):
            found = await super().exists(doc_id)
            if found and self.vanishes:
                self.vanishes = False
                await self.delete(doc_id)
            return found

    store = Vanishing(collection_name="retries", doc_id_field="retry_key")
    worker = make(retry_store=store)
    await worker(an_envelope(count=1, after=50))
    await worker(an_envelope(count=2, after=50))
    assert [row["message"]["retry"]["count"] for row in await rows(store)] == [2]


async def test_a_later_failure_is_not_removed_with_the_earlier_one_by_a_store_that_removes_in_two_steps(
    make, publisher, clock
):
    class TwoSteps(MemoryDocumentStore):
        looked = asyncio.Event()
        go_on = asyncio.Event()

        async def delete(self, doc_id, *, expected=None):
            doc = await self.get_document(doc_id)
            if doc["generation"] != expected["generation"]:
                return False
            self.looked.set()
            await self.go_on.wait()
            return await super().delete(doc_id)

    store = TwoSteps(collection_name="retries", doc_id_field="retry_key")
    worker = make(retry_store=store)
    await worker(an_envelope(count=1, after=1))
    await clock.advance(1)
    await store.looked.wait()
    later = asyncio.create_task(worker(an_envelope(count=2, after=1)))
    await clock.advance(0)
    store.go_on.set()
    await later
    await clock.advance(1)
    assert [message["retry"]["count"] for message in publisher.published] == [1, 2]


async def test_a_later_failure_waits_until_the_publish_of_an_earlier_one_has_ended(make, store, clock):
    publisher = HeldPublisher()
    worker = make(republish_publisher=publisher)
    await worker(an_envelope(count=1, after=1))
    await clock.advance(1)
    await worker(an_envelope(count=2, after=1))
    await clock.advance(5)
    assert publisher.entered == 1
    publisher.let.set()
    await clock.advance(0)
    assert [message["retry"]["count"] for message in publisher.published] == [1, 2]
    assert await rows(store) == []


async def test_what_is_under_way_is_not_scheduled_once_more(make, store, clock):
    publisher = HeldPublisher()
    worker = make(republish_publisher=publisher)
    await worker(an_envelope(after=1))
    await clock.advance(1)
    await worker.schedule_pending()
    publisher.let.set()
    await clock.advance(0)
    assert (publisher.entered, await rows(store)) == (1, [])


async def test_what_is_published_is_not_published_again_while_the_store_is_away(
    make, store, publisher, clock, monkeypatch
):
    fails = 3
    delete = store.delete

    async def away(doc_id, *, expected=None):
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise StoreUnavailable("away")
        return await delete(doc_id, expected=expected)

    monkeypatch.setattr(store, "delete", away)
    await make()(an_envelope(after=5))
    await clock.advance(5 + 1 + 2)
    assert (len(publisher.published), len(await rows(store))) == (1, 1)
    await clock.advance(4)
    assert (len(publisher.published), await rows(store)) == (1, [])


async def test_a_removal_that_was_done_and_told_as_a_timeout_takes_no_later_failure_along(
    make, store, publisher, clock, monkeypatch
):
    delete, lies = store.delete, True

    async def lying(doc_id, *, expected=None):
        nonlocal lies
        found = await delete(doc_id, expected=expected)
        if lies:
            lies = False
            raise StoreUnavailable("no answer in 30 s")
        return found

    monkeypatch.setattr(store, "delete", lying)
    worker = make()
    await worker(an_envelope(after=5))
    await clock.advance(5)
    assert (len(publisher.published), await rows(store)) == (1, [])
    # It has failed again before the removal is asked for once more.
    await worker(an_envelope(count=2, after=5))
    await clock.advance(10)
    assert [message["retry"]["count"] for message in publisher.published] == [1, 2]
    assert await rows(store) == []


def doing_it_and_telling_a_timeout(store: MemoryDocumentStore):
    insert = store.insert

    async def lying(doc, overwrite_existing=False):
        await insert(doc, overwrite_existing=overwrite_existing)
        raise StoreUnavailable("no answer in 30 s")

    return lying


async def test_what_was_stored_and_told_as_a_timeout_goes_once_though_it_is_seen_before_it_is_stored_again(
    make, store, publisher, clock, monkeypatch
):
    worker = make(lease=MemoryRetryLease(clock=clock))
    await worker.start()
    with monkeypatch.context() as patched:
        patched.setattr(store, "insert", doing_it_and_telling_a_timeout(store))
        with pytest.raises(StoreUnavailable):
            await worker(an_envelope(after=5))
        # Until the holder has looked at the store several times.
        await clock.advance(40)
    assert (len(publisher.published), len(await rows(store))) == (0, 1)
    await worker(an_envelope(after=5))
    await clock.advance(40)
    assert (len(publisher.published), await rows(store)) == (1, [])


async def test_what_names_no_document_and_was_stored_and_told_as_a_timeout_again_and_again_goes_once(
    make, store, publisher, clock, monkeypatch
):
    worker = make(lease=MemoryRetryLease(clock=clock))
    await worker.start()
    envelope = an_envelope(None, after=5)
    with monkeypatch.context() as patched:
        patched.setattr(store, "insert", doing_it_and_telling_a_timeout(store))
        for _ in range(10):
            with pytest.raises(StoreUnavailable):
                await worker(envelope)
            await clock.advance(30)
    await worker(envelope)
    await clock.advance(70)
    assert (len(publisher.published), await rows(store)) == (1, [])
    # Brought once more it is another message: that one was stored.
    await worker(envelope)
    await clock.advance(5)
    assert len(publisher.published) == 2


async def test_two_equal_messages_without_a_document_stay_two_also_where_the_store_fails(
    make, store, publisher, clock, monkeypatch
):
    worker = make()
    envelopes = [an_envelope(None, after=5), an_envelope(None, after=5)]
    with monkeypatch.context() as patched:
        patched.setattr(store, "insert", doing_it_and_telling_a_timeout(store))
        for envelope in envelopes:
            with pytest.raises(StoreUnavailable):
                await worker(envelope)
    for envelope in envelopes:
        await worker(envelope)
    await clock.advance(5)
    assert (len(publisher.published), await rows(store)) == (2, [])


async def test_what_was_stored_and_told_as_a_timeout_goes_though_nobody_brings_it_again(
    make, store, publisher, clock, monkeypatch
):
    worker = make(lease=MemoryRetryLease(clock=clock))
    await worker.start()
    monkeypatch.setattr(store, "insert", doing_it_and_telling_a_timeout(store))
    with pytest.raises(StoreUnavailable):
        await worker(an_envelope(after=5))
    await clock.advance(60 + 10)
    assert (len(publisher.published), await rows(store)) == (1, [])


async def test_what_is_being_stored_while_the_store_is_read_is_scheduled_when_that_ends(
    make, store, publisher, clock, monkeypatch
):
    stored, go_on = asyncio.Event(), asyncio.Event()
    insert = store.insert

    async def slow(doc, overwrite_existing=False):
        doc_id = await insert(doc, overwrite_existing=overwrite_existing)
        stored.set()
        await go_on.wait()
        return doc_id

    monkeypatch.setattr(store, "insert", slow)
    worker = make()
    await worker.start()
    storing = asyncio.create_task(worker(an_envelope(after=5)))
    await stored.wait()
    await clock.advance(10)
    await worker.schedule_pending()
    await clock.advance(10)
    assert publisher.published == []
    go_on.set()
    await storing
    await clock.advance(1)
    assert (len(publisher.published), await rows(store)) == (1, [])


@pytest.mark.parametrize("terms", [True, False])
async def test_what_is_published_is_not_published_again_after_an_outage_that_outlasts_the_lease(
    make, store, publisher, clock, monkeypatch, terms
):
    lease = MemoryRetryLease(clock=clock) if terms else Wayward()
    worker = make(lease=lease)
    await worker.start()
    await worker(an_envelope(after=5))

    async def away(*_, **__):
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", away)
        patched.setattr(lease, "acquire_or_renew", away)
        await clock.advance(90)
        assert (len(publisher.published), len(await rows(store))) == (1, 1)
    await clock.advance(40)
    assert (len(publisher.published), await rows(store)) == (1, [])


async def test_c05_killed_between_publish_and_removal_it_sends_one_copy_more_and_the_same(
    make, store, publisher, clock, monkeypatch
):
    async def never(doc_id, *, expected=None):
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", never)
        patched.setattr("leveret.retry.worker.GRACE", 0.0)
        first = make()
        await first(an_envelope(after=5))
        await clock.advance(5)
        await first.shutdown()
    await make().start()
    await clock.advance(0)
    assert len(publisher.published) == 2
    assert publisher.published[0] == publisher.published[1]
    assert await rows(store) == []


async def test_c10_counts_travel_with_the_message_across_restarts(make, store, publisher, clock):
    for count in (1, 2, 3):
        worker = make()
        await worker(an_envelope(count=count, after=1))
        await worker.shutdown()
        await make().start()
        await clock.advance(1)
    assert [message["retry"]["count"] for message in publisher.published] == [1, 2, 3]


# ── Start and end ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_after_a_restart_the_overdue_go_at_once_oldest_first_and_the_rest_when_due(
    make, store, publisher, clock
):
    first = make()
    for doc_id, after in (("c", 30), ("a", 10), ("b", 20), ("d", 100)):
        await first(an_envelope(doc_id, after=after))
    await first.shutdown()
    await clock.advance(60)
    assert publisher.published == []
    await make().start()
    await clock.advance(0)
    assert [message["data"]["doc_id"] for message in publisher.published] == ["a", "b", "c"]
    await clock.advance(39.5)
    assert len(publisher.published) == 3
    await clock.advance(0.5)
    assert [message["data"]["doc_id"] for message in publisher.published][3:] == ["d"]


async def test_schedule_pending_alone_gives_stored_ones_back(make, store, publisher, clock):
    await store.insert({"retry_key": "old", "message": {"a": 1}, "fire_at": clock.now() - 5})
    await make().schedule_pending()
    await clock.advance(0)
    assert publisher.published == [{"a": 1}]


async def test_rows_with_the_plain_old_keys_are_taken_as_they_are(make, store, clock):
    publisher = QueuePublisher("parser")
    message = an_envelope()["data"]
    await store.insert({
        "retry_key": "job:j1:doc:d1:part:2",
        "message": message,
        "fire_at": clock.now() + 5,
        "retry_after_seconds": 5,
        "generation": "5f0c7a",
    })  # fmt: skip
    await make(republish_publisher=publisher).start()
    await clock.advance(5)
    assert (publisher.published, publisher.straight) == ([message], [])
    assert await rows(store) == []


async def test_a_first_part_that_cannot_be_made_is_told_and_does_not_hide_who_failed(make, clock):
    publisher = QueuePublisher("parser")
    await make(republish_publisher=publisher)(an_envelope("d1"))
    strict = make(republish_publisher=publisher, message_key_func=lambda message: message["data"]["number"])
    await strict.start()
    with pytest.raises(Malformed, match="message_key_func raised KeyError: 'number'"):
        await strict(an_envelope("d2"))
    with pytest.raises(Malformed, match="message_key_func gave int: expected text"):
        await strict(an_envelope("d2", data={"number": 7}))
    await clock.advance(5)
    assert [name for name, _ in publisher.straight] == ["parser"] * len(publisher.straight) != []


async def test_c14_a_fresh_one_is_on_time_beside_thousands_that_are_overdue(make, store, clock):
    at: dict[str, float] = {}

    class Slow(Publisher):
        async def __call__(self, message):
            await clock.sleep(1)
            at[message["data"]["doc_id"]] = clock.now()

    publisher = Slow()
    await store.upsert_many([
        {"retry_key": f"k{number:04}", "message": {"data": {"doc_id": f"o{number:04}"}}, "fire_at": number}
        for number in range(2000)
    ])  # fmt: skip
    worker = make(republish_publisher=publisher)
    await worker.start()
    await worker(an_envelope("fresh", after=3))
    due = clock.now() + 3
    await clock.advance(5)
    assert at["fresh"] - due == pytest.approx(1)
    await clock.advance(60)
    overdue = [name for name in at if name != "fresh"]
    assert (overdue, await rows(store)) == (sorted(overdue), [])
    assert len(overdue) == 2000


async def test_the_overdue_go_at_their_rate(make, store, publisher, clock):
    await store.upsert_many([
        {"retry_key": f"k{number:02}", "message": {"data": {}}, "fire_at": number} for number in range(50)
    ])  # fmt: skip
    worker = make()
    worker.overdue_rate = 10
    await worker.start()
    await clock.advance(2)
    assert 20 <= len(publisher.published) <= 22
    await clock.advance(3)
    assert len(publisher.published) == 50


async def test_a_store_that_is_slow_to_read_is_read_seldom_and_once_at_a_time(
    make, store, clock, monkeypatch
):
    reads: list[float] = []
    query = store.query

    async def slow(params, *, sort_by=None):
        reads.append(clock.now())
        await clock.sleep(45)
        async for row in query(params, sort_by=sort_by):
            yield row

    monkeypatch.setattr(store, "query", slow)
    starting = asyncio.create_task(make(lease=MemoryRetryLease(clock=clock)).start())
    await clock.advance(45)
    await starting
    await clock.advance(1000)
    assert [later - earlier for earlier, later in pairwise(reads[1:])] == [pytest.approx(500, abs=10)] * 2


@pytest.mark.parametrize(
    "broken",
    [{"fire_at": "soon"}, {"fire_at": None}, {"fire_at": float("nan")}, {"fire_at": 0, "message": "text"}],
)
async def test_a_stored_row_that_cannot_be_read_is_told_stays_and_never_stops_the_rest(
    make, store, publisher, clock, caplog, broken
):
    await store.insert({"retry_key": "broken"} | broken)
    await store.insert({"retry_key": "whole", "message": {"a": 1}, "fire_at": 0})
    await make().start()
    await clock.advance(0)
    assert publisher.published == [{"a": 1}]
    assert [row["retry_key"] for row in await rows(store)] == ["broken"]
    assert "broken" in caplog.text


async def test_a_store_that_is_away_at_the_start_is_told(make, store, monkeypatch):
    async def away(params, *, sort_by=None):
        raise StoreUnavailable("away")
        yield

    monkeypatch.setattr(store, "query", away)
    with pytest.raises(StoreUnavailable):
        await make().start()


async def test_shutdown_leaves_what_is_stored_and_publishes_no_more(make, store, publisher, clock):
    worker = make()
    await worker(an_envelope(after=5))
    await worker.shutdown()
    await worker.shutdown()
    await clock.advance(60)
    assert (publisher.published, len(await rows(store))) == ([], 1)
    await worker(an_envelope("d2", after=0))
    await clock.advance(60)
    assert (publisher.published, len(await rows(store))) == ([], 2)
    await worker.start()
    await clock.advance(0)
    assert len(publisher.published) == 2


async def test_what_is_being_given_back_at_a_shutdown_is_given_back_once(make, store, clock):
    publisher = HeldPublisher()
    worker = make(republish_publisher=publisher, lease=MemoryRetryLease(clock=clock))
    await worker.start()
    await worker(an_envelope(after=1))
    await clock.advance(1)
    await publisher.begun.wait()
    stopping = asyncio.create_task(worker.shutdown())
    await clock.advance(0)
    publisher.let.set()
    await stopping
    assert (len(publisher.published), await rows(store)) == (1, [])


async def test_a_shutdown_does_not_wait_for_a_publish_that_does_not_end(make, store, clock, monkeypatch):
    monkeypatch.setattr("leveret.retry.worker.GRACE", 0.01)
    publisher = HeldPublisher()
    worker = make(republish_publisher=publisher)
    await worker(an_envelope(after=1))
    await clock.advance(1)
    await publisher.begun.wait()
    await worker.shutdown()
    assert (publisher.published, len(await rows(store))) == ([], 1)


async def test_a_jump_of_the_wall_clock_neither_hurries_nor_loses_what_is_scheduled(make, publisher, clock):
    worker = make()
    await worker(an_envelope(after=30))
    clock.jump(86_400)
    await clock.advance(29)
    assert publisher.published == []
    clock.jump(-200_000)
    await clock.advance(1)
    assert len(publisher.published) == 1


async def test_by_default_it_goes_by_the_systems_time(store, publisher):
    worker = RetryWorker("retry", retry_store=store, republish_publisher=publisher)
    await worker(an_envelope(after=0.01))
    async with asyncio.timeout(5):
        await publisher.any.wait()
    assert len(publisher.published) == 1
    await worker.shutdown()


# ── The lease ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def lease(clock):
    return MemoryRetryLease(clock=clock)


async def test_only_the_holder_publishes_also_what_a_standby_stored(make, store, lease, clock):
    publishers = [Publisher(), Publisher()]
    first, second = (make(lease=lease, republish_publisher=publisher) for publisher in publishers)
    await first(an_envelope("before", after=0))
    await clock.advance(60)
    assert publishers[0].published == []
    await first.start()
    await second.start()
    await clock.advance(0)
    await second(an_envelope("standby", after=0))
    await second.schedule_pending()
    await clock.advance(10)
    assert [m["data"]["doc_id"] for m in publishers[0].published] == ["before", "standby"]
    assert publishers[1].published == []
    assert await rows(store) == []


async def test_a_clean_stop_hands_the_lease_over_within_half_a_second(make, lease, clock):
    publishers = [Publisher(), Publisher()]
    first, second = (make(lease=lease, republish_publisher=publisher) for publisher in publishers)
    await first.start()
    await second.start()
    await first(an_envelope(after=20))
    await first.shutdown()
    await clock.advance(20)
    assert (len(publishers[0].published), len(publishers[1].published)) == (0, 1)


async def test_reading_the_store_anew_leaves_what_is_scheduled_its_time(make, lease, publisher, clock):
    """The wall clock jumps, then the holder renews its lease and reads the store."""
    worker = make(lease=lease)
    await worker.start()
    await worker(an_envelope(after=25))
    clock.jump(86_400)
    await clock.advance(24)
    assert publisher.published == []
    await clock.advance(1)
    assert len(publisher.published) == 1


class Wayward:
    """A lease that knows nothing but the interface, and fails when it is told to."""

    def __init__(self, answer=True) -> None:
        self.answer = answer
        self.asked = 0

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(self.answer, asyncio.Event):
            await self.answer.wait()
            return True
        return self.answer


@pytest.mark.parametrize("loss", [OSError("no route to host"), False, asyncio.Event()])
async def test_without_the_lease_nothing_is_published_and_what_is_under_way_is_ended(
    make, store, clock, loss
):
    """An error, somebody else's lease, and an answer that does not come."""
    publisher, lease = HeldPublisher(), Wayward()
    worker = make(lease=lease, republish_publisher=publisher)
    await worker.start()
    await worker(an_envelope("under way", after=0))
    await worker(an_envelope("later", after=50))
    await clock.advance(0)
    await publisher.begun.wait()
    lease.answer = loss
    await clock.advance(40)
    publisher.let.set()
    await clock.advance(60)
    assert publisher.published == []
    assert len(await rows(store)) == 2
    lease.answer = True
    if isinstance(loss, asyncio.Event):
        loss.set()
    await clock.advance(30)
    assert len(publisher.published) == 2
    assert await rows(store) == []


@pytest.mark.parametrize("loss", [OSError("no route to host"), StoreUnavailable("away"), False])
async def test_an_error_at_a_renewal_ends_all_publishing_from_that_moment(make, clock, loss):
    """Not only once the last renewal that went well is over, which would be at 30 s."""
    publisher, lease = HeldPublisher(), Wayward()
    worker = make(lease=lease, republish_publisher=publisher)
    await worker.start()
    await worker(an_envelope(after=0))
    await clock.advance(0)
    lease.answer = loss
    await clock.advance(10)
    publisher.let.set()
    await clock.advance(10)
    assert (publisher.entered, publisher.published) == (1, [])


async def test_a_host_that_is_suspended_between_two_ways_to_publish_does_not_take_the_second(make, clock):
    """The clock since boot goes on meanwhile, and the timers of the loop do not."""

    class Host:
        at = 0.0

        def monotonic(self) -> float:
            return self.at

        now = monotonic

    class Suspending(QueuePublisher):
        async def to_worker(self, worker: str, message: dict) -> bool:
            host.at += 31.0
            lease.answer = False
            return await super().to_worker(worker, message)

    host, publisher, lease = Host(), Suspending(), Wayward()
    worker = make(lease=lease, republish_publisher=publisher, clock=host.now)
    await worker.start()
    await worker(an_envelope(after=0))
    await clock.advance(0)
    assert host.at == 31.0
    assert publisher.published == []


async def test_a_holder_trusts_itself_from_the_start_of_its_last_renewal_and_no_longer(
    make, publisher, clock
):
    """Asked again at 10 s, and never answered: the renewal of 0 s lasts until 30 s."""
    lease = Wayward()
    worker = make(lease=lease, lease_ttl_seconds=30)
    await worker.start()
    lease.answer = asyncio.Event()
    await worker(an_envelope("in time", after=29))
    await worker(an_envelope("too late", after=30))
    await clock.advance(29)
    assert [message["data"]["doc_id"] for message in publisher.published] == ["in time"]
    await clock.advance(60)
    assert len(publisher.published) == 1


async def test_a_standby_asks_twice_a_second_and_a_holder_thrice_in_a_lease(make, clock):
    holding, standing = Wayward(), Wayward(answer=False)
    await make(lease=holding).start()
    await make(lease=standing).start()
    await clock.advance(30)
    assert holding.asked == 1 + 3
    assert standing.asked == 1 + 60


async def test_a_store_that_cannot_be_read_at_a_renewal_is_read_at_the_next(
    make, store, lease, publisher, clock, monkeypatch, caplog
):
    worker = make(lease=lease)
    await worker.start()
    await store.insert({"retry_key": "from a standby", "message": {"a": 1}, "fire_at": 0})
    query = store.query

    async def away(params, *, sort_by=None):
        raise StoreUnavailable("away")
        yield

    monkeypatch.setattr(store, "query", away)
    await clock.advance(10)
    assert "cannot be read" in caplog.text
    monkeypatch.setattr(store, "query", query)
    await clock.advance(10)
    assert publisher.published == [{"a": 1}]


async def test_what_another_process_stored_meanwhile_goes_at_its_own_time(make, store, publisher, clock):
    """A standby replaced the row while this holder had it scheduled."""
    worker = make()
    await worker(an_envelope(count=1, after=5))
    (row,) = await rows(store)
    await store.update(row["retry_key"], {"generation": 2, "fire_at": clock.now() + 9})
    await clock.advance(8)
    assert publisher.published == []
    await clock.advance(1)
    assert len(publisher.published) == 1


async def test_no_secret_and_no_body_is_logged(make, clock, caplog):
    caplog.set_level(logging.DEBUG)
    worker = make(republish_publisher=Publisher(failures=2))
    await worker(an_envelope(job_parameters={"token": "s3cr3t"}))
    await clock.advance(60)
    assert "s3cr3t" not in caplog.text


async def test_a_next_failure_that_is_stored_without_an_answer_while_the_one_before_is_removed_goes_once(
    make, store, clock, monkeypatch
):
    publisher = HeldPublisher()
    worker = make(lease=MemoryRetryLease(clock=clock), republish_publisher=publisher)
    await worker.start()
    await worker(an_envelope(after=1))
    await clock.advance(2)
    assert publisher.begun.is_set()
    # It was handed over, has failed again, and is stored before its first failure's confirm has come.
    with monkeypatch.context() as patched:
        patched.setattr(store, "insert", doing_it_and_telling_a_timeout(store))
        with pytest.raises(StoreUnavailable):
            await worker(an_envelope(after=5, count=2))
    publisher.let.set()
    await clock.advance(30)
    # Brought again after the consumer's wait.
    await worker(an_envelope(after=5, count=2))
    await clock.advance(100)
    assert [message["retry"]["count"] for message in publisher.published] == [1, 2]
    assert await rows(store) == []
