"""A process that works on a SQLite file and kills itself at a hand-over point: `killed_app.py STORE LEDGER POINT NTH`.

With POINT `none` it goes on with what another one has left in the store, and ends when all is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from typing import Any

from leveret import Context, HardFailure, Leveret, Message, RetryPolicy, SoftFailure
from leveret.core import handover
from leveret.core.retry_entry import Filter
from leveret.dead_letters.replay import VERBS
from leveret.runtime.opening import Stand
from leveret.runtime.world import system_world
from leveret.stores.sqlite import SqliteStore
from leveret.transports.memory import MemoryBroker, MemoryTransport

#: Points that the ledger is told of: what the store has, and what it may have removed again.
TOLD = {handover.STORED, handover.REPUBLISH_CONFIRMED, handover.KEEPER_STORED}
KINDS = ("soft", "exhausted", "hard", "later", "large")


def messages() -> dict[bytes, Message]:
    """All that is published, by body."""
    found = {}
    for number in range(8):
        for kind in KINDS:
            padding = "x" * 200_000 if kind == "large" else ""
            body = json.dumps({"kind": kind, "number": number, "padding": padding}).encode()
            found[body] = Message(
                "order.placed", body, id=f"{kind}-{number}", headers={"kept": [number, {"deep": None}]}
            )
    return found


async def work(store: str, ledger: str, point: str, nth: int) -> None:
    again = point == "none"
    arrivals = 0
    # Lines that were written before a kill are there after it.
    told = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def tell(event: str, ctx: Context, order: dict[str, Any]) -> None:
        line = {
            "event": event, "kind": order["kind"], "number": order["number"], "message_id": ctx.message_id,
            "retry_id": ctx.retry_id, "attempt": ctx.attempt, "second": again,
        }  # fmt: skip
        os.write(told, json.dumps(line).encode() + b"\n")

    async def reached(here: str, message_id: str | None) -> None:
        nonlocal arrivals
        if here in TOLD:
            os.write(
                told, json.dumps({"event": here, "message_id": message_id, "second": again}).encode() + b"\n"
            )
        arrivals += here == point
        if here == point and arrivals == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    world = replace(system_world(), reached=reached)
    app = Leveret("shop", broker="memory://", retry=RetryPolicy(first_delay=0.1, jitter=0, max_attempts=3))
    app._stand = Stand(
        world=world,
        transport=lambda: MemoryTransport(MemoryBroker(), world=world),
        store=lambda: SqliteStore(store, clock=world.clock),
        knobs=lambda knobs: replace(knobs, lease_ttl=0.6, acts_every=0.05),
    )
    mended = again

    @app.worker("order.*", max_deliveries=30)
    async def charge(order: dict[str, Any], ctx: Context) -> None:
        tell("start", ctx, order)
        kind = order["kind"]
        if kind == "hard" and not mended:
            raise HardFailure("hopeless")
        if kind == "exhausted" or (kind in {"soft", "large"} and ctx.attempt == 1):
            raise SoftFailure("not yet")
        tell("done", ctx, order)

    async with app:
        if again:
            waits = app._opened("the test").parts.store
            async with app.running():
                # Nobody tells when the act of a process that is gone has been finished.
                while await waits.asked("shop", VERBS) or await waits.count_letters(  # noqa: ASYNC110
                    Filter(namespace="shop"), states=("claimed",)
                ):
                    await asyncio.sleep(0.02)
            await app.run(until_idle=True, signals=False)
            return
        for message in messages().values():
            await app.publish(message, delay=0.2 if (message.id or "").startswith("later") else None)
        await app.run(until_idle=True, signals=False)
        mended = True
        async with app.running():
            await app.dead_letters.replay(reason="hopeless", rate=20)
        await app.run(until_idle=True, signals=False)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
