"""How many messages a second are published, fail once, come back after 1 s and are done; end to end on RabbitMQ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks import broker, peers_run
from benchmarks.figure import Figure, folder

from leveret import Context, Leveret, Message, RetryPolicy, SoftFailure

#: So few that the second of waiting counts, as it does for whoever waits for a message.
MESSAGES: Final = 2_000
TEXT: Final = "x" * 1000
ROUNDS: Final = 3
PEERS: Final = {"Dramatiq": "dramatiq_fail.py", "Celery": "celery_fail.py"}


def measure() -> Iterator[Figure]:
    """Leveret and the peers in turn, the best of each."""
    url = broker.url()
    ours: list[float] = []
    theirs: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for _ in range(ROUNDS):
        ours.append(_leveret(url))
        for peer, script in PEERS.items():
            theirs[peer].append(peers_run.run(script, url, MESSAGES))
    for name, peer in (("fail_and_return", "Dramatiq"), ("fail_and_return_celery", "Celery")):
        yield Figure(name=name, value=max(ours), unit="/s", peer=peer, peer_value=max(theirs[peer]))


def _leveret(url: str) -> float:
    with folder() as here:
        app = Leveret("bench-fail", broker=url, store=f"sqlite:///{here}/store.db")
        with broker.swept(app):
            return MESSAGES / asyncio.run(_seconds(app))


async def _seconds(app: Leveret) -> float:
    """From the first publish until the last message is done; publisher, worker and retry worker in one process."""
    done = asyncio.Event()
    handled = 0

    @app.worker("order.placed", prefetch=100, retry=RetryPolicy(first_delay=1, jitter=0))
    async def charge(_order: dict[str, Any], context: Context) -> None:
        nonlocal handled
        if context.attempt == 1:
            raise SoftFailure("the card service answered 503")
        handled += 1
        if handled == MESSAGES:
            done.set()

    async with app.running():
        started = time.perf_counter()
        await app.publish_many(
            Message("order.placed", {"id": number, "text": TEXT}) for number in range(MESSAGES)
        )
        await done.wait()
        return time.perf_counter() - started
