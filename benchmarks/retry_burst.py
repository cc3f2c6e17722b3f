"""How soon 50 000 retries that are due in one second are out on RabbitMQ, and how late one is that fails meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.figure import Figure, folder
from benchmarks.retry_lateness import STORES, Watched, in_time, watched
from benchmarks.retry_load import NAMES, QUEUE, until
from benchmarks.waiting_1m import put

from leveret import Leveret
from leveret.core import headers as h
from leveret.core.message import Outgoing
from leveret.core.properties import Properties

MESSAGES: Final = 50_000
#: Seconds from the first row that is written to the first that is due: by then all are written and the process works.
HEAD_START: Final = 40.0
#: While they go out others fail, so many seconds after each other, and wait for so many seconds.
FRESH_EVERY: Final = 0.5
FRESH_WAIT: Final = 1.0


def measure() -> Iterator[Figure]:
    """Once in each store: the drain, the latest of those that failed during it, and the order."""
    for end, stored in STORES:
        with folder() as here, stored(here) as store, watched(here, store) as (app, transport):
            seconds, latest, away = asyncio.run(_drained(app, transport, store))
        yield Figure(name=f"retry_burst{end}", value=seconds, unit=" s")
        yield Figure(name=f"retry_burst_fresh{end}", value=latest * 1000, unit=" ms")
        yield Figure(name=f"retry_burst_order{end}", value=away, unit=" places")


async def _drained(app: Leveret, transport: Watched, store: str) -> tuple[float, float, int]:
    """Seconds from the first due to the last removed; from due to confirmed, of the latest fresh one; the order."""
    first_due = HEAD_START + await put(store, [HEAD_START + n / MESSAGES for n in range(MESSAGES)])
    fresh: set[float] = set()

    async def fail_again_and_again() -> None:
        while True:
            due = time.time() + FRESH_WAIT
            fresh.add(due)
            await transport.send(_failure(due))
            await asyncio.sleep(FRESH_EVERY)

    async def all_out() -> bool:
        return len(transport.sent) >= MESSAGES + len(fresh) and not await app.retries.count()

    async with app, app.running(workers=[], keeper=False):
        in_time(first_due)
        await asyncio.sleep(first_due - time.time())
        failing = asyncio.create_task(fail_again_and_again())

        async def old_ones_out() -> bool:
            return len(transport.sent) >= MESSAGES and not await app.retries.count(until=first_due)

        await until(old_ones_out)
        seconds = time.time() - first_due
        failing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await failing
        await until(all_out)
    late = max(confirmed - due for due, confirmed in transport.sent if due in fresh)
    return seconds, late, _out_of_order([due for due, _ in transport.sent if due not in fresh])


def _out_of_order(dues: Sequence[float]) -> int:
    """How many places 99 of 100 are at most from where they would be, had each gone before what was due after it."""
    assert len(dues) == len(set(dues)) == MESSAGES, f"{len(dues)} went out, {len(set(dues))} different ones"
    places = {due: place for place, due in enumerate(sorted(dues))}
    away = sorted(abs(place - places[due]) for place, due in enumerate(dues))
    return away[int(MESSAGES * 0.99)]


def _failure(due: float) -> Outgoing:
    """What a worker publishes to the retry queue where it fails now, and shall be tried again at *due*."""
    properties = Properties.build(
        content_type="application/json", delivery_mode=2, message_id=str(uuid.uuid4()), type="order.placed",
        headers={
            h.ENVELOPE: h.SOFT_FAILURE, h.RETRY_ID: str(uuid.uuid4()), h.QUEUE: QUEUE, h.WORKER: "charge",
            h.ATTEMPT: 2, h.FAILURE: 1, h.FAILED_AT: time.time(), h.RETRY_AFTER: FRESH_WAIT,
            h.ORIGIN_EXCHANGE: NAMES.events, h.ORIGIN_KEY: "order.placed",
        },
    )  # fmt: skip
    return Outgoing("", NAMES.retry_queue, json.dumps({"wait": due}).encode(), properties, mandatory=True)
