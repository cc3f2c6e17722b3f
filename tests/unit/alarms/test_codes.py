"""Each code where it happens: told once, counted, and resolved where a condition ends (A2)."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
from tests.unit.alarms.carried import kept_emitter
from tests.unit.running_app import RunningApp

from leveret import HardFailure, Leveret, Message, RetryPolicy, SoftFailure
from leveret.alarms.conditions import WINDOW
from leveret.core.errors import PublishRefused
from leveret.dead_letters.growth import MANY
from leveret.testing.fake_clock import idle


def an_app(handler, **options) -> Leveret:
    app = Leveret("shop", broker="memory://", store="memory://")
    app.worker(name="charge", **options)(handler)
    return app


async def takes(body: bytes) -> None: ...


async def fails_softly(body: bytes) -> None:
    raise SoftFailure("503")


async def fails_hard(body: bytes) -> None:
    raise HardFailure("no such card")


@contextlib.asynccontextmanager
async def running(app):
    """The app at work, with an emitter whose line keeps what it is given."""
    async with RunningApp(app, knobs=lambda knobs: replace(knobs, watches=True)) as t:
        emitter, line = kept_emitter(t.world)
        emitter.start()
        t.app._open.parts.alarms = emitter
        await t.clock.advance(1)
        yield t, line
        await emitter.aclose()


def once_with_a_count_and_its_end(told) -> None:
    """Held, told at most once a window with a rising count, and resolved once at the end."""
    states = [state for state, _ in told]
    assert states == ["holds"] * (len(told) - 1) + ["resolved"]
    counts = [count for _, count in told]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] > 1


async def test_connection_blocked():
    async with running(an_app(takes)) as (t, line):
        t.broker.block()
        await t.clock.advance(WINDOW + 10)
        t.broker.unblock()
        await t.clock.advance(10)
        once_with_a_count_and_its_end(line.of("connection_blocked"))
        assert len(line.of("connection_blocked")) == 3


async def test_consumer_lost():
    async with running(an_app(takes)) as (t, line):
        t.broker.stop()
        await t.clock.advance(WINDOW + 30)
        t.broker.start()
        await t.clock.advance(60)
        once_with_a_count_and_its_end(line.of("consumer_lost"))


async def test_dlq_publish_failed():
    async with running(an_app(fails_hard)) as (t, line):
        plain = t.app._open.parts.transport.send

        def refused(out):
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(PublishRefused("the broker did not take the message"))
            return answer

        t.app._open.parts.transport.send = refused
        await t.send("shop.charge", b"x")
        await t.clock.advance(WINDOW + 60)
        t.app._open.parts.transport.send = plain
        await t.clock.advance(60)
        once_with_a_count_and_its_end(line.of("dlq_publish_failed"))
        assert len(t.data.letters) == 1


async def test_retry_store_unavailable():
    async with running(an_app(fails_softly)) as (t, line):
        t.store.away = True
        for _ in range(10):
            await t.send("shop.charge", b"x")
        await t.clock.advance(2 * WINDOW)
        t.store.away = False
        await t.clock.advance(60)
        told = line.of("retry_store_unavailable")
        once_with_a_count_and_its_end(told)
        # Two windows and a bit, whatever was tried meanwhile.
        assert len(told) == 4


async def test_retry_republish_failed():
    policy = RetryPolicy(first_delay=60, max_attempts=2)
    async with running(an_app(fails_softly, retry=policy)) as (t, line):
        await t.send("shop.charge", b"x")
        await t.clock.advance(30)
        t.broker.refuse_next(4)
        await t.clock.advance(3 * WINDOW)
        once_with_a_count_and_its_end(line.of("retry_republish_failed"))


async def test_retries_exhausted():
    async with running(an_app(fails_softly, retry=RetryPolicy(max_attempts=1))) as (t, line):
        for _ in range(7):
            await t.send("shop.charge", b"x")
        await t.clock.advance(WINDOW + 1)
        # Something that happens does not end: no "resolved" is told.
        assert line.of("retries_exhausted") == [("holds", 1), ("holds", 7)]


async def test_poison_message():
    async def publishes(body: bytes) -> Message:
        return Message("nobody", {}, mandatory=False)

    async with running(an_app(publishes, max_deliveries=3)) as (t, line):
        [consumer] = t.runner.consumers
        plain = consumer.road._obey

        async def dies(hand):
            # As a process that dies in the middle: what was started is never settled.
            if type(hand.decision).__name__ == "Bury":
                return await plain(hand)
            raise RuntimeError("a fault of ours")

        consumer.road._obey = dies
        for number in range(3):
            await t.send("shop.charge", b"x", message_id=f"deadly {number}")
        await t.clock.advance(WINDOW + 120)
        assert line.of("poison_message") == [("holds", 1), ("holds", 3)]


async def test_retries_late():
    policy = RetryPolicy(first_delay=10, max_attempts=2)
    async with running(an_app(fails_softly, retry=policy)) as (t, line):
        await t.send("shop.charge", b"x")
        await t.clock.advance(1)
        t.broker.block()
        await t.clock.advance(WINDOW + 200)
        t.broker.unblock()
        await t.clock.advance(120)
        once_with_a_count_and_its_end(line.of("retries_late"))
        assert {told["severity"] for told in line.told if told["code"] == "retries_late"} == {"WARNING"}


async def test_retries_that_are_late_because_no_retry_worker_runs_anywhere():
    policy = RetryPolicy(first_delay=10, max_attempts=2)
    async with running(an_app(fails_softly, retry=policy)) as (t, line):
        await t.send("shop.charge", b"x")
        await t.clock.advance(1)
        await t.runner.retry_service.stop()
        await t.clock.advance(120)
        assert line.of("retries_late")[0] == ("holds", 1)


@pytest.mark.parametrize(
    ("queue", "service"), [("shop.retry", "retry_service"), ("shop.events.dlq", "keeper")]
)
async def test_no_consumer(queue, service):
    async with running(an_app(takes)) as (t, line):
        await getattr(t.runner, service).stop()
        await t.clock.advance(WINDOW)
        assert line.of("no_consumer") == []
        await t.send(queue, b"nobody takes this")
        await t.clock.advance(100)
        assert line.of("no_consumer") == []
        await t.clock.advance(WINDOW)
        # Somewhere else a process has started that takes it.
        await t.outside.consume(queue, lambda delivery: delivery.ack(), prefetch=1)
        await t.clock.advance(60)
        once_with_a_count_and_its_end(line.of("no_consumer"))
        assert {told["about"] for told in line.told if told["code"] == "no_consumer"} == {queue}


async def test_dead_letters_growing():
    async with running(an_app(takes)) as (t, line):
        for _ in range(MANY):
            await t.send("shop.events.dlq", b"dead")
        await t.clock.advance(1)
        assert line.of("dead_letters_growing") == []
        await t.send("shop.events.dlq", b"one more")
        await t.clock.advance(1)
        await t.send("shop.events.dlq", b"and one more")
        await idle()
        assert line.of("dead_letters_growing") == [("holds", 1)]
        await t.clock.advance(2 * WINDOW)
        once_with_a_count_and_its_end(line.of("dead_letters_growing"))


async def test_a_few_dead_letters_for_ever_are_no_growth():
    async with running(an_app(takes)) as (t, line):
        for _ in range(3 * MANY):
            await t.send("shop.events.dlq", b"dead")
            await t.clock.advance(4)
        assert line.of("dead_letters_growing") == []
