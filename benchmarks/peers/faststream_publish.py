"""FastStream: persistent, mandatory, confirmed publishes of 1 KiB to a topic.  faststream_publish.py URL MESSAGES"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue

AT_ONCE = 1000
#: 1 KiB as JSON, with the number that each message gets.
TEXT = "x" * 1000


async def main(url: str, messages: int) -> float:
    async with RabbitBroker(url, logger=None) as broker:
        queue = await broker.declare_queue(RabbitQueue("bench-faststream", durable=True))
        topic = RabbitExchange("bench-faststream", type=ExchangeType.TOPIC, durable=True)
        exchange = await broker.declare_exchange(topic)
        await queue.bind(exchange, "order.placed")
        numbers: Iterator[int] = iter(range(messages))

        async def caller() -> None:
            for number in numbers:
                await broker.publish(
                    {"id": number, "text": TEXT}, "order.placed", topic, mandatory=True, persist=True
                )

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
        seconds = time.perf_counter() - started
        await queue.delete(if_unused=False, if_empty=False)
        await exchange.delete()
    return messages / seconds


print(json.dumps({"per_second": asyncio.run(main(sys.argv[1], int(sys.argv[2])))}))
