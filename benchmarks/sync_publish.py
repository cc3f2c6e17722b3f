"""How many events a second threads publish through one `RabbitMQTransport`: 1 KiB, persistent, mandatory, confirmed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pika
from benchmarks import broker, peers_run
from benchmarks.figure import Figure

from leveret.sync import RabbitMQTransport

#: Each waits for its confirm, so that fewer are enough; many threads take turns at it.
ONE: Final = 3_000
THREADS: Final = {16: 16_000, 64: 19_200}
MANY: Final = 30_000
ROUNDS: Final = 3
#: 1 KiB as JSON, with the number that each event gets.
TEXT: Final = "x" * 1000


def measure() -> Iterator[Figure]:
    """Leveret and the peer in turn, the best of each."""
    url = broker.url()
    found: dict[str, list[float]] = {}
    namespace = f"bench-sync-{os.getpid()}"
    queue = f"{namespace}.all"
    with closing(RabbitMQTransport(url, namespace=namespace)) as transport:
        transport.declare_strategy_queue(queue, "#")
        try:
            for _ in range(ROUNDS):
                found.setdefault("peer", []).append(peers_run.run("pika_publish.py", url, ONE))
                found.setdefault("1", []).append(_threads(transport, 1, ONE))
                for threads, events in THREADS.items():
                    found.setdefault(str(threads), []).append(_threads(transport, threads, events))
                found.setdefault("many", []).append(_many(transport))
        finally:
            _sweep(namespace, queue)
    best = {name: max(values) for name, values in found.items()}
    for name in ("1", *map(str, THREADS), "many"):
        yield Figure(
            name=f"sync_publish_{name}",
            value=best[name],
            unit="/s",
            peer="pika blocking",
            peer_value=best["peer"],
        )


def _threads(transport: RabbitMQTransport, threads: int, events: int) -> float:
    def publish() -> None:
        for number in range(events // threads):
            transport.publish_event("order.placed", {"id": number, "text": TEXT})

    running = [threading.Thread(target=publish) for _ in range(threads)]
    started = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return events / (time.perf_counter() - started)


def _many(transport: RabbitMQTransport) -> float:
    started = time.perf_counter()
    outcomes = transport.publish_events(
        ("order.placed", {"id": number, "text": TEXT}) for number in range(MANY)
    )
    seconds = time.perf_counter() - started
    if any(outcome.state != "confirmed" for outcome in outcomes):
        raise RuntimeError("some events were not confirmed")
    return MANY / seconds


def _sweep(namespace: str, queue: str) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(broker.url()))) as connection:
        channel = connection.channel()
        for name in (queue, f"{namespace}.events.dlq"):
            channel.queue_delete(name)
        for name in ("events", "events.dlq", "alerts", "direct", "broadcast"):
            channel.exchange_delete(f"{namespace}.{name}")
