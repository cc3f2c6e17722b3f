"""B09: a short delay never waits behind a long one: each message comes back at its own time.

First an hour, then half an hour, then a second, in that order; the last one comes first. Then 10,000 random delays
within an hour: 99 % have to come within a second of their time, none early. Here all do.
"""

from __future__ import annotations

import random

from tests.cases.scene import Scene

from leveret import Context, Leveret, SoftFailure
from leveret.testing import TestLeveret


async def test_b09_a_second_does_not_wait_behind_an_hour():
    app = Leveret("shop")
    back = []

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=order["wait"])
        back.append((round(t.clock.monotonic(), 6), order["wait"]))

    async with TestLeveret(app) as t:
        for wait in (3600, 1800, 1):
            await t.publish("order.placed", {"wait": wait})
        await t.advance(hours=2)
        assert back == [(1, 1), (1800, 1800), (3600, 3600)]


async def test_b09_10_000_random_delays_end_within_a_second_of_their_time():
    scene = Scene()
    clock = scene.clock
    app = scene.host(Leveret("shop"))
    chance = random.Random(9)
    due: dict[int, float] = {}
    late: dict[int, float] = {}

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        late[order["id"]] = clock.monotonic() - due[order["id"]]

    async with app.running():
        for number in range(10_000):
            wait = chance.uniform(0, 3600)
            due[number] = wait
            await app.publish("order.placed", {"id": number}, delay=wait)
        await scene.advance(3600)
        assert late.keys() == due.keys()
        # The clock itself is known to a microsecond.
        assert min(late.values()) > -1e-6
        assert sum(seconds < 1 for seconds in late.values()) >= 9_900
