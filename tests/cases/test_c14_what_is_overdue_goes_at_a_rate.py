"""C14: what is overdue goes oldest first at a bounded rate, and what fails now does not wait behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, Message, SoftFailure

NUMBER = 2_000
RATE = 200.0


async def test_c14_2000_overdue_at_200_a_second_take_ten_seconds_in_order_and_a_fresh_retry_is_on_time():
    scene = Scene()
    app = scene.host(Leveret("shop"))
    back: list[tuple[int, float]] = []

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=60 + order["id"] * 0.01 if order["id"] < NUMBER else 1)
        back.append((order["id"], scene.clock.monotonic()))

    async with app.running():
        await app.publish_many(Message("order.placed", {"id": number}) for number in range(NUMBER))
        await scene.advance()
    await scene.advance(3600)
    assert back == []

    app._stand = replace(app._stand, knobs=lambda knobs: replace(knobs, overdue_rate=RATE))
    async with app.running():
        start = scene.clock.monotonic()
        await scene.advance(2)
        assert len(back) == pytest.approx(2 * RATE, rel=0.2)
        await app.publish("order.placed", {"id": NUMBER})
        await scene.advance(1.5)
        (fresh,) = [at for number, at in back if number == NUMBER]
        # A second after its failure, and not after the eight that the others still need.
        assert fresh - start == pytest.approx(3, abs=0.3)
        await scene.advance(10)
    order = [number for number, _ in back if number < NUMBER]
    assert order == list(range(NUMBER))
    last = max(at for number, at in back if number < NUMBER)
    assert last - start == pytest.approx(NUMBER / RATE, rel=0.15)
