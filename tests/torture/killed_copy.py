"""A process that copies a SQLite store and kills itself: `killed_copy.py SOURCE TARGET NTH`, at its NTH write."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from leveret.runtime import copying
from leveret.runtime.copying import StoreCopy
from leveret.runtime.world import system_world
from leveret.stores.sqlite import SqliteStore

#: Seconds that its leases last, so that the next process need not wait long.
TTL = 0.5


async def work(source: str, target: str, nth: int) -> None:
    copying.ROWS = 20
    world = system_world()
    stores = [SqliteStore(path, clock=world.clock) for path in (source, target)]
    for store in stores:
        await store.open()
    writes = 0

    def killed(write: Callable[[Sequence[Any]], Awaitable[Any]]) -> Callable[[Sequence[Any]], Awaitable[Any]]:
        async def maybe(rows: Sequence[Any]) -> Any:
            nonlocal writes
            writes += 1
            if writes < nth:
                return await write(rows)
            # The statement is under way in its thread when the end comes: before it, in it, or after its commit.
            asyncio.get_running_loop().call_later(0.0005 * (nth % 5), os.kill, os.getpid(), signal.SIGKILL)
            result = await write(rows)
            await asyncio.Event().wait()
            return result

        return maybe

    stores[1].put, stores[1].keep = killed(stores[1].put), killed(stores[1].keep)  # type: ignore[method-assign]
    copy = StoreCopy(*stores, world=world, ttl=TTL)
    async with copy.holding(["shop"]):
        await copy.run("shop")


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
