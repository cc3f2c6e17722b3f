"""A memory alarm of 20 s, ten heartbeats long: nothing is lost, run twice or disconnected, and all resumes unaided."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.rabbitmq_app import HeardAlarms, QueueRow
from tests.rabbitmq_scene import until

from leveret import Context, HardFailure, Message, PublishTimeout, RetryPolicy, SoftFailure

ALARM = 20.0
SOON = RetryPolicy(first_delay=0.1, jitter=0)
KINDS = ("good", "soft", "hard")
EACH = 5


async def test_b04_through_an_alarm_of_20_seconds_all_is_held_and_nothing_is_lost(place):
    app = place.app(query="?heartbeat=2")
    runs: list[tuple[str, int]] = []
    goes_on = asyncio.Event()

    @app.worker("order.placed", retry=SOON, prefetch=3 * EACH + 1)
    async def charge(order: dict, ctx: Context) -> None:
        await goes_on.wait()
        runs.append((ctx.message_id, ctx.attempt))
        if order["kind"] == "soft" and ctx.attempt == 1:
            raise SoftFailure("the card service answered 503")
        if order["kind"] == "hard":
            raise HardFailure("410 gone")

    ids = [f"{kind}-{number}" for kind in KINDS for number in range(EACH)]
    async with app.running():
        alarms = HeardAlarms(app)
        await app.publish_many([Message("order.placed", {"kind": id[:4]}, id=id) for id in ids])
        await until(lambda: app._open.runner.in_hand == len(ids))
        accepted = place.broker.proxy.accepted
        await place.broker.block()
        began = time.monotonic()
        unknown = []
        try:
            goes_on.set()
            number = 0
            while time.monotonic() - began < ALARM:
                asked = time.monotonic()
                with pytest.raises(PublishTimeout) as caught:
                    await app.publish("order.placed", {"kind": "good"}, id=f"late-{number}", timeout=1)
                assert 0.9 < time.monotonic() - asked < 2
                unknown.append(caught.value.message)
                number += 1
            # Acks went through; what has to be published first is in hand, unacked.
            await place.until_rows(charge=QueueRow(0, 2 * EACH, 1))
            assert sorted(runs) == [(id, 1) for id in sorted(ids)]
            assert alarms.told["connection_blocked"] == 1
            assert {code for code, _ in alarms.holding} == {"connection_blocked"}
        finally:
            await place.broker.unblock()
        lifted = time.monotonic()
        await until(lambda: len([run for run in runs if run[1] == 2]) == EACH)
        # Unaided, and without waiting out a backoff.
        assert time.monotonic() - lifted < 5
        for message in unknown:
            await app.publish(message)
        await until(lambda: {run[0] for run in runs} == {*ids, *(message.id for message in unknown)})
        await place.until_rows(charge=QueueRow(0, 0, 1), retry=QueueRow(0, 0, 1))
        async with asyncio.timeout(10):
            while await app.counts() != (0, 0, 0, EACH):  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.05)
        # Of ours none was run twice; of the publishes that were unknown the first one had gone out.
        assert len([run for run in runs if run[0] in ids]) == len(ids) + EACH
        assert len([run for run in runs if run[0] not in ids]) <= len(unknown) + 1
        assert place.broker.proxy.accepted == accepted
        await until(lambda: not alarms.holding)
