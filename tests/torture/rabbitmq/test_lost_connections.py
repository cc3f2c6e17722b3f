"""Ten lost connections and a killed broker under a backlog prove nothing about its messages (P12)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.rabbitmq_node import Node
from tests.rabbitmq_scene import hurried_world, until, url_of

from leveret import Leveret, Message
from leveret.runtime.opening import Stand
from leveret.runtime.world import system_world
from leveret.stores.sqlite import SqliteStore
from leveret.torture.proxy import CutProxy
from leveret.transports.rabbitmq.transport import RabbitTransport

BACKLOG, ORDERED = 2000, 300
CUTS = 10
PREFETCH = 20
#: Seconds that a handler of the backlog takes, and one of an ordered queue.
SHORT, SHORTER = 0.02, 0.005


async def test_lost_connections_and_a_killed_broker_bury_no_innocent_message(
    rabbitmq: Node, proxy: CutProxy, tmp_path: Path
):
    world = system_world()
    app = Leveret("backlog", broker=str(url_of(proxy.port)))
    app._stand = Stand(
        world=world,
        transport=lambda: RabbitTransport(url_of(proxy.port), world=hurried_world()),
        store=lambda: SqliteStore(tmp_path / "leveret.db", clock=world.clock),
        knobs=lambda knobs: replace(knobs, suspects_every=0.1),
    )
    starts: dict[str, list[int]] = {"charge": [], "book": [], "vault": []}
    done: Counter[tuple[str, int]] = Counter()
    cuts_over = asyncio.Event()
    inside = 0
    #: Of each start in the backlog after the broker's restart: how many others ran.
    beside: list[int] = []
    restarted = False

    async def handle(worker: str, number: int, seconds: float) -> None:
        starts[worker].append(number)
        if number == 0:
            # In hand through all of the cuts.
            await cuts_over.wait()
        await asyncio.sleep(seconds)
        done[worker, number] += 1

    @app.worker("order", prefetch=PREFETCH)
    async def charge(order: dict[str, Any]) -> None:
        nonlocal inside
        if restarted:
            beside.append(inside)
        inside += 1
        try:
            await handle("charge", order["number"], SHORT)
        finally:
            inside -= 1

    @app.worker("entry", prefetch=1)
    async def book(entry: dict[str, Any]) -> None:
        await handle("book", entry["number"], SHORTER)

    @app.worker("deposit", prefetch=1, queue_type="quorum")
    async def vault(deposit: dict[str, Any]) -> None:
        await handle("vault", deposit["number"], SHORTER)

    def of(worker: str) -> int:
        return sum(name == worker for name, _ in done)

    async with app:
        await app.publish_many(
            [Message("entry", {"number": number}) for number in range(ORDERED)]
            + [Message("deposit", {"number": number}) for number in range(ORDERED)]
            + [Message("order", {"number": number}) for number in range(BACKLOG)]
        )
        async with app.running():
            transport = app._opened("the test").parts.transport
            for cut in range(CUTS):
                await until(lambda cut=cut: of("charge") > cut * 40 and transport.state == "connected")
                proxy.cut()
                await until(lambda: transport.state != "connected")
            assert {number for name, number in done if name in {"book", "vault"}} == set()
            cuts_over.set()
            await until(lambda: of("charge") > 700 and min(of("book"), of("vault")) > 50)
            rabbitmq.kill()
            await until(lambda: transport.state != "connected")
            restarted = True
            await asyncio.to_thread(rabbitmq.start)
            await until(lambda: len(done) == BACKLOG + 2 * ORDERED, 60)
        assert await app.counts() == (0, 0, 0, 0)

    # A cut while a message is moved leaves a copy more, and the kill of the broker may bring either back once.
    assert max(done.values()) <= 3
    assert sum(count == 3 for count in done.values()) <= PREFETCH
    # A killed quorum queue may hand the next message over before it notices that nobody has the last one any more.
    assert starts["book"] == sorted(starts["book"])
    # Suspects run one at a time; after the restart the whole backlog bears a flag, and runs side by side all the same.
    assert len(beside) > BACKLOG / 3
    assert sum(others > 0 for others in beside) > 0.75 * len(beside)
