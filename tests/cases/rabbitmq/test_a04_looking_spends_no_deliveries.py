"""A04: however often somebody looks at the dead letters, nothing is taken out of a queue and put back for it."""

from __future__ import annotations

from tests.cases.rabbitmq.shop import Shop

from leveret import HardFailure


async def test_a04_after_25_looks_five_dead_letters_still_lie_in_their_queue_untouched(shop: Shop):
    app = shop.app()

    @app.worker("order.placed")
    async def charge() -> None:
        raise HardFailure("410")

    async with app:
        for _ in range(5):
            await app.publish("order.placed", {})
        async with app.running(keeper=False):
            await shop.until_ready("events.dlq", 5)
        for _ in range(25):
            await app.dead_letters.list()
            assert (await app.counts()).dead == 5
        assert shop.ready("events.dlq") == 5
        for _ in range(5):
            method, _, _ = shop.channel.basic_get(shop.name("events.dlq"), auto_ack=True)
            assert not method.redelivered
