"""C07: a delay far longer than any lease makes one delivery, however many instances wait for it."""

from __future__ import annotations

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, SoftFailure


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_c07_a_delay_of_three_hours_with_two_instances_and_a_lease_of_30_seconds_is_one_delivery(
    store, tmp_path
):
    scene = Scene(tmp_path / "leveret.db" if store == "sqlite" else None)
    ran = []

    def instance() -> Leveret:
        app = scene.host(Leveret("shop"))

        @app.worker("order.placed")
        async def charge(ctx: Context) -> None:
            ran.append(ctx.attempt)
            if ctx.attempt == 1:
                raise SoftFailure("503", retry_after=3 * 3600)

        return app

    one, other = instance(), instance()
    async with one.running(), other.running():
        await one.publish("order.placed", {})
        await scene.advance(3 * 3600 - 1)
        assert ran == [1]
        await scene.advance(2)
        assert ran == [1, 2]
        await scene.advance(600)
        assert ran == [1, 2]
        assert await one.counts() == (0, 0, 0, 0)
