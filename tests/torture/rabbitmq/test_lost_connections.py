"""Ten lost connections and a killed broker under a backlog prove nothing about its messages (P12)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.rabbitmq_node import Node
from tests.rabbitmq_scene import hurried_world, until, url_of

from leveret import Context, Leveret, Message
from leveret.runtime.opening import Stand
from leveret.runtime.world import system_world
from leveret.stores.sqlite import SqliteStore
from leveret.torture.proxy import CutProxy
from leveret.transports.rabbitmq.transport import RabbitTransport

BACKLOG, ORDERED = 2000, 300
CUTS = 10
PREFETCH = 20
#: From this one on the messages of the backlog wait for the broker's end, however slow the ordered queues are until
#: then: most of them must lie there when the broker comes back.
KEPT = 1000
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
    done: dict[str, set[int]] = {worker: set() for worker in starts}
    cuts_over, killed = asyncio.Event(), asyncio.Event()
    inside = 0
    #: Of each start in the backlog after the broker's end: how many others ran.
    beside: list[int] = []

    async def handle(number: int, ctx: Context, seconds: float) -> None:
        starts[ctx.worker].append(number)
        if number == 0:
            # In hand through all of the cuts.
            await cuts_over.wait()
        await asyncio.sleep(seconds)
        done[ctx.worker].add(number)

    @app.worker("order", prefetch=PREFETCH)
    async def charge(order: dict[str, Any], ctx: Context) -> None:
        nonlocal inside
        if killed.is_set():
            beside.append(inside)
        inside += 1
        try:
            if order["number"] >= KEPT:
                await killed.wait()
            await handle(order["number"], ctx, SHORT)
        finally:
            inside -= 1

    @app.worker("entry", prefetch=1, queue_type="classic")
    async def book(entry: dict[str, Any], ctx: Context) -> None:
        await handle(entry["number"], ctx, SHORTER)

    @app.worker("deposit", prefetch=1, queue_type="quorum")
    async def vault(deposit: dict[str, Any], ctx: Context) -> None:
        await handle(deposit["number"], ctx, SHORTER)

    async with app:
        await app.publish_many(
            [Message("entry", {"number": number}) for number in range(ORDERED)]
            + [Message("deposit", {"number": number}) for number in range(ORDERED)]
            + [Message("order", {"number": number}) for number in range(BACKLOG)]
        )
        async with app.running():
            transport = app._opened("the test").parts.transport
            for cut in range(CUTS):
                await until(lambda cut=cut: len(done["charge"]) > cut * 40 and transport.state == "connected")
                proxy.cut()
                await until(lambda: transport.state != "connected")
            assert (done["book"], done["vault"]) == (set(), set())
            cuts_over.set()
            await until(lambda: len(done["charge"]) > 700 and min(map(len, done.values())) > 50)
            rabbitmq.kill()
            await until(lambda: transport.state != "connected")
            killed.set()
            await asyncio.to_thread(rabbitmq.start)
            await until(lambda: sum(map(len, done.values())) == BACKLOG + 2 * ORDERED, 60)
            # What is done may have another copy among the suspects.
            async with asyncio.timeout(30):
                while any(await app.counts()):  # noqa: ASYNC110 - no event tells of it
                    await asyncio.sleep(0.05)

    # This process remembers what it has run, so what comes back is acked and no copy is run twice. But what comes back
    # before it was run is moved, and its original acked: a cut right after that takes the ack back, and the broker's
    # end does too, for a classic queue writes acks down a second late. Then it is moved again, and each copy is run.
    # So a message may have three runs, or more, and all together one more for each that was in hand at each blow.
    assert sum(map(len, starts.values())) - (BACKLOG + 2 * ORDERED) <= (CUTS + 1) * PREFETCH
    # A killed quorum queue may hand the next message over before it notices that nobody has the last one any more.
    assert starts["book"] == sorted(starts["book"])
    # Suspects run one at a time; after the restart the whole backlog bears a flag, and runs side by side all the same.
    assert len(beside) > BACKLOG / 3
    assert sum(others > 0 for others in beside) > 0.75 * len(beside)
