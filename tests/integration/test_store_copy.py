"""A copy goes from a file to a server and back, and what comes back is what went."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.torture.test_killed_at_hand_over_points import rows

from leveret.core.dead_letter import Replay
from leveret.core.retry_entry import Filter
from leveret.core.urls import parse_store
from leveret.runtime.copying import StoreCopy
from leveret.runtime.wiring import make_document_store, make_store
from leveret.runtime.world import system_world
from leveret.stores.sqlite import SqliteStore
from leveret.testing.store_contract import a_letter, an_entry
from leveret.testing.store_contract.rows import AWKWARD

#: Bodies that databases choke on: none, NUL, a lone surrogate, and more than a document of MongoDB's holds.
BODIES = [b"", b"a\0b", AWKWARD.encode("utf-8", "surrogatepass"), bytes(range(256)) * 4096 * 17]
#: As `SoftFailure` and `at=` may ask for them, and one that is overdue.
WAITS = [-90.0, 0.0, 0.001, 40 * 86_400.0, 3650 * 86_400.0]


@pytest.fixture(params=["postgresql", "mongodb"])
def url(request):
    """A database of its own on that server."""
    if request.param == "mongodb":
        return request.getfixturevalue("mongodb_url")
    cluster = request.getfixturevalue("postgres")
    return f"{cluster.url}?schema={cluster.schema()}"


#: Copies from one store to another and kills itself once it has dealt with so many rows.
KILLED_AFTER = """
import asyncio, os, signal, sys
from leveret.core.urls import parse_store
from leveret.runtime.copying import StoreCopy
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world

async def copy(source, target, rows):
    world = system_world()
    stores = [make_store(parse_store(url, "--to"), world) for url in (source, target)]
    for store in stores:
        await store.open()

    def told(more):
        nonlocal rows
        rows -= more
        if rows <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    copy = StoreCopy(*stores, world=world, ttl=0.5)
    async with copy.holding(["shop"]):
        await copy.run("shop", told=told)

