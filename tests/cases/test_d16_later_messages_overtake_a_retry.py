"""D16: order is not kept across a retry, and the docs say so: A fails, B follows, the order is A, B, A.

Also with a prefetch of 1, where messages are otherwise handled one by one in their order.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret import Context, Leveret, SoftFailure
from leveret.testing import TestLeveret


@pytest.mark.parametrize("prefetch", [10, 1])
async def test_d16_a_fails_b_follows_and_a_comes_after_it(prefetch):
    app = Leveret("shop")
    seen = []

    @app.worker("order.placed", prefetch=prefetch)
    async def charge(order: dict, ctx: Context) -> None:
        seen.append(order["name"])
        if order["name"] == "A" and ctx.attempt == 1:
            raise SoftFailure("503", retry_after=1)

    async with TestLeveret(app) as t:
        await app.publish("order.placed", {"name": "A", "key": "one customer"})
        await app.publish("order.placed", {"name": "B", "key": "one customer"})
        await t.run_until_idle()
        assert seen == ["A", "B", "A"]


async def test_d16_without_failures_a_prefetch_of_1_keeps_the_order():
    app = Leveret("shop")
    seen = []

    @app.worker("order.placed", prefetch=1)
    async def charge(order: dict) -> None:
        await t.clock.sleep(1 / (1 + order["id"]))
        seen.append(order["id"])

    async with TestLeveret(app) as t:
        for number in range(20):
            await app.publish("order.placed", {"id": number})
        await t.advance(minutes=1)
        assert seen == list(range(20))


def test_d16_the_docs_say_so():
    promise = Path(__file__).parents[2] / "docs" / "promise.md"
    assert "the order is A, B, A" in promise.read_text(encoding="utf-8")
