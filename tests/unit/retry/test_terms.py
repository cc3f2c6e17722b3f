from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.core.errors import StoreUnavailable
from leveret.testing.fake_clock import idle


@pytest.fixture
def app():
    return Leveret("shop", broker="memory://", store="memory://")


async def test_a_lease_that_fails_in_a_way_nobody_foresaw_is_asked_for_again(app):
    async with RunningApp(app) as t:
        keeper = t.runner.retry_service.keeper
        plain = keeper._lease.acquire_or_renew

        async def broken(*_):
            raise RuntimeError("not a store error")

        keeper._lease.acquire_or_renew = broken
        await t.clock.advance(40)
        assert not keeper.holds
        keeper._lease.acquire_or_renew = plain
        await t.clock.advance(40)
        assert keeper.holds
        assert t.runner.retry_service.working


async def test_a_term_that_is_lost_before_the_one_before_has_ended_leaves_nothing_at_work(app):
    async with RunningApp(app) as t:
        service = t.runner.retry_service
        await t.clock.advance(1)
        at_work = 0
        most = 0
        leave = asyncio.Event()

        async def slow_to_end(grant) -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                await leave.wait()
                raise
            finally:
                at_work -= 1

        service.work = slow_to_end
        grant = service.keeper.grant
        service._lost("test")
        service._gained(grant)
        await idle()
        # The first one is slow to end; two more come and go.
        service._lost("test")
        service._gained(grant)
        await idle()
        service._lost("test")
        service._gained(grant)
        await idle()
        service._lost("test")
        await idle()
        leave.set()
        await idle()
        assert most == 1
        assert at_work == 0
        assert not service.working
        service._gained(grant)
        await idle()
        assert at_work == 1


async def test_an_app_that_runs_until_it_is_idle_outlives_a_broker_and_a_store_that_are_away(app):
    done = []

    @app.worker
    async def charge(body: bytes) -> None:
        done.append(body)

    async with RunningApp(app) as t:
        waiting = asyncio.ensure_future(t.runner.until_idle())
        t.broker.stop()
        await t.clock.advance(1)
        t.broker.start()
        t.store.away = True
        await t.clock.advance(1)
        t.store.away = False
        await t.clock.advance(10)
        assert waiting.done()
        await waiting


async def test_the_store_is_closed_where_the_transport_cannot_be(app):
    t = RunningApp(app)
    async with t:
        transport = app._open.parts.transport
        plain = transport.close

        async def broken() -> None:
            await plain()
            raise OSError("no")

        transport.close = broken
        await t._stack.aclose()
        with pytest.raises(OSError, match="no"):
            await app.close()
        with pytest.raises(StoreUnavailable):
            await t.store.namespaces()


async def test_an_act_asked_for_while_another_is_obeyed_is_not_left_for_the_next_look(app):
    knobs = lambda knobs: replace(knobs, acts_every=3600)  # noqa: E731
    async with RunningApp(app, knobs=knobs) as t:
        await t.clock.advance(1)

        async def slow(name, *_) -> None:
            if name == "report":
                await t.clock.sleep(1)

        t.store.before = slow
        first = asyncio.ensure_future(app.retries.now("nothing"))
        await t.clock.advance(0.5)
        second = asyncio.ensure_future(app.retries.now("nothing else"))
        await t.clock.advance(10)
        assert (await first).answered
        assert (await second).answered