asyncio.run(copy(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def copied(source, target):
    copy = StoreCopy(source, target, world=system_world(), ttl=30.0)
    assert await copy.in_the_way("shop") == []
    async with copy.holding(["shop"]):
        return await copy.run("shop")


async def test_from_a_file_to_a_server_and_back_nothing_is_changed_on_the_way(url, tmp_path):
    world = system_world()
    here, there, back = stores = [
        SqliteStore(tmp_path / "here.db", clock=world.clock),
        make_store(parse_store(url, "--to"), world),
        SqliteStore(tmp_path / "back.db", clock=world.clock),
    ]
    for store in stores:
        await store.open()
    try:
        await here.put([an_entry(f"body-{n}", body=body) for n, body in enumerate(BODIES)])
        await here.put([an_entry(f"wait-{n}", wait=wait) for n, wait in enumerate(WAITS)])
        await here.put([
            an_entry("held-by-hand", state="held", state_reason="by ann", wait=60.0),
            an_entry("blocked", state="blocked", state_reason="queue gone", wait=0.0),
            an_entry(f"{AWKWARD}-named", message_id=None, exchange=AWKWARD, kind="delayed", counted=False),
        ])  # fmt: skip
        replays = (Replay(at=1.25, replay_id="r", to="shop.charge", outcome="failed: NO_ROUTE"),)
        await here.keep([a_letter(f"body-{n}", body=body) for n, body in enumerate(BODIES)])
        await here.keep(
            [a_letter("replayed", state="replayed", replays=replays), a_letter("out", state="discarded")]
        )
        out, home = await copied(here, there), await copied(there, back)
        again = await copied(there, back)
    finally:
        for store in stores:
            await store.close()
    assert out.whole
    assert home.whole
    assert (out.retries.copied, out.letters.copied) == (home.retries.copied, home.letters.copied) == (12, 6)
    assert (again.retries.there, again.letters.there) == (12, 6)
    went, came = await rows(tmp_path / "here.db"), await rows(tmp_path / "back.db")
    by_key = {row.key: row for row in came[0]}
    for row in went[0]:
        found = by_key.pop(row.key)
        assert replace(found, due_at=row.due_at, due_in=row.due_in) == row
        assert -0.01 <= found.due_at - row.due_at < 5
    assert by_key == {}
    assert {row.id: row for row in came[1]} == {row.id: row for row in went[1]}


async def test_what_the_source_does_not_have_whole_is_told_and_all_the_others_arrive(mongodb_url, tmp_path):
    world = system_world()
    source, target = stores = [
        make_store(parse_store(mongodb_url, "--store"), world),
        SqliteStore(tmp_path / "there.db", clock=world.clock),
    ]
    for store in stores:
        await store.open()
    try:
        large = an_entry("large", body=b"x" * 8_000_001)
        await source.put([large, replace(large, key="shop.charge/held", state="held"), an_entry("small")])
        await source.keep([a_letter("large", body=b"x" * 8_000_001), a_letter("small")])
        await source.server.collection("piece").delete_many({})
        done = await copied(source, target)
        arrived = await target.count_entries(Filter())
    finally:
        for store in stores:
            await store.close()
    assert (done.whole, done.retries.copied, done.retries.source, arrived) == (False, 1, 3, 1)
    assert (done.letters.copied, done.letters.source, done.letters.target) == (1, 2, 1)
    lost = sorted([*done.retries.lost, *done.letters.lost])
    assert [words.partition(": ")[0] for words in lost] == [
        "dead letter letter-id-large",
        "retry shop.charge/held",
        "retry shop.charge/large",
    ]
    assert all("has lost piece" in words for words in lost)


async def test_killed_on_its_way_among_the_retries_and_then_among_the_letters_it_goes_on_and_is_whole(
    url, tmp_path
):
    world, source = system_world(), f"sqlite:///{tmp_path}/here.db"
    stores = [make_store(parse_store(each, "--to"), world) for each in (source, url)]
    for store in stores:
        await store.open()
    here, there = stores
    try:
        await here.put([an_entry(f"waits-{n}") for n in range(500)])
        await here.keep([a_letter(f"dead-{n}") for n in range(500)])
        copy = StoreCopy(here, there, world=world, ttl=30.0)
        for after, reached in ((100, (200, 0)), (600, (500, 200))):
            child = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", KILLED_AFTER, source, url, str(after)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
            )  # fmt: skip
            assert child.returncode == -signal.SIGKILL
            assert (await there.count_entries(Filter()), await there.count_letters(Filter())) == reached
            assert any(
                "wait until its time is over" in sentence for sentence in await copy.in_the_way("shop")
            )
            async with asyncio.timeout(10):
                while await copy.in_the_way("shop"):  # noqa: ASYNC110 - a lease ends by time alone
                    await asyncio.sleep(0.05)
        whole = await copied(here, there)
    finally:
        for store in stores:
            await store.close()
    assert whole.whole
    assert (whole.retries.there, whole.retries.copied) == (500, 0)
    assert (whole.letters.there, whole.letters.copied) == (200, 300)


async def test_documents_of_a_retry_worker_go_to_a_server_and_back_too(url, tmp_path):
    world = system_world()
    docs = [
        {"retry_key": "job:1", "fire_at": 1.25, "message": {"data": {"a.b": 1, "$x": AWKWARD, "": [2**70]}}},
        {"retry_key": f"{AWKWARD}-\0", "fire_at": 2.0, "generation": 3},
    ]
    urls = [f"sqlite:///{tmp_path}/here.db", url, f"sqlite:///{tmp_path}/back.db"]
    parsed = [parse_store(each, "--to") for each in urls]
    stores = [make_store(each, world) for each in parsed]
    documents = [
        make_document_store(each, world, collection_name="jobs.retry_worker", doc_id_field="retry_key")
        for each in parsed
    ]
    for store in (*stores, *documents):
        await store.open()
    try:
        await documents[0].upsert_many(docs)
        for here, there in ((0, 1), (1, 2)):
            assert await stores[here].document_collections() == ["jobs.retry_worker"]
            pair = (documents[here], documents[there])
            copy = StoreCopy(stores[here], stores[there], world=world, ttl=30.0, documents={"jobs": pair})
            async with copy.holding(["jobs"]):
                assert (await copy.run("jobs")).whole
        assert [doc async for doc in documents[2].query({}, sort_by="fire_at")] == docs
    finally:
        for store in (*stores, *documents):
            await store.close()
