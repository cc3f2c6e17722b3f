"""How many messages a second go from a RabbitMQ queue through a handler that does nothing to the ack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import broker, peers_run
from benchmarks.figure import Figure, folder

from leveret import Leveret, Message
from leveret.core.topology import Names

MESSAGES: Final = 20_000
#: The same for all.
PREFETCH: Final = 100
TEXT: Final = "x" * 1000
ROUNDS: Final = 3
NAMES: Final = Names("bench-consume")
QUEUE: Final = NAMES.queue("charge")
PEERS: Final = {"FastStream": "faststream_consume.py", "aio-pika": "aio_pika_consume.py"}


def measure() -> Iterator[Figure]:
    """Leveret and the peers in turn, on the same queue with the same messages; the best of each."""
    url = broker.url()
    ours: list[float] = []
    theirs: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for _ in range(ROUNDS):
        with _full_queue(url) as here:
            ours.append(asyncio.run(_consume(url, here)))
        for peer, script in PEERS.items():
            with _full_queue(url):
                theirs[peer].append(peers_run.run(script, url, QUEUE, MESSAGES, PREFETCH))
    for name, peer in (("consume_pipeline", "FastStream"), ("consume_aio_pika", "aio-pika")):
        yield Figure(name=name, value=max(ours), unit="/s", peer=peer, peer_value=max(theirs[peer]))


@contextmanager
def _full_queue(url: str) -> Iterator[Path]:
    """The queue with all messages in it; gives the folder of the store."""
    with folder() as here:
        app, _ = _app(url, here)
        with broker.swept(app):
            asyncio.run(_fill(app))
            yield here


async def _fill(app: Leveret) -> None:
    async with app:
        await app.publish_many(
            Message("order.placed", {"id": number, "text": TEXT}) for number in range(MESSAGES)
        )


def _app(url: str, here: Path) -> tuple[Leveret, asyncio.Event]:
    """The app, and what is set when its handler has had all messages."""
    app = Leveret(NAMES.namespace, broker=url, store=f"sqlite:///{here}/store.db")
    done = asyncio.Event()
    handled = 0

    @app.worker("order.placed", prefetch=PREFETCH)
    async def charge(_order: dict[str, Any]) -> None:
        nonlocal handled
        handled += 1
        if handled == MESSAGES:
            done.set()

    return app, done


async def _consume(url: str, here: Path) -> float:
    app, done = _app(url, here)
    async with app:
        started = time.perf_counter()
        async with app.running():
            await done.wait()
            seconds = time.perf_counter() - started
    return MESSAGES / seconds
