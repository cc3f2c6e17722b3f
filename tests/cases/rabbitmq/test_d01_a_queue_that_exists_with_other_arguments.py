"""D01: a queue with other arguments is used where that loses nothing, else refused; each time it is said how.

Nothing is tried in a loop, and nothing is deleted.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest
from tests.cases.rabbitmq.shop import Shop

from leveret import Leveret
from leveret.core.errors import QueueMismatch


def ordering(shop: Shop, **options) -> Leveret:
    app = shop.app(**options)

    @app.worker("order.placed", queue_type="classic")
    async def charge() -> None:
        pass

    return app


@pytest.mark.parametrize(
    ("flags", "arguments", "named"),
    [
        ({"durable": True}, {"x-message-ttl": 60_000}, "x-message-ttl=60000"),
        ({"durable": True}, {"x-expires": 3_600_000}, "x-expires=3600000"),
        ({"durable": True}, {"x-max-length": 100}, "x-max-length=100"),
        ({"durable": False}, {}, "durable=False"),
        ({"durable": True, "auto_delete": True}, {}, "auto_delete=True"),
    ],
)
async def test_d01_one_that_loses_messages_is_refused_with_theirs_ours_and_the_remedy(
    shop: Shop, flags, arguments, named
):
    queue = shop.name("charge")
    with nullcontext() if flags["durable"] else shop.broker.given_up():
        shop.channel.queue_declare(queue, arguments=arguments, **flags)
    shop.send("charge", b"not ours")
    app = ordering(shop)
    with pytest.raises(QueueMismatch) as caught:
        await app.open()
    said = str(caught.value)
    assert queue in said
    assert named in said
    assert "leveret declares" in said
    # Two connections at most: it is not tried again and again.
    assert shop.broker.proxy.accepted <= 2
    assert shop.take("charge")[0] == b"not ours"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"x-dead-letter-exchange": "elsewhere"}, "x-dead-letter-exchange='elsewhere'"),
        ({"x-max-priority": 10}, "x-max-priority=10"),
        ({"x-queue-type": "quorum"}, "x-queue-type='quorum'"),
        ({"x-queue-mode": "lazy"}, "x-queue-mode='lazy'"),
    ],
)
async def test_d01_one_that_is_harmless_is_used_as_it_is_and_said_so_once(
    shop: Shop, caplog, arguments, named
):
    caplog.set_level(logging.WARNING, "leveret")
    queue = shop.name("charge")
    if arguments.get("x-queue-type") == "quorum" and shop.broker.version >= (4,):
        # That it has no limit there would be told as well.
        arguments = {**arguments, "x-delivery-limit": -1}
    shop.channel.queue_declare(queue, durable=True, arguments=arguments)
    async with ordering(shop) as app:
        await app.publish("order.placed", {})
        assert shop.ready("charge") == 1
    told = [message for message in caplog.messages if queue in message]
    assert len(told) == 1
    assert named in told[0]


async def test_d01_queues_of_an_earlier_run_are_taken_without_a_word(shop: Shop, caplog):
    caplog.set_level(logging.WARNING, "leveret")
    for _ in range(2):
        async with ordering(shop) as app:
            await app.publish("order.placed", {})
    assert shop.ready("charge") == 2
    assert not caplog.messages
