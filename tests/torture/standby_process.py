"""A process with a worker and a retry worker on a store: `standby_process.py STORE_URL LEASE_TTL`.

It tells on standard output, a JSON object a line, when it gets the lease, when it gives it up, and what its worker ran;
each with the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from dataclasses import replace
from typing import Any

from leveret import Context, Leveret
from leveret.core.urls import parse_store
from leveret.runtime.opening import Stand
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world
from leveret.transports.memory import MemoryBroker, MemoryTransport

EVENTS = {"holds the retry lease": "gained", "gives up the retry lease": "lost"}


def tell(event: str, **more: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **more}) + "\n")
    sys.stdout.flush()


class Telling(logging.Handler):
    """Tells of the lease as the log does."""

    def emit(self, record: logging.LogRecord) -> None:
        for words, event in EVENTS.items():
            if words in record.getMessage():
                tell(event)


async def work(store: str, ttl: float) -> None:
    logging.getLogger("leveret").addHandler(Telling())
    logging.getLogger("leveret").setLevel(logging.INFO)
    world = system_world()
    app = Leveret("shop", broker="memory://")
    app._stand = Stand(
        world=world,
        transport=lambda: MemoryTransport(MemoryBroker(), world=world),
        store=lambda: make_store(parse_store(store, "the test"), world),
        knobs=lambda knobs: replace(knobs, lease_ttl=ttl, overdue_rate=None),
    )

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        tell("ran", id=ctx.message_id)

    async with app:
        running = asyncio.create_task(app.run())
        await asyncio.sleep(0)
        tell("runs")
        await running
    tell("stopped")


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], float(sys.argv[2])))
