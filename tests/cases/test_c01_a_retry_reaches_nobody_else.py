"""C01: a retry, and the replay of a dead letter, go straight to the queue that failed; no other subscriber sees it.

One message reaches `bill`, `ship` and `note`. `bill` fails twice: it gets three deliveries, the others one each. The
original exchange and key stay with the message as information. (Exchanges bound to exchanges are a broker's own; they
change nothing, since a retry goes through no exchange.)
"""

from __future__ import annotations

from collections import Counter

import pytest

from leveret import Context, HardFailure, Leveret, RetryPolicy, RMQExchangeConfig, SoftFailure
from leveret.testing import TestLeveret

WORKERS = ("bill", "ship", "note")

exchanges = pytest.mark.parametrize("exchange", ["fanout", "topic", "direct"])


def shop(exchange: str, deliveries: list[tuple], fail) -> Leveret:
    app = Leveret(
        "shop", exchange=RMQExchangeConfig("shop.events", type=exchange), retry=RetryPolicy(first_delay=1)
    )

    def worker(name: str):
        async def handle(ctx: Context) -> None:
            deliveries.append((name, ctx.attempt, ctx.message_id, ctx.body, ctx.type))
            if name == "bill":
                fail(ctx)

        return handle

    types = {"fanout": (), "topic": ("order.*", "#.placed"), "direct": ("order.placed",)}[exchange]
    for name in WORKERS:
        app.worker(*types, name=name)(worker(name))
    return app


@exchanges
async def test_c01_a_worker_that_fails_twice_gets_three_deliveries_and_the_others_one_each(exchange):
    deliveries: list[tuple] = []

    def fail(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise SoftFailure("503")

    app = shop(exchange, deliveries, fail)
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {"id": 1})
        [entry] = t.waiting()
        assert (entry.queue, entry.exchange, entry.routing_key) == (
            "shop.bill", "shop.events", "" if exchange == "fanout" else "order.placed",
        )  # fmt: skip
        await t.run_until_idle()
        assert Counter(name for name, *_ in deliveries) == {"bill": 3, "ship": 1, "note": 1}
        assert [attempt for name, attempt, *_ in deliveries if name == "bill"] == [1, 2, 3]
        assert {delivery[2:] for delivery in deliveries} == {(id, b'{"id":1}', "order.placed")}
        assert len(t.published("order.placed")) == 1


@exchanges
async def test_c01_so_does_the_replay_of_a_dead_letter(exchange):
    deliveries: list[tuple] = []
    hopeless = True

    def fail(ctx: Context) -> None:
        if hopeless:
            raise HardFailure("410")

    app = shop(exchange, deliveries, fail)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1})
        [letter] = t.dead()
        assert (letter.queue, letter.exchange) == ("shop.bill", "shop.events")
        hopeless = False
        report = await app.dead_letters.replay(letter.id)
        await t.advance()
        assert report.done == 1
        assert Counter(name for name, *_ in deliveries) == {"bill": 2, "ship": 1, "note": 1}
        assert t.dead() == []
        assert len(t.published("order.placed")) == 1
