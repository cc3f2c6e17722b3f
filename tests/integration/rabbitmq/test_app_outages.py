"""A whole app while broker, line and queues fail: nothing is lost, and it goes on by itself (B01, B04, B06, C08)."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import tracemalloc

import pytest
from tests.rabbitmq_app import HeardAlarms, Load, QueueRow
from tests.rabbitmq_scene import until

from leveret import Context, PublishTimeout, RetryPolicy, SoftFailure

#: A retry comes back while the test still looks.
SOON = RetryPolicy(first_delay=0.2, factor=1, jitter=0, max_attempts=20)
PREFETCH = 20


def loaded(app, *, fails_every: int = 7):
    """A worker that counts its runs and fails now and then; and what it is told of the load that is yet to come."""
    loads = []
    seen = set()

    @app.worker("order.placed", retry=SOON, prefetch=PREFETCH)
    async def charge(order: dict, ctx: Context) -> None:
        seen.add(ctx.message_id)
        if ctx.attempt == 1 and len(seen) % fails_every == 0:
            raise SoftFailure("the card service answered 503")
        loads[0].runs[ctx.message_id] += 1

    return loads


async def settled(app, load, place):
    """Wait until all that was confirmed has been run, and nothing lies anywhere."""
    async with asyncio.timeout(60):
        while load.missing or any(await app.counts()):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        # A quorum queue counts now and then.
        while any(row[:2] != (0, 0) for row in (await place.rows()).values()):
            pass


async def test_a_broker_that_restarts_under_load_loses_nothing(place, reconnects_soon):
    app = place.app()
    loads = loaded(app)
    async with app.running():
        load = Load(app, "order.placed")
        loads.append(load)
        await until(lambda: len(load.runs) > 200)
        await place.broker.stop()
        await place.broker.start()
        before = len(load.runs)
        await until(lambda: len(load.runs) > before + 200, 60)
        await load.stop()
        await settled(app, load, place)
    # One more copy at most of what was in hand: with the handler, on its way out, or published and unanswered.
    assert load.extra <= 3 * PREFETCH


@pytest.mark.parametrize("size", [1, 333, 5_000, 70_001])
async def test_a_line_cut_in_mid_frame_under_load_loses_nothing(place, reconnects_soon, size):
    app = place.app()
    loads = loaded(app)
    async with app.running():
        load = Load(app, "order.placed")
        loads.append(load)
        await until(lambda: len(load.runs) > 50)
        for _ in range(3):
            accepted, before = place.broker.proxy.accepted, len(load.runs)
            place.broker.proxy.cut_after(size)
            await until(lambda accepted=accepted: place.broker.proxy.accepted >= accepted + 2)
            await until(lambda before=before: len(load.runs) > before + 50)
        await load.stop()
        await settled(app, load, place)
    assert load.extra <= 3 * (2 * PREFETCH)


async def test_on_a_half_open_line_a_publish_is_unknown_in_time_and_all_goes_on_afterwards(
    place, reconnects_soon
):
    # A login is swallowed as well, and is given up after half a second. That nothing comes is noticed by pika 6 to 12 s
    # after the last byte, however short the heartbeat.
    app = place.app(query="?heartbeat=1&connection_timeout=250")
    ran = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.append(order["id"])

    async with app.running():
        await app.publish("order.placed", {"id": 1})
        await until(lambda: ran == [1])
        accepted = place.broker.proxy.accepted
        place.broker.proxy.swallow()
        began = time.monotonic()
        with pytest.raises(PublishTimeout, match="nknown") as caught:
            await app.publish("order.placed", {"id": 2}, timeout=0.5)
        assert time.monotonic() - began < 2
        # The heartbeat finds out, though no end ever came.
        await until(lambda: app._open.parts.transport.state != "connected", 15)
        place.broker.proxy.hand_on()
        await until(lambda: app._open.parts.transport.state == "connected", 15)
        assert place.broker.proxy.accepted >= accepted + 2
        await app.publish(caught.value.message)
        await until(lambda: 2 in ran)


async def test_a_queue_that_is_deleted_under_its_consumer_comes_back_with_its_bindings(
    place, reconnects_soon
):
    app = place.app()
    ran = []
    goes_on = asyncio.Event()

    @app.worker("order.placed", prefetch=3)
    async def charge(order: dict) -> None:
        ran.append(order["id"])
        if order["id"] == 1:
            await goes_on.wait()

    async with app.running():
        await app.publish("order.placed", {"id": 1})
        await until(lambda: ran == [1])
        [consumer] = app._open.runner.consumers
        lost = consumer._subscription._channel
        await place.broker.delete_queue(place.queue("charge"))
        await until(lambda: consumer.consuming and consumer._subscription._channel is not lost)
        # Its message went with the queue; its end is no error, and disturbs nobody.
        goes_on.set()
        await app.publish("order.placed", {"id": 2})
        await until(lambda: ran == [1, 2])
        await place.until_rows(charge=QueueRow(0, 0, 1))
        await until(lambda: consumer.in_hand == 0)
        # Retry and dead-letter queue as well, which nobody but us declares.
        for queue in ("retry", "events.dlq"):
            await place.broker.delete_queue(place.queue(queue))
        await place.until_rows(**{"retry": QueueRow(0, 0, 1), "events.dlq": QueueRow(0, 0, 1)})


async def test_b04_under_a_memory_alarm_a_publish_ends_in_time_acks_go_on_and_all_resumes_unaided(place):
    app = place.app()
    ran = []
    goes_on = asyncio.Event()

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.append(order["id"])
        await goes_on.wait()

    async with app.running():
        alarms = HeardAlarms(app)
        await app.publish("order.placed", {"id": 1})
        await until(lambda: ran == [1])
        await place.broker.block()
        try:
            # The broker says so at the first byte of a publish, and lets that one wait.
            with pytest.raises(PublishTimeout, match="blocked"):
                await app.publish("order.placed", {"id": 2}, timeout=1)
            assert app._open.parts.transport.state == "blocked"
            began = time.monotonic()
            with pytest.raises(PublishTimeout, match="blocked") as caught:
                await app.publish("order.placed", {"id": 3}, timeout=0.5)
            assert 0.4 < time.monotonic() - began < 2
            await until(lambda: alarms.told["connection_blocked"] == 1)
            goes_on.set()
            await until(lambda: app._open.runner.in_hand == 0)
            await place.until_rows(charge=QueueRow(0, 0, 1))
            # Another process of the app, which has something to send and has to go.
            other = place.app(publish_timeout=60)
            await other.open()
            sending = asyncio.create_task(other.publish("order.placed", {"id": 4}))
            await until(lambda: other._open.parts.transport.state == "blocked")
            began = time.monotonic()
            await other.close()
            assert time.monotonic() - began < 5
            with pytest.raises(PublishTimeout):
                await sending
        finally:
            await place.broker.unblock()
        await app.publish(caught.value.message)
        await until(lambda: 3 in ran)
        # What was let out before the alarm was known arrives as well: unknown was the right word.
        await until(lambda: 2 in ran)
        await until(lambda: not alarms.holding)


async def test_b06_a_plain_handler_of_three_heartbeats_costs_no_connection(place):
    app = place.app(query="?heartbeat=1")
    ends = threading.Event()
    ran = []

    @app.worker("order.placed")
    def charge(order: dict) -> None:
        ran.append(order["id"])
        # It is real time that the broker counts.
        ends.wait(3.5)

    async with app.running():
        accepted = place.broker.proxy.accepted
        await app.publish("order.placed", {"id": 1})
        await until(lambda: app._open.runner.in_hand == 1)
        await until(lambda: app._open.runner.in_hand == 0)
        assert place.broker.proxy.accepted == accepted
        await place.until_rows(charge=QueueRow(0, 0, 1))
    assert ran == [1]


async def test_b06_an_async_handler_that_blocks_for_heartbeats_is_named_and_its_message_done_once(
    place, reconnects_soon, caplog
):
    caplog.set_level(logging.INFO, "leveret")
    app = place.app(query="?heartbeat=1")
    ran = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.append(order["id"])
        time.sleep(5)

    async with app.running():
        accepted = place.broker.proxy.accepted
        await app.publish("order.placed", {"id": 1})
        await until(lambda: ran)
        # Three heartbeats without a sign: the broker has let go of us, and hands the message out again.
        await until(lambda: place.broker.proxy.accepted > accepted)
        await until(lambda: app._open.parts.transport.state == "connected")
        await until(lambda: app._open.runner.in_hand == 0)
        await place.until_rows(charge=QueueRow(0, 0, 1))
    line = charge.__code__.co_firstlineno + 3
    [said] = [r.getMessage() for r in caplog.records if getattr(r, "action", "") == "loop_blocked"]
    assert said.startswith(
        f"charge has blocked the event loop for 3 s (time.sleep at test_app_outages.py:{line}); make it a plain def"
    )
    # It is known here, by its tag, that it has been done.
    assert ran == [1]


async def test_b01_c08_after_50_forced_reconnects_consumers_channels_and_memory_are_as_before(
    place, reconnects_soon
):
    app = place.app()
    ran = set()
    # To publish, to declare, and to take the worker's messages, its suspects, envelopes and dead letters.
    channels = 6

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.add(order["id"])

    def all_is_up() -> bool:
        runner = app._open.runner
        return (
            app._open.parts.transport.state == "connected"
            and runner.consumers[0].consuming
            and runner.retry_service.intake is not None
            and runner.retry_service.intake.consuming
            and runner.keeper.intake is not None
            and runner.keeper.intake.consuming
        )

    async def reconnect(number: int) -> None:
        accepted = place.broker.proxy.accepted
        place.broker.proxy.cut()
        await until(lambda: place.broker.proxy.accepted >= accepted + 2 and all_is_up())
        await app.publish("order.placed", {"id": number})
        await until(lambda: number in ran)

    async with app.running():
        # Each look in ten seconds may find the connection cut: an alarm, and alarms have a connection of their own.
        HeardAlarms(app)
        await until(all_is_up)
        tracemalloc.start()
        try:
            # What is loaded and remembered at the first times is no leak.
            for number in range(5):
                await reconnect(number)
            rows = dict.fromkeys(("charge", "retry", "events.dlq"), QueueRow(0, 0, 1))
            await place.until_rows(**rows)
            await place.until_channels(channels)
            tasks = len(asyncio.all_tasks())
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for number in range(5, 55):
                await reconnect(number)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        await place.until_rows(**rows)
        await place.until_channels(channels)
        assert len(asyncio.all_tasks()) <= tasks
        # 55 remembered outcomes are a few kilobytes; a connection that is kept is a hundred.
        assert grown < 50 * 20_000
