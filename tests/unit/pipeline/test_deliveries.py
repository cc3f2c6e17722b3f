from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.running_app import RunningApp

from leveret import Context, Leveret, SoftFailure
from leveret.core import handover
from leveret.testing.fake_clock import idle


@pytest.fixture
def app():
    return Leveret("shop", broker="memory://", store="memory://")


async def test_deliveries_that_went_stale_while_they_waited_for_a_slot_are_forgotten(app):
    @app.worker(prefetch=20, concurrency=1)
    async def charge(body: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    async with RunningApp(app, knobs=lambda knobs: replace(knobs, grace=1)) as t:
        for number in range(20):
            await t.send("shop.charge", b"%d" % number)
        for _ in range(5):
            t.broker.drop_connections()
            await idle()
        [consumer] = t.runner.consumers
        assert consumer.in_hand <= 21


async def test_a_deadline_counts_from_the_start_of_the_handler_not_from_the_wait_for_its_turn(app):
    left = []

    @app.worker(timeout=10)
    async def charge(ctx: Context) -> None:
        left.append(ctx.remaining())

    async with RunningApp(app) as t:
        gate = t.runner.consumers[0].road._gate
        async with gate.alone():
            await t.send("shop.charge", b"x")
            await t.clock.advance(8)
        await t.clock.advance(0)
        assert left == [10.0]


async def test_a_handler_that_swallows_its_timeout_is_a_soft_failure_all_the_same(app):
    @app.worker(timeout=1)
    async def charge(body: bytes) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    async with RunningApp(app) as t:
        await t.send("shop.charge", b"x", message_id="a")
        await t.clock.advance(2)
        assert ["timeout" in entry.reason for entry, _ in t.data.retries.values()] == [True]


class Odd(SoftFailure):
    """One that never called our __init__, and says what nobody can mean."""

    def __init__(self, **odd) -> None:
        for name, value in odd.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    "odd",
    [
        {"retry_after": "10"}, {"retry_after": -5.0}, {"retry_after": float("nan")},
        {"retry_after": timedelta(seconds=5)},
        {"retry_max": "3"}, {"retry_max": -1}, {"retry_after": 1.0, "factor": "x"}, {"retry_after": 1.0, "jitter": 7},
        {"counted": None}, {"reason": b"\xff"}, {"reason": None},
    ],
)  # fmt: skip
async def test_a_soft_failure_that_says_what_nobody_can_mean_is_a_soft_failure_all_the_same(app, odd):
    runs = []

    @app.worker
    async def charge(body: bytes) -> None:
        runs.append(body)
        raise Odd(**odd)

    async with RunningApp(app) as t:
        await t.send("shop.charge", b"x", message_id="a")
        await t.clock.advance(0.5)
        assert runs == [b"x"]
        assert len(t.data.retries) + len(t.data.letters) == 1


async def test_suspects_are_looked_for_again_after_a_fault_that_nobody_foresaw(app):
    runs = []

    @app.worker
    async def charge(body: bytes) -> None:
        runs.append(body)

    async with RunningApp(app) as t:
        transport = app._open.parts.transport
        plain, faults = transport.get, [RuntimeError("not a broker error")]

        async def broken(queue):
            if faults:
                raise faults.pop()
            return await plain(queue)

        transport.get = broken
        await t.clock.advance(2)
        assert faults == []
        await t.send("shop.charge.suspects", b"x")
        await t.clock.advance(2)
        assert runs == [b"x"]


async def test_a_moved_message_starts_only_once_its_original_is_out_of_hand(app):
    starts = []
    first, moved, ack = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.worker(concurrency=1)
    async def charge(body: bytes) -> None:
        starts.append(body)
        if body == b"long":
            await first.wait()

    async def reached(point: str, message_id: str | None) -> None:
        if point == handover.SUSPECT_MOVED:
            moved.set()
            await ack.wait()

    t = RunningApp(app, knobs=lambda knobs: replace(knobs, grace=1))
    t.world = replace(t.world, reached=reached)
    async with t:
        for body in (b"long", b"short"):
            await t.send("shop.charge", body, message_id=body.decode())
        # The short one had no slot yet: it comes back flagged, and nobody knows it.
        t.broker.drop_connections()
        await t.clock.advance(2)
        first.set()
        await t.clock.advance(1)
        assert moved.is_set()
        assert t.unsettled("shop.charge") == 2
        assert starts == [b"long"]
        ack.set()
        await t.clock.advance(1)
        assert starts == [b"long", b"short"]
