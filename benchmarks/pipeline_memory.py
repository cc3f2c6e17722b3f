"""How many messages a second go through one process: published and confirmed, handled, acked, on the memory broker."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchmarks.figure import Figure, folder

from leveret import Leveret

MESSAGES: Final = 20_000
#: Callers that publish at once, each awaiting its confirm before the next one.
CALLERS: Final = 100
#: 1 KiB as JSON, with the id that each message gets.
TEXT: Final = "x" * 1000
ROUNDS: Final = 3


def measure() -> list[Figure]:
    """Leveret and the bare queue in turn, the best of each."""
    ours, bare = [], []
    with folder() as here:
        for number in range(ROUNDS):
            ours.append(asyncio.run(_leveret(f"sqlite:///{here}/{number}.db")))
            bare.append(asyncio.run(_bare()))
    return [
        Figure(
            name="pipeline_memory",
            value=max(ours),
            unit="/s",
            peer="bare asyncio.Queue",
            peer_value=max(bare),
        )
    ]


async def _publish_all(publish: Callable[[dict[str, Any]], Awaitable[object]]) -> None:
    numbers = itertools.count()

    async def caller() -> None:
        while (number := next(numbers)) < MESSAGES:
            await publish({"id": number, "text": TEXT})

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def _leveret(store: str) -> float:
    app = Leveret("bench", broker="memory://", store=store)
    done = asyncio.Event()
    handled = 0

    @app.worker("order.placed", prefetch=CALLERS)
    async def charge(order: dict[str, Any]) -> None:
        nonlocal handled
        handled += len(order["text"]) == len(TEXT)
        if handled == MESSAGES:
            done.set()

    async with app, app.running():
        started = time.perf_counter()
        await _publish_all(lambda order: app.publish("order.placed", order))
        await done.wait()
        seconds = time.perf_counter() - started
    # The block has ended gracefully: whatever was handled is acked by now.
    return MESSAGES / seconds


async def _bare() -> float:
    """What asyncio alone does: a queue between the same callers and a task for each message. It promises nothing."""
    queue: asyncio.Queue[bytes] = asyncio.Queue(CALLERS)
    tasks: set[asyncio.Task[None]] = set()
    done = asyncio.Event()
    handled = 0

    async def charge(body: bytes) -> None:
        nonlocal handled
        handled += len(json.loads(body)["text"]) == len(TEXT)
        if handled == MESSAGES:
            done.set()

    async def consume() -> None:
        while True:
            task = asyncio.create_task(charge(await queue.get()))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    consumer = asyncio.create_task(consume())
    started = time.perf_counter()
    await _publish_all(lambda order: queue.put(json.dumps(order).encode()))
    await done.wait()
    seconds = time.perf_counter() - started
    consumer.cancel()
    return MESSAGES / seconds
