"""`leveret store copy`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.cli.conftest import a_letter, an_entry, with_store

from leveret.core.retry_entry import Filter
from leveret.runtime.world import SystemClock
from leveret.stores.sqlite import SqliteDocumentStore, SqliteStore

TO = ("store", "copy", "--to", "sqlite:///other.db")


def in_other(work):
    """What *work* returns, given the open store ./other.db."""

    async def opened():
        store = SqliteStore("other.db", clock=SystemClock())
        await store.open(create=False)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(opened())


def hold(store):
    return store.lease("shop/retry").acquire_or_renew("web-1/4711", 0.0, 30.0)


def test_it_copies_and_counts_both_sides(leveret, stored):
    stored(an_entry("one"), an_entry("two", state="held"), a_letter("one"), a_letter("two", state="replayed"))
    ended = leveret(*TO)
    assert ended.code == 0
    head, *rows = ended.out.splitlines()
    assert "leveret.db to sqlite:///" in head
    assert [row.split() for row in rows] == [
        ["namespace", "what", "copied", "there", "already", "refused", "here", "there"],
        ["shop", "waiting", "2", "0", "0", "2", "2"],
        ["shop", "dead", "letters", "2", "0", "0", "2", "2"],
    ]
    assert "Let the app use it now, and this one no more:  store = sqlite:///" in ended.err
    assert in_other(lambda store: store.entry("shop", "retry-one")) is not None


def test_done_again_it_says_that_all_is_there_already(leveret, stored):
    stored(an_entry("one"), a_letter("one"), an_entry("else", namespace="other"))
    leveret(*TO)
    ended = leveret(*TO, "--json")
    assert ended.code == 0
    counts = {"copied": 0, "there_already": 1, "refused": 0, "source": 1, "target": 1}
    other, shop = ended.records
    assert shop == {
        "namespace": "shop",
        "from": shop["from"],
        "to": shop["to"],
        "whole": True,
        "retries": counts,
        "dead_letters": counts,
        "acts": 0,
        "maybe_twice": 0,
    }
    assert (other["namespace"], other["retries"]) == ("other", counts)


def test_one_namespace_alone(leveret, stored):
    stored(an_entry("one"), an_entry("else", namespace="other"))
    ended = leveret(*TO, "--namespace", "other", "--json")
    assert [each["namespace"] for each in ended.records] == ["other"]
    assert in_other(lambda store: store.count_entries(Filter())) == 1


def test_a_dry_run_says_how_much_and_makes_nothing(leveret, stored, folder):
    stored(an_entry("one"), a_letter("one"), a_letter("two", state="discarded"))
    ended = leveret(*TO, "--dry-run")
    assert ended.code == 0
    assert ended.out == (
        "shop: 1 waiting and 2 dead would be copied to sqlite:///other.db, those left out that it has already; "
        "nothing was done (--dry-run)\n"
    )
    assert not (folder / "other.db").exists()


def test_a_dry_run_on_a_store_that_is_there_writes_nothing_and_tells_who_is_in_the_way(leveret, stored):
    stored(an_entry("one"))
    leveret(*TO)
    stored(an_entry("two"))
    with_store(hold)
    ended = leveret(*TO, "--dry-run", "--json")
    assert ended.code == 0
    assert ended.records[0]["would_copy"] == {"retries": 2, "dead_letters": 0}
    assert "web-1/4711 holds the retry lease of shop" in ended.err
    assert in_other(lambda store: store.count_entries(Filter())) == 1


@pytest.mark.parametrize("opened", [with_store, in_other])
def test_while_a_retry_worker_is_at_work_on_either_side_it_is_refused(leveret, stored, opened):
    stored(an_entry("one"))
    leveret(*TO)
    stored(an_entry("two"))
    opened(hold)
    # Whoever holds it has been at work, which alone would be asked about.
    ended = leveret(*TO, "--yes")
    assert ended.code == 4
    assert "StoreError: web-1/4711 holds the retry lease of shop in sqlite:///" in ended.err
    assert "Stop it first" in ended.err
    assert in_other(lambda store: store.count_entries(Filter())) == 1


def test_where_the_other_store_was_worked_on_since_it_asks_before_it_brings_back_what_is_done(
    leveret, stored
):
    stored(an_entry("one"))
    leveret(*TO)

    async def work(store):
        await hold(store)
        await store.remove("shop", [("shop.charge/one", 2)])
        await store.lease("shop/retry").release("web-1/4711")

    in_other(work)
    ended = leveret(*TO)
    assert ended.code == 7
    assert "somebody held the retry lease of shop since it was last copied" in ended.err
    assert in_other(lambda store: store.count_entries(Filter())) == 0
    assert leveret(*TO, "--yes").code == 0
    assert in_other(lambda store: store.count_entries(Filter())) == 1


def test_it_says_what_the_other_store_refuses_and_ends_with_6(leveret, stored, monkeypatch):
    from leveret.core.errors import StoreRefused

    stored(an_entry("one"), an_entry("two"))
    put = SqliteStore.put

    async def refusing(self, entries):
        if any(each.key.endswith("two") for each in entries):
            raise StoreRefused("a document of 17 MB, where 16 MB is the most")
        return await put(self, entries)

    monkeypatch.setattr(SqliteStore, "put", refusing)
    ended = leveret(*TO)
    assert ended.code == 6
    assert "does not take retry shop.charge/two: a document of 17 MB" in ended.err
    assert "shop is not all there. Run it again to go on" in ended.err


def test_it_says_what_this_store_does_not_have_whole_and_ends_with_6(leveret, stored, monkeypatch):
    stored(an_entry("one"), an_entry("two"))
    take = SqliteStore.take

    async def losing(self, *asked, **more):
        found = await take(self, *asked, **more)
        return [
            replace(each, body=None, state_reason="it has lost piece 1") if each.key.endswith("two") else each
            for each in found
        ]

    monkeypatch.setattr(SqliteStore, "take", losing)
    ended = leveret(*TO)
    assert ended.code == 6
    assert "this store does not have all of retry shop.charge/two: it has lost piece 1" in ended.err
    assert in_other(lambda store: store.count_entries(Filter())) == 1


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("memory://", "--to memory://: it lives inside this process"),
        ("sqlite:///leveret.db", "--to sqlite:///leveret.db: this is the store that is copied (default)"),
        ("sqlite:///./sub/../leveret.db", "this is the store that is copied"),
        ("postgresql:/nowhere", "--to"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_made(leveret, stored, folder, to, words):
    stored(an_entry("one"))
    ended = leveret("store", "copy", "--to", to)
    assert ended.code == 2
    assert words in ended.err
    assert [each.name for each in folder.iterdir() if "other" in each.name] == []


def in_documents(file, work, collection="jobs.retry_worker"):
    """What *work* returns, given the documents of a retry worker in that file."""

    async def opened():
        store = SqliteDocumentStore(file, collection_name=collection, doc_id_field="retry_key")
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(opened())


async def keys(documents):
    return [doc["retry_key"] async for doc in documents.query({})]


def with_two(documents):
    return documents.upsert_many([{"retry_key": "a", "fire_at": 5.0}, {"retry_key": "b"}])


def test_documents_that_a_runner_keeps_for_the_json_form_come_along(leveret, stored):
    stored(an_entry("one"))
    in_documents("leveret.db", with_two)
    in_documents("leveret.db", with_two, collection="retries")
    assert "jobs: 0 waiting, 2 documents and 0 dead would be copied" in leveret(*TO, "--dry-run").out
    ended = leveret(*TO)
    assert ended.code == 0
    assert [row.split()[:3] for row in ended.out.splitlines()[1:] if "documents" in row] == [
        ["jobs", "documents", "2"],
        ["retries", "documents", "2"],
    ]
    assert in_documents("other.db", keys) == ["a", "b"]
    assert in_documents("other.db", keys, collection="retries") == ["a", "b"]
    jobs, _, shop = leveret(*TO, "--json").records
    assert jobs["documents"] == {"copied": 0, "there_already": 2, "refused": 0, "source": 2, "target": 2}
    assert "documents" not in shop


def test_while_a_runner_is_at_work_nothing_is_copied_also_where_it_keeps_nothing_yet(leveret, stored):
    stored(an_entry("one"))

    def as_a_runner(store):
        return store.lease("jobs/retry_worker").acquire_or_renew("web-1/4711", 0.0, 30.0)

    with_store(as_a_runner)
    ended = leveret(*TO)
    assert ended.code == 4
    assert "web-1/4711 holds the retry_worker lease of jobs" in ended.err
    assert in_other(lambda store: store.count_entries(Filter())) == 0


def test_documents_of_one_namespace_alone_are_copied_where_one_is_named(leveret, stored):
    stored(an_entry("one"))
    in_documents("leveret.db", with_two)
    in_documents("leveret.db", with_two, collection="other.retry_worker")
    assert leveret(*TO, "--namespace", "jobs").code == 0
    assert in_other(lambda store: store.document_collections()) == ["jobs.retry_worker"]


def test_there_has_to_be_a_store_to_copy(leveret, folder):
    ended = leveret(*TO)
    assert ended.code == 4
    assert list(folder.iterdir()) == []


def test_a_password_of_the_other_store_is_never_shown(leveret, stored):
    stored(an_entry("one"))
    ended = leveret("store", "copy", "--to", "postgresql://shop:hunter2@127.0.0.1:1/x", "--dry-run")
    assert ended.code in {2, 4}
    assert "hunter2" not in ended.out + ended.err
