"""A17: what comes back, and what is parked, is the same message: body bytes, properties and headers, and persistent.

A message of another program, with a compressed body, all properties and headers of every kind, is followed on its road:
retried, dead, replayed. At each station it is read by another program's client and compared field by field.
"""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from decimal import Decimal

import pika
from tests.cases.rabbitmq.shop import Shop

from leveret import HardFailure, SoftFailure

BODY = gzip.compress(b'{"id": 1}' * 100, mtime=0)
HEADERS = {
    "table": {"array": [{"deep": [1, "two", None]}, True], "empty": {}},
    "when": datetime(2020, 2, 29, 12, 30, tzinfo=UTC),
    "price": Decimal("12.50"),
    "bytes": b"\x00\xff",
    "none": None,
    "small": -1,
    "large": 2**40,
    "text": "é",
}
PROPERTIES = pika.BasicProperties(
    content_type="application/json", content_encoding="gzip", headers=HEADERS, delivery_mode=1, priority=7,
    correlation_id="correlation", reply_to="answers", expiration="60000", message_id="one", timestamp=1_700_000_000,
    type="order.placed", user_id="guest", app_id="another", cluster_id="cluster",
)  # fmt: skip


def is_the_same(message: tuple[bytes, pika.BasicProperties] | None) -> None:
    assert message is not None
    body, properties = message
    assert body == BODY
    # Two are others on purpose: a copy is persistent, and does not expire.
    assert (properties.delivery_mode, properties.expiration) == (2, None)
    theirs = {name: value for name, value in properties.headers.items() if not name.startswith("leveret-")}
    assert theirs == HEADERS
    for name in (
        "content_type", "content_encoding", "priority", "correlation_id", "reply_to", "message_id", "timestamp",
        "type", "user_id", "app_id", "cluster_id",
    ):  # fmt: skip
        assert getattr(properties, name) == getattr(PROPERTIES, name), name


async def test_a17_retried_dead_and_replayed_the_message_is_the_same_to_another_programs_client(shop: Shop):
    app = shop.app()
    failing: list[Exception] = [SoftFailure("503"), HardFailure("410")]

    @app.worker("order.placed", queue_type="classic", queue_arguments={"x-max-priority": 10})
    async def charge(body: bytes) -> None:
        raise failing.pop(0)

    async with app:
        shop.send("charge", BODY, PROPERTIES)
        async with app.running(retry_worker=False, keeper=False):
            await shop.until_ready("retry", 1)
        envelope = shop.take("retry")
        is_the_same(envelope)
        shop.send("retry", *envelope)

        async with app.running(workers=()):
            await shop.until_ready("charge", 1)
        copy = shop.take("charge")
        is_the_same(copy)
        shop.send("charge", *copy)

        async with app.running(retry_worker=False, keeper=False):
            await shop.until_ready("events.dlq", 1)
        letter = shop.take("events.dlq")
        is_the_same(letter)
        shop.send("events.dlq", *letter)

        async with app.running(workers=()):
            while not (page := await app.dead_letters.list()).items:
                pass
            kept = await app.dead_letters.get(page.items[0].id)
            assert kept.body == BODY
            assert (await app.dead_letters.replay(kept.id)).done == 1
        is_the_same(shop.take("charge"))
