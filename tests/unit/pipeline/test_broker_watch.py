"""Alarms where the broker is away, blocked, or has lost a consumer: one a condition, and resolved with it (A2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.core.alarm import CONNECTION_BLOCKED, CONSUMER_LOST


@pytest.fixture
def app():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None: ...

    @app.worker
    async def refund(body: bytes) -> None: ...

    return app


def looking(knobs):
    return replace(knobs, watches=True)


async def test_a_blocked_connection_is_told_within_a_second_and_its_end_as_well(app):
    async with RunningApp(app, knobs=looking) as t:
        about = (CONNECTION_BLOCKED, t.app._open.parts.transport.display)
        t.broker.block()
        await t.clock.advance(1)
        assert t.alarms.holding == {about}
        t.broker.unblock()
        await t.clock.advance(1)
        assert t.alarms.holding == set()


async def test_a_broker_that_is_back_in_time_is_told_of_to_nobody(app):
    async with RunningApp(app, knobs=looking) as t:
        t.broker.stop()
        await t.clock.advance(8)
        t.broker.start()
        await t.clock.advance(120)
        assert t.alarms.holding == set()


async def test_a_broker_that_is_away_is_one_condition_however_many_workers_there_are(app):
    async with RunningApp(app, knobs=looking) as t:
        about = (CONSUMER_LOST, t.app._open.parts.transport.display)
        t.broker.stop()
        await t.clock.advance(12)
        assert t.alarms.holding == {about}
        t.broker.start()
        await t.clock.advance(60)
        assert t.alarms.holding == set()


async def test_a_stop_that_takes_its_time_loses_no_consumer():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None:
        await t.clock.sleep(25)

    async with RunningApp(app, knobs=looking) as t:
        await t.send("shop.charge", b"x")
        await t.clock.advance(1)
    assert t.alarms.holding == set()
    assert t.clock.monotonic() > 20


async def test_a_condition_that_goes_on_is_told_of_again_after_its_window(app):
    told = []

    class Counting:
        def emit(self, alarm):
            if alarm.code == CONNECTION_BLOCKED:
                told.append("blocked")

        def resolved(self, code, about=""):
            if code == CONNECTION_BLOCKED:
                told.append("resolved")

    async with RunningApp(app, knobs=looking) as t:
        t.app._open.parts.alarms = Counting()
        t.broker.block()
        await t.clock.advance(299)
        assert told == ["blocked"]
        await t.clock.advance(3)
        assert told == ["blocked", "blocked"]
        t.broker.unblock()
        await t.clock.advance(600)
        assert told == ["blocked", "blocked", "resolved"]


async def test_a_queue_that_is_not_consumed_is_told_of_by_its_name(app):
    async with RunningApp(app, knobs=looking) as t:
        [charge, _] = t.runner.consumers
        subscription, charge._subscription = charge._subscription, None
        await t.clock.advance(12)
        assert t.alarms.holding == {(CONSUMER_LOST, "shop.charge")}
        charge._subscription = subscription
        await t.clock.advance(1)
        assert t.alarms.holding == set()
