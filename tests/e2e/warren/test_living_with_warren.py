"""Programs of the package warren fail messages, and leveret's runner stands in for their retry worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.warren.scene import Warren, running

from leveret import Context, Leveret, RetryPolicy, SoftFailure
from leveret.core.topology import RMQExchangeConfig
from leveret.retry import RetryWorkerRunner
from leveret.retry.exchanges import observer_exchange
from leveret.runtime.config import load_config
from leveret.stores.sqlite.documents import SqliteDocumentStore

# In CI, the first of them makes the environment: a minute, on top of what the test itself takes.
pytestmark = pytest.mark.timeout(600)


def a_runner(warren: Warren, file: Path) -> RetryWorkerRunner:
    """Leveret's, in place of warren's, on a store of its own."""
    config = load_config(
        code={"broker": warren.url, "store": f"sqlite:///{file}"}, environ={}, file="/dev/null"
    )
    return RetryWorkerRunner(
        config, "retry", exchange=observer_exchange(warren.exchange), republish_exchange=warren.exchange
    )


async def waiting(warren: Warren, file: Path) -> int:
    """How many messages wait in the store of such a runner."""
    name = f"{observer_exchange(warren.exchange).name}.retry_worker"
    store = SqliteDocumentStore(str(file), collection_name=name, doc_id_field="retry_key")
    try:
        return len([doc async for doc in store.query({})])
    finally:
        await store.close()


@pytest.mark.parametrize("kind", ["fanout", "topic", "direct"])
async def test_a25_c01_who_failed_a_message_gets_it_back_and_nobody_else_does(warren, tmp_path, kind):
    warren.exchange = RMQExchangeConfig(warren.exchange.name, kind)
    file = tmp_path / "leveret.db"
    workers = {
        "parser": {"fails": 2, "after": 1},
        "indexer": {"fails": 1, "after": 1},
        "archiver": {"fails": 0, "after": 1},
    }
    async with running(a_runner(warren, file)):
        pipeline = await warren.start(workers=workers)
        await pipeline.publish(*({"doc_id": f"d{number}"} for number in range(5)))
        await pipeline.until(lambda: len(pipeline.counts("parser")) == 15)
    await pipeline.kill()
    assert sorted(pipeline.counts("parser")) == [0] * 5 + [1] * 5 + [2] * 5
    assert sorted(pipeline.counts("indexer")) == [0] * 5 + [1] * 5
    assert pipeline.counts("archiver") == [0] * 5
    documents = [run["message"]["data"]["doc_id"] for run in pipeline.runs if run["worker"] == "parser"]
    assert sorted(documents) == sorted(f"d{number}" for number in range(5) for _ in range(3))
    assert await waiting(warren, file) == 0


async def test_a25_a_thousand_messages_without_a_document_all_come_back(warren, tmp_path):
    file = tmp_path / "leveret.db"
    async with running(a_runner(warren, file)):
        pipeline = await warren.start(
            workers={"parser": {"fails": 1, "after": 1}}, rabbitmq={"consumer": {"prefetch_count": 100}}
        )
        await pipeline.publish(*({"number": number} for number in range(1000)))
        await pipeline.until(lambda: len(pipeline.counts("parser")) == 2000)
    await pipeline.kill()
    back = [run["message"]["data"]["number"] for run in pipeline.runs if "retry" in run["message"]]
    assert sorted(back) == list(range(1000))
    assert await waiting(warren, file) == 0


async def test_a_worker_of_leverets_takes_the_place_of_one_of_warrens_on_its_queue(warren, tmp_path):
    """Namespace and exchange bear warren's name; what lay in the queue, or was in hand, goes on with leveret."""
    pipeline = await warren.start(workers={"parser": {"fails": 0, "after": 1, "takes": 600}})
    await pipeline.publish(*({"doc_id": f"d{number}"} for number in range(3)))
    await pipeline.until(lambda: pipeline.runs)
    await pipeline.kill()
    app = Leveret(
        warren.exchange.name,
        broker=warren.url,
        exchange=warren.exchange,
        store=f"sqlite:///{tmp_path}/leveret.db",
    )
    done: list[str] = []

    @app.worker("page", name="parser", retry=RetryPolicy(first_delay=0.1))
    async def parse(message: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("not yet")
        done.append(message["data"]["doc_id"])

    async with app:
        await app.run(until_idle=True)
    assert sorted(done) == ["d0", "d1", "d2"]
