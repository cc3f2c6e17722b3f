"""aio-pika: a callback a message that decodes it, then acks.  aio_pika_consume.py URL QUEUE MESSAGES PREFETCH"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aio_pika
from aio_pika.abc import AbstractIncomingMessage


async def main(url: str, name: str, messages: int, prefetch: int) -> float:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.get_queue(name)
        done = asyncio.Event()
        handled = 0

        async def handle(message: AbstractIncomingMessage) -> None:
            nonlocal handled
            async with message.process():
                json.loads(message.body)
            handled += 1
            if handled == messages:
                done.set()

        started = time.perf_counter()
        await queue.consume(handle)
        await done.wait()
        return messages / (time.perf_counter() - started)


url, name, messages, prefetch = sys.argv[1:]
print(json.dumps({"per_second": asyncio.run(main(url, name, int(messages), int(prefetch)))}))
