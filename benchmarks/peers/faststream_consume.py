"""FastStream: a handler that does nothing, acked after it.  faststream_consume.py URL QUEUE MESSAGES PREFETCH"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from faststream import AckPolicy
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue


async def main(url: str, name: str, messages: int, prefetch: int) -> float:
    broker = RabbitBroker(url, logger=None)
    done = asyncio.Event()
    handled = 0

    @broker.subscriber(
        RabbitQueue(name, declare=False),
        channel=Channel(prefetch_count=prefetch),
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def handle(order: dict[str, Any]) -> None:
        nonlocal handled
        handled += bool(order)
        if handled == messages:
            done.set()

    async with broker:
        started = time.perf_counter()
        await broker.start()
        await done.wait()
        return messages / (time.perf_counter() - started)


url, name, messages, prefetch = sys.argv[1:]
print(json.dumps({"per_second": asyncio.run(main(url, name, int(messages), int(prefetch)))}))
