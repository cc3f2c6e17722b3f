"""B08: what waits is acked and lies in the store; it takes nothing of a worker's prefetch.

With a prefetch of 10, 5,000 messages fail and wait for an hour. 1,000 normal messages then pass as if nothing waited:
ten at a time, and no time passes for them.
"""

from __future__ import annotations

import asyncio

from leveret import Leveret, Message, SoftFailure
from leveret.testing import TestLeveret


async def test_b08_1_000_normal_messages_pass_5_000_that_wait():
    app = Leveret("shop")
    done: list[int] = []
    inside = most = 0

    @app.worker("order.placed", prefetch=10)
    async def charge(order: dict) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        if order["far off"]:
            raise SoftFailure("in an hour", retry_after=3600)
        done.append(order["id"])

    async with TestLeveret(app) as t:
        await app.publish_many(Message("order.placed", {"far off": True}) for _ in range(5_000))
        await t.advance()
        assert len(t.waiting()) == 5_000
        assert all(queue.ready == queue.unsettled == 0 for queue in t.broker.snapshot().values())

        most = 0
        await app.publish_many(Message("order.placed", {"id": n, "far off": False}) for n in range(1_000))
        await t.advance()
        assert done == list(range(1_000))
        assert most == 10
        assert t.clock.monotonic() == 0
        assert len(t.waiting()) == 5_000
