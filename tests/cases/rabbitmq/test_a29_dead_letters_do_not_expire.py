"""A29: the dead-letter queue has no time to live, no length and no end; nothing in it expires."""

from __future__ import annotations

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret.core.errors import QueueMismatch


@pytest.mark.parametrize("queue", ["events.dlq", "retry", "charge", "charge.suspects"])
async def test_a29_no_queue_of_ours_is_declared_with_an_end(shop: Shop, queue: str):
    app = shop.app()

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    async with app:
        listed = await shop.listed(queue, "durable", "auto_delete", "exclusive", "arguments", "policy")
    durable, auto_delete, exclusive, arguments, policy = listed
    # Nothing is said of a quorum queue, which cannot be exclusive.
    assert exclusive in ("false", "")
    assert (durable, auto_delete, policy) == ("true", "false", "")
    for bound in ("x-message-ttl", "x-expires", "x-max-length", "x-overflow"):
        assert bound not in arguments


async def test_a29_a_dead_letter_queue_whose_letters_expire_is_refused(shop: Shop):
    arguments = {"x-queue-type": "classic", "x-message-ttl": 604_800_000}
    shop.channel.queue_declare(shop.name("events.dlq"), durable=True, arguments=arguments)
    with pytest.raises(QueueMismatch, match="x-message-ttl=604800000"):
        await shop.app().open()
