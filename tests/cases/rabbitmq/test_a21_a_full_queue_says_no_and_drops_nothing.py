"""A21: a full queue that refuses makes an error for exactly what it refused; one that drops its oldest is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import Context, Message, SoftFailure
from leveret.core.errors import PublishFailures, PublishRefused, QueueMismatch

REFUSING = {"x-overflow": "reject-publish"}


async def test_a21_of_20_publishes_into_room_for_ten_ten_are_confirmed_and_ten_refused(shop: Shop):
    app = shop.app()

    # A quorum queue takes some more before it says no.
    @app.worker("order.placed", queue_type="classic", queue_arguments={"x-max-length": 10, **REFUSING})
    async def charge() -> None:
        pass

    async with app:
        with pytest.raises(PublishFailures) as caught:
            await app.publish_many([Message("order.placed", n, id=str(n)) for n in range(20)])
        there = [shop.take("charge")[1].message_id for _ in range(shop.ready("charge"))]
    assert caught.value.confirmed == there
    assert len(there) == 10
    assert len(caught.value.failed) == 10
    assert {type(error) for error in caught.value.failed.values()} == {PublishRefused}


async def test_a21_what_a_full_retry_queue_refuses_is_held_unacked(shop: Shop):
    arguments = {"x-queue-type": "classic", "x-max-length": 2, **REFUSING}
    shop.channel.queue_declare(shop.name("retry"), durable=True, arguments=arguments)
    app = shop.app(shutdown_grace=0)
    ran = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append(ctx.message_id)
        if ctx.attempt == 1:
            raise SoftFailure("503")

    async with app, asyncio.timeout(40):
        ids = await app.publish_many([Message("order.placed", n) for n in range(6)])
        async with app.running(retry_worker=False):
            await until(lambda: len(ran) == 6)
            await shop.until_ready("retry", 2)
            await shop.until_unacked("charge", 4)
        await app.run(until_idle=True, signals=False)
        assert sorted(set(ran)) == sorted(ids)
        assert await app.counts() == (0, 0, 0, 0)


@pytest.mark.parametrize("overflow", [None, "drop-head"])
async def test_a21_a_queue_that_drops_its_oldest_is_refused(shop: Shop, overflow: str | None):
    arguments = {"x-queue-type": "classic", "x-max-length": 10} | (
        {"x-overflow": overflow} if overflow else {}
    )
    shop.channel.queue_declare(shop.name("events.dlq"), durable=True, arguments=arguments)
    with pytest.raises(QueueMismatch, match=r"x-(max-length|overflow)"):
        await shop.app().open()
