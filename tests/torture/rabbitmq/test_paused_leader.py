"""C02: the leader of the retry workers is stopped for longer than its lease (SIGSTOP), and goes on (SIGCONT).

On SQLite the next leader takes over the retry queue as well; on the other stores it had consumed it all the while.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable

import pytest
from tests.postgres_cluster import Cluster
from tests.rabbitmq_scene import until, url_of
from tests.torture.rabbitmq.scene import RETRY, Scene, Shop

from leveret import Context, Leveret, Message
from leveret.core.retry_entry import Filter

#: Seconds. The leader is stopped before the first is due; a lease lasts one.
FIRST_DUE, LAST_DUE = 2.5, 5.5
STOPPED = 2.1
NUMBER = 80


@pytest.fixture(params=["sqlite", "postgres", "mongodb"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store; no text: a file in the scene's folder."""
    if request.param == "postgres":
        cluster: Cluster = request.getfixturevalue("postgres")
        return f"{cluster.url}?schema={cluster.schema()}"
    return "" if request.param == "sqlite" else str(request.getfixturevalue("mongodb_url"))


async def test_c02_a_leader_that_was_stopped_beyond_its_lease_publishes_nothing_more_and_each_goes_once(
    scene: Callable[..., Scene], store: str
):
    stage = await scene(store=store)
    app = Leveret(stage.names.namespace, broker=str(url_of(stage.node.port)), store=stage.store_url)
    runs: Counter[str | None] = Counter()

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs[ctx.message_id] += 1

    leader, standby = Shop("leader", [RETRY]), Shop("standby", [RETRY])
    async with app:
        await stage.start(leader)
        await stage.opened(leader)
        ids = [f"order-{number}" for number in range(NUMBER)]
        step = (LAST_DUE - FIRST_DUE) / NUMBER
        await asyncio.gather(*(
            app.publish(Message("order.placed", {}, id=id), delay=FIRST_DUE + number * step)
            for number, id in enumerate(ids)
        ))  # fmt: skip
        async with asyncio.timeout(FIRST_DUE):
            while await stage.store.count_entries(Filter(namespace=stage.names.namespace)) < NUMBER:
                await stage.turn()
        await stage.start(standby)
        leader.running.send_signal(signal.SIGSTOP)
        try:
            async with app.running(retry_worker=False, keeper=False):
                await asyncio.sleep(STOPPED)
                # The standby has taken over, and publishes what is due.
                await until(lambda: len(runs) > NUMBER / 8)
                assert len(runs) < NUMBER
                leader.running.send_signal(signal.SIGCONT)
                await until(lambda: len(runs) == NUMBER)
                # Each is removed under a lease of a second, which a busy FerretDB may not answer for in time.
                async with asyncio.timeout(60):
                    while any(await app.counts()):
                        await stage.turn()
        finally:
            leader.running.send_signal(signal.SIGCONT)
        await stage.stop()
    assert runs == Counter(ids)
    sent = Counter(line["by"] for line in stage.lines() if line["event"] == "sent")
    assert sent == {standby.alias: NUMBER}
