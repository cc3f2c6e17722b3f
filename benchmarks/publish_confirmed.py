"""How many messages a second RabbitMQ takes and confirms: 1 KiB, persistent, mandatory, through `publish_many`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks import broker, peers_run
from benchmarks.figure import Figure, folder

from leveret import Leveret, Message

MESSAGES: Final = 20_000
#: Those that wait for each confirm, or take a long time over each, get fewer: a few seconds are enough.
FEWER: Final = 4_000
#: Callers of `publish` at once, as in the gathered peers.
CALLERS: Final = 1000
#: 1 KiB as JSON, with the number that each message gets.
TEXT: Final = "x" * 1000
ROUNDS: Final = 3


def measure() -> Iterator[Figure]:
    """Leveret and the peers in turn, the best of each."""
    url = broker.url()
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        found.setdefault("publish_many", []).append(_leveret(url, _many))
        limit = peers_run.c_limit(url, MESSAGES)
        if limit is not None:
            found.setdefault("librabbitmq in C", []).append(limit)
        found.setdefault("aio-pika gathered", []).append(peers_run.run("aio_pika_publish.py", url, MESSAGES))
        found.setdefault("publish", []).append(_leveret(url, _gathered))
        found.setdefault("FastStream gathered", []).append(
            peers_run.run("faststream_publish.py", url, MESSAGES)
        )
        found.setdefault("pika blocking", []).append(peers_run.run("pika_publish.py", url, FEWER))
    best = {name: max(values) for name, values in found.items()}

    def figure(name: str, ours: str, peer: str) -> Figure:
        return Figure(name=name, value=best[ours], unit="/s", peer=peer, peer_value=best[peer])

    yield figure("publish_confirmed", "publish_many", "aio-pika gathered")
    if "librabbitmq in C" in best:
        yield figure("publish_limit", "publish_many", "librabbitmq in C")
    yield figure("publish_faststream", "publish_many", "FastStream gathered")
    yield figure("publish_blocking", "publish_many", "pika blocking")
    yield figure("publish_gathered", "publish", "aio-pika gathered")


def _leveret(url: str, publish: Any) -> float:
    with folder() as here:
        app = Leveret(f"bench-publish-{os.getpid()}", broker=url, store=f"sqlite:///{here}/store.db")

        @app.worker("order.placed")
        async def charge(_order: dict[str, Any]) -> None:
            """Has a queue, and never runs."""

        with broker.swept(app):
            return MESSAGES / asyncio.run(_timed(app, publish))


async def _timed(app: Leveret, publish: Any) -> float:
    async with app:
        started = time.perf_counter()
        await publish(app)
        return time.perf_counter() - started


async def _many(app: Leveret) -> None:
    await app.publish_many(
        Message("order.placed", {"id": number, "text": TEXT}) for number in range(MESSAGES)
    )


async def _gathered(app: Leveret) -> None:
    numbers = iter(range(MESSAGES))

    async def caller() -> None:
        for number in numbers:
            await app.publish("order.placed", {"id": number, "text": TEXT})

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
