"""A27: a retry that is late is delivered all the same; lateness is a figure, never a reason to skip.

1,000 messages become due while the retry worker is off for two hours. Once it runs again, all come, and it says how
late they were.
"""

from __future__ import annotations

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, Message, SoftFailure

NUMBER = 1_000
HOUR = 3600.0


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a27_all_that_became_due_while_the_retry_worker_was_off_is_delivered(store, tmp_path):
    scene = Scene(tmp_path / "leveret.db" if store == "sqlite" else None)
    app = scene.host(Leveret("shop"))
    back = []

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            # Due from one minute to an hour later.
            raise SoftFailure("503", retry_after=60 + order["id"] * 3.54)
        back.append(order["id"])

    async with app.running():
        await app.publish_many(Message("order.placed", {"id": number}) for number in range(NUMBER))
        await scene.advance()
        assert (await app.counts()).waiting == NUMBER

    await scene.advance(2 * HOUR)
    assert back == []

    async with app.running():
        # 1,000 a second is how fast what is overdue goes, and it is now.
        await scene.advance(1.1)
        # The order in which they were due.
        assert back == list(range(NUMBER))
        late = app._open.runner.retry_service.lateness()
        assert HOUR < late.p50 < late.p99 < late.max
        assert late.max == pytest.approx(2 * HOUR - 60, abs=2)
        assert await app.counts() == (0, 0, 0, 0)
