"""A03: a dead letter that cannot be published keeps its message unacked, with one alarm, while others go on."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import until

from leveret import HardFailure, Leveret


def ordering(shop: Shop, done: list[int], **options: Any) -> Leveret:
    app = shop.app(shutdown_grace=1, **options)

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        if order["id"] == 0:
            raise HardFailure("410")
        done.append(order["id"])

    return app


async def test_a03_without_permission_to_park_it_the_message_is_kept_and_the_next_one_is_processed(
    shop: Shop,
):
    user, ctl = shop.namespace, shop.broker.node.ctl
    await asyncio.to_thread(ctl, "add_user", user, "secret")
    # All but the default exchange, by which leveret reaches its own queues.
    await asyncio.to_thread(ctl, "set_permissions", user, ".*", r"^(?!amq\.default$).*", ".*")
    done: list[int] = []
    app = ordering(shop, done, login=f"{user}:secret")
    async with app, asyncio.timeout(40):
        shop.listen(app)
        # Before anything runs: a publish whose confirm is under way when the broker closes the channel is repeated.
        for number in range(3):
            await app.publish("order.placed", {"id": number})
        async with app.running(keeper=False):
            await until(lambda: shop.alarms.holding)
            await until(lambda: sorted(done) == [1, 2])
            assert shop.alarms.holding == {("dlq_publish_failed", shop.name("events.dlq"))}
            await shop.until_unacked("charge", 1)
            assert shop.ready("events.dlq") == 0
            await asyncio.to_thread(ctl, "set_permissions", user, ".*", ".*", ".*")
            await shop.until_ready("events.dlq", 1)
            await until(lambda: not shop.alarms.holding)
        assert shop.ready("charge") == 0


async def test_a03_with_the_dead_letter_queue_deleted_the_message_is_parked_in_the_next_one(shop: Shop):
    done: list[int] = []
    app = ordering(shop, done)
    async with app, asyncio.timeout(40):
        shop.listen(app)
        shop.channel.queue_delete(shop.name("events.dlq"))
        shop.channel.exchange_delete(shop.name("events.dlq"))
        async with app.running(keeper=False):
            for number in range(3):
                await app.publish("order.placed", {"id": number})
            # Ours: it is declared again, and what could not be routed is published again.
            await until(lambda: sorted(done) == [1, 2])
            await until(lambda: not app._open.runner.in_hand)
        assert shop.ready("events.dlq") == 1
        assert shop.ready("charge") == 0
