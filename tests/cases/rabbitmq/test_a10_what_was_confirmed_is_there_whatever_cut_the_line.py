"""A10: publishes are confirmed, and nothing switches that off; whatever cuts the line, what was confirmed is there.

The line is cut 60 times, at another byte of a publish each time. (A thousand times takes minutes and finds no more.)
"""

from __future__ import annotations

import asyncio
import inspect

from tests.cases.rabbitmq.shop import Shop

from leveret import Leveret, Message
from leveret.core.errors import PublishRefused, PublishTimeout


async def test_a10_after_60_cuts_in_the_middle_of_sends_to_a_quorum_queue_nothing_confirmed_is_missing(
    shop: Shop,
):
    app = shop.app(queue_type="quorum", publish_timeout=5)

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    confirmed, unknown, told = [], [], []
    async with app, asyncio.timeout(60):
        for number in range(60):
            await shop.until_connected(app)
            shop.broker.proxy.cut_after(1 + number * 37)
            accepted = shop.broker.proxy.accepted
            while shop.broker.proxy.accepted == accepted:
                id = f"{number}-{len(confirmed) + len(unknown)}"
                try:
                    await app.publish("order.placed", {}, id=id)
                except (PublishTimeout, PublishRefused) as error:
                    told.append(str(error))
                    unknown.append(id)
                    break
                confirmed.append(id)
        await shop.until_connected(app)
        there = set()
        while (message := shop.take("charge")) is not None:
            there.add(message[1].message_id)
    # What to do is said once.
    assert max(message.count("under the same id") for message in told) == 1
    assert len(confirmed) > 20
    assert len(unknown) > 20
    assert set(confirmed) <= there <= {*confirmed, *unknown}


def test_a10_nothing_in_the_public_interface_switches_confirms_off():
    options = {*inspect.signature(Leveret).parameters, *inspect.signature(Message).parameters}
    options |= {*inspect.signature(Leveret.publish).parameters, *inspect.signature(Leveret.worker).parameters}
    assert not [option for option in options if "confirm" in option]
