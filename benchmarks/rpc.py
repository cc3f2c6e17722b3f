"""What a call costs: `app.call` to a handler of `@app.rpc` in another process, and how many a second there can be."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from benchmarks import broker, peers_run
from benchmarks.figure import Figure

from leveret import Leveret

#: One after the other, in each of the rounds.
ONE_BY_ONE: Final = 500
#: At once: as many callers as the peer has threads.
CALLS: Final = 4_000
CALLERS: Final = 16
#: A connection for each call takes its time: a second or two are enough.
CONNECTIONS: Final = 100
ROUNDS: Final = 5


def measure() -> Iterator[Figure]:
    """Leveret and the peer in turn, the best of each."""
    url = broker.url()
    namespace = f"bench-rpc-{os.getpid()}"
    ours, at_once, one, several, median = [], [], [], [], []
    with broker.swept(_app(namespace, url)), _served(namespace, url):
        client = Leveret(namespace, broker=url, store="memory://")
        for _ in range(ROUNDS):
            ours.append(asyncio.run(_with(client, _one_by_one)))
            median.append(1 / peers_run.run("pika_rpc.py", url, ONE_BY_ONE, "median"))
            one.append(peers_run.run("pika_rpc.py", url, CONNECTIONS, "connections", 1))
            at_once.append(asyncio.run(_with(client, _at_once)))
            several.append(peers_run.run("pika_rpc.py", url, 2 * CONNECTIONS, "connections", CALLERS))
    each = "pika, a connection a call"
    yield Figure(name="rpc_calls", value=max(at_once), unit="/s", peer=each, peer_value=max(one))
    yield Figure(
        name="rpc_calls_threads",
        value=max(at_once),
        unit="/s",
        peer=f"{each}, threads",
        peer_value=max(several),
    )
    yield Figure(
        name="rpc_p50",
        value=1000 * min(ours),
        unit=" ms",
        peer="pika, one connection",
        peer_value=1000 * min(median),
    )


@contextmanager
def _served(namespace: str, url: str) -> Iterator[None]:
    """A process that answers, within the block."""
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.rpc", namespace],
        stdout=subprocess.PIPE,
        env={**os.environ, "LEVERET_TEST_AMQP_URL": url},
    )
    try:
        assert server.stdout is not None
        if not server.stdout.readline():
            raise RuntimeError("the process that answers did not start; its own words stand above")
        yield
    finally:
        server.kill()
        server.wait()


def _app(namespace: str, url: str) -> Leveret:
    app = Leveret(namespace, broker=url, store="memory://")

    @app.rpc("echo", prefetch=64)
    async def echo(request: dict[str, Any]) -> dict[str, Any]:
        return {"id": request["id"]}

    return app


async def _with(app: Leveret, act: Callable[[Leveret], Awaitable[float]]) -> float:
    async with app:
        await app.call("echo", {"id": 0})
        return await act(app)


async def _one_by_one(app: Leveret) -> float:
    """The median of their seconds."""
    took = []
    for number in range(ONE_BY_ONE):
        started = time.perf_counter()
        await app.call("echo", {"id": number})
        took.append(time.perf_counter() - started)
    return statistics.median(took)


async def _at_once(app: Leveret) -> float:
    numbers = iter(range(CALLS))

    async def caller() -> None:
        for number in numbers:
            await app.call("echo", {"id": number})

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return CALLS / (time.perf_counter() - started)


async def _serve(namespace: str) -> None:
    async with _app(namespace, broker.url()).running(retry_worker=False, keeper=False):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
