"""An app with 1,000 messages that works until it is told to stop, then tells what became of them.

`stopped_app.py HANDLER SECONDS GRACE`: HANDLER is `async` or `plain`. A line for each message done, and one of JSON at
the end, once the app is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from leveret import Leveret, Message
from leveret.core.message import Outgoing
from leveret.runtime.opening import Stand
from leveret.runtime.world import system_world
from leveret.stores.memory import MemoryData, MemoryStore
from leveret.transports.memory import MemoryBroker, MemoryTransport

NUMBER = 1_000


def say(word: str, order: dict) -> None:
    """A line in one piece: several threads say something at once."""
    os.write(1, f"{word} {order['id']}\n".encode())


async def main(kind: str, seconds: float, grace: float) -> None:
    world, broker, data = system_world(), MemoryBroker(), MemoryData()
    app = Leveret("shop", shutdown_grace=grace)
    app._stand = Stand(
        world=world,
        transport=lambda: MemoryTransport(broker, world=world),
        store=lambda: MemoryStore(clock=world.clock, data=data),
    )
    done: list[int] = []

    def finished(order: dict) -> None:
        done.append(order["id"])
        say("done", order)

    if kind == "plain":

        @app.worker("order.placed", prefetch=50, concurrency=20)
        def charge(order: dict) -> None:
            say("started", order)
            time.sleep(seconds)
            finished(order)

    else:

        @app.worker("order.placed", prefetch=50, concurrency=20)
        async def charge(order: dict) -> None:
            say("started", order)
            await asyncio.sleep(seconds)
            finished(order)

    async with app:
        await app.publish_many(Message("order.placed", {"id": number}) for number in range(NUMBER))
        await app.run()

    def left(queue: str) -> list[Outgoing]:
        return broker.messages(queue)

    told = {
        "done": done,
        "left": [json.loads(message.body)["id"] for message in left("shop.charge")],
        "elsewhere": len(left("shop.charge.suspects")) + len(left("shop.retry")) + len(data.retries),
        "dead": len(left("shop.events.dlq")) + len(data.letters),
    }
    os.write(1, json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
