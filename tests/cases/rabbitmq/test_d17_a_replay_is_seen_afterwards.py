"""D17: a message that dies, is replayed and dies again shows where it came from, both reasons, and its replay."""

from __future__ import annotations

import asyncio
import time

from tests.cases.rabbitmq.shop import Shop

from leveret import HardFailure


async def test_d17_the_second_letter_names_the_first_which_shows_one_replay_and_both_keep_reason_and_origin(
    shop: Shop,
):
    app = shop.app()
    reasons = ["410 gone", "422 unprocessable"]

    @app.worker("order.placed")
    async def charge() -> None:
        raise HardFailure(reasons.pop(0))

    async def letters(number: int):
        found = ()
        while len(found) < number:
            found = (await app.dead_letters.list(states=("dead", "replayed"))).items
            await asyncio.sleep(0.02)
        return [await app.dead_letters.get(letter.id) for letter in found]

    async with app, app.running(), asyncio.timeout(30):
        before = time.time()
        id = await app.publish("order.placed", {"id": 1})
        (first,) = await letters(1)
        assert (await app.dead_letters.replay(first.id)).done == 1
        second, first = await letters(2)
        for letter in (first, second):
            assert (letter.exchange, letter.routing_key) == (shop.name("events"), "order.placed")
            assert (letter.queue, letter.worker, letter.type) == (
                shop.name("charge"),
                "charge",
                "order.placed",
            )
            assert (letter.message_id, letter.body) == (id, b'{"id":1}')
        assert (first.reason, first.state, second.reason, second.state) == (
            "HardFailure: 410 gone", "replayed", "HardFailure: 422 unprocessable", "dead",
        )  # fmt: skip
        (replay,) = first.replays
        assert before <= replay.at <= time.time()
        assert (replay.to, replay.outcome) == (shop.name("charge"), "published")
        assert second.first_letter == first.id
        assert second.replays == ()
