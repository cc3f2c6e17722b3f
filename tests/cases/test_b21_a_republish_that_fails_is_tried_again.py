"""B21: a republish that fails when its time has come is tried again in the running process.

The broker is down when 100 retries become due, and is back after five minutes. Nobody restarts the retry worker; all
100 are delivered within seconds. The same where the broker is up and answers each publish with a nack.
"""

from __future__ import annotations

from leveret import Context, Leveret, Message, SoftFailure
from leveret.testing import TestLeveret

NUMBER = 100


def shop(back: list[int]) -> Leveret:
    app = Leveret("shop")

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=60)
        back.append(order["id"])

    return app


async def test_b21_a_broker_that_was_away_for_5_minutes_gets_all_within_seconds_of_its_return():
    back: list[int] = []
    app = shop(back)
    async with TestLeveret(app) as t:
        await app.publish_many(Message("order.placed", {"id": number}) for number in range(NUMBER))
        await t.advance(seconds=30)
        assert len(t.waiting()) == NUMBER
        t.broker.stop()
        await t.advance(minutes=5)
        assert back == []
        assert len(t.waiting()) == NUMBER

        t.broker.start()
        await t.advance(seconds=5)
        assert sorted(back) == list(range(NUMBER))
        assert t.waiting() == []


async def test_b21_what_the_broker_refuses_stays_and_goes_when_it_is_taken():
    back: list[int] = []
    app = shop(back)
    async with TestLeveret(app) as t:
        await app.publish_many(Message("order.placed", {"id": number}) for number in range(NUMBER))
        await t.advance(seconds=30)
        t.broker.refuse_next(3 * NUMBER)
        await t.advance(seconds=30)
        assert back == []
        # Refused three times: after no time, after one second, and after two more.
        await t.advance(seconds=10)
        assert sorted(back) == list(range(NUMBER))
        assert t.waiting() == []


async def test_b21_a_connection_that_is_cut_again_and_again_delays_and_loses_nothing():
    back: list[int] = []
    app = shop(back)
    async with TestLeveret(app) as t:
        await app.publish_many(Message("order.placed", {"id": number}) for number in range(NUMBER))
        await t.advance(seconds=59)
        t.broker.lose_next_confirm(NUMBER)
        await t.advance(seconds=1)
        for _ in range(5):
            t.broker.drop_connections()
            await t.advance(seconds=1)
        assert set(back) == set(range(NUMBER))
        # Stored by the broker and unconfirmed: published once more, under the same ids.
        assert len(back) <= 2 * NUMBER
        assert t.waiting() == []
