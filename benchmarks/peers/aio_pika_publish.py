"""aio-pika: persistent, mandatory, confirmed publishes of 1 KiB to a topic.  aio_pika_publish.py URL MESSAGES"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

import aio_pika

#: Publishes at a time, as many as leveret lets out: thousands more at once make it no faster.
AT_ONCE = 1000


async def main(url: str, messages: int) -> float:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue("bench-aio-pika", durable=True)
        exchange = await channel.declare_exchange("bench-aio-pika", aio_pika.ExchangeType.TOPIC, durable=True)
        await queue.bind(exchange, "order.placed")
        numbers: Iterator[int] = iter(range(messages))

        async def caller() -> None:
            for number in numbers:
                message = aio_pika.Message(
                    b"x" * 1024,
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=str(number),
                )
                await exchange.publish(message, "order.placed", mandatory=True)

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        seconds = time.perf_counter() - started
        await queue.delete(if_unused=False, if_empty=False)
        await exchange.delete()
    return messages / seconds


print(json.dumps({"per_second": asyncio.run(main(sys.argv[1], int(sys.argv[2])))}))
