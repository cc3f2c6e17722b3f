"""A handler that comes near the broker's consumer_timeout is told of while there is time (P1, B07)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret


@pytest.fixture
def app():
    return Leveret("shop", broker="memory://", store="memory://")


def told(caplog):
    return [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "long_run"]


def looking(knobs):
    return replace(knobs, grace=1, watches=True)


async def test_b07_a_run_is_told_of_once_at_25_minutes_with_worker_and_limit(app, caplog):
    @app.worker
    async def charge(body: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    async with RunningApp(app, knobs=looking) as t:
        await t.send("shop.charge", b"x")
        await t.clock.advance(24.9 * 60)
        assert told(caplog) == []
        await t.clock.advance(1.2 * 60)
        [said] = told(caplog)
        assert said.startswith("charge (test_long_runs.py:")
        assert "has been running for 25 min. The broker waits 30 min for an ack (its consumer_timeout" in said
        await t.clock.advance(3600)
        assert len(told(caplog)) == 1


async def test_runs_that_end_in_time_are_not_told_of_however_many_follow_each_other(app, caplog):
    @app.worker(concurrency=1)
    async def charge(body: bytes) -> None:
        await t.clock.sleep(20 * 60)

    async with RunningApp(app, knobs=looking) as t:
        for _ in range(3):
            await t.send("shop.charge", b"x")
        await t.clock.advance(3600)
        assert told(caplog) == []


async def test_a_long_timeout_is_no_excuse(app, caplog):
    @app.worker(timeout=3600)
    async def charge(body: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    async with RunningApp(app, knobs=looking) as t:
        await t.send("shop.charge", b"x")
        await t.clock.advance(27 * 60)
        assert len(told(caplog)) == 1


async def test_a_queue_that_was_given_more_time_is_told_of_later(app, caplog):
    @app.worker(queue_arguments={"x-consumer-timeout": 7_200_000})
    async def charge(body: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    async with RunningApp(app, knobs=looking) as t:
        await t.send("shop.charge", b"x")
        await t.clock.advance(99 * 60)
        assert told(caplog) == []
        await t.clock.advance(3 * 60)
        assert "has been running for 100 min. The broker waits 120 min" in told(caplog)[0]


async def test_a_request_that_runs_for_long_is_told_of_too(app, caplog):
    @app.rpc("report")
    async def report(order: dict) -> None:
        await asyncio.get_running_loop().create_future()

    async with RunningApp(app, knobs=looking) as t:
        await t.send("shop.report.req", b"{}")
        await t.clock.advance(24.9 * 60)
        assert told(caplog) == []
        await t.clock.advance(3600)
        [said] = told(caplog)
        assert said.startswith("report (test_long_runs.py:")
        assert "consumer_timeout in rabbitmq.conf" in said
        assert "queue_arguments" not in said
