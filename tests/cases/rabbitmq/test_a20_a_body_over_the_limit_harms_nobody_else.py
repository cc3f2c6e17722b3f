"""A20: a body over the broker's limit is refused by name, and nobody else notices.

The node's limit is set to 1 MiB, and once left as RabbitMQ 4 has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import needs_version, until

from leveret import Context, Message, SoftFailure
from leveret.core.errors import PublishRefused

LIMIT = 1_048_576


@pytest.fixture
async def limited(shop: Shop) -> AsyncIterator[Shop]:
    async with shop.limited_to(LIMIT):
        yield shop


async def test_a20_among_20_others_the_one_over_the_limit_is_refused_with_its_size_and_the_limit(
    limited: Shop,
):
    await only_the_one_over_the_limit_is_refused(limited, LIMIT)


async def test_a20_on_4_bodies_around_16_mib_among_20_others(shop: Shop):
    needs_version(shop.broker, 4, why="it takes bodies of 16 MiB at most, 128 MiB before")
    await only_the_one_over_the_limit_is_refused(shop, 16 * 1_048_576)


async def only_the_one_over_the_limit_is_refused(shop: Shop, limit: int) -> None:
    app = shop.app()

    @app.worker("order.placed")
    async def charge(body: bytes) -> None:
        pass

    sizes = [limit - 1, limit, *[10] * 10, limit + 1, *[10] * 10]
    async with app, asyncio.timeout(60):
        accepted = shop.broker.proxy.accepted
        sent = [
            app.publish(Message("order.placed", bytes(size), id=str(number)))
            for number, size in enumerate(sizes)
        ]
        told = await asyncio.gather(*sent, return_exceptions=True)
        refused = [outcome for outcome in told if isinstance(outcome, Exception)]
        assert [type(error) for error in refused] == [PublishRefused]
        assert told[12] is refused[0]
        assert refused[0].code == 406
        assert str(limit) in str(refused[0])
        assert str(limit + 1) in str(refused[0])
        # What was in flight before it may have a copy more, under its id.
        there = [shop.take("charge")[1].message_id for _ in range(shop.ready("charge"))]
        assert set(there) == {str(number) for number in range(len(sizes)) if number != 12}
        assert len(there) <= 22 + 12
        assert shop.broker.proxy.accepted == accepted


async def test_a20_a_result_over_the_limit_is_told_and_its_input_goes_on_being_a_message(limited: Shop):
    """Nothing can carry its bytes to the dead letters either; so the input is kept in hand, with an alarm."""
    app = limited.app(shutdown_grace=0)
    ran = []

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> Message | None:
        ran.append(order["id"])
        return Message("order.charged", bytes(LIMIT + 1)) if order["id"] == 0 else None

    async with app, asyncio.timeout(30):
        limited.listen(app)
        # Before anything runs: a publish whose confirm is under way when the broker closes the channel is repeated.
        await app.publish("order.placed", {"id": 0})
        async with app.running():
            await until(lambda: limited.alarms.holding)
            await app.publish("order.placed", {"id": 1})
            await until(lambda: 1 in ran)
            await limited.until_unacked("charge", 1)
        # The handler is not run again while its result is tried again.
        assert ran.count(0) == 1
    await limited.until_ready("charge", 1)


async def test_a20_a_stored_message_that_has_become_too_large_is_an_alarm_and_no_loop(shop: Shop):
    app, usual = shop.app(), await shop.max_message_size()
    ran = []

    @app.worker("order.placed")
    async def charge(body: bytes, ctx: Context) -> None:
        ran.append((ctx.attempt, len(body)))
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=3600)

    async with app, asyncio.timeout(40):
        shop.listen(app)
        async with app.running():
            await app.publish(Message("order.placed", bytes(LIMIT + 1)))
            stored = await shop.until_stored(app)
            await shop.set_max_message_size(LIMIT)
            try:
                # Channels that are open would go on with the old limit.
                await shop.cut(app)
                await shop.until_connected(app)
                await app.retries.now(stored.retry_id)
                await until(lambda: shop.alarms.holding)
                assert shop.alarms.holding == {("retry_republish_failed", shop.name("charge"))}
                (entry,) = (await app.retries.list()).items
                assert entry.retry_id == stored.retry_id
                assert len(ran) == 1
                accepted = shop.broker.proxy.accepted
                # A loop would make a connection, or close a channel, many times in this.
                await asyncio.sleep(0.5)
                assert shop.broker.proxy.accepted == accepted
            finally:
                await shop.set_max_message_size(usual)
            await shop.cut(app)
            await shop.until_connected(app)
            await until(lambda: len(ran) == 2)
    assert ran == [(1, LIMIT + 1), (2, LIMIT + 1)]
