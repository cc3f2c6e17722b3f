from __future__ import annotations

import asyncio

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.core import headers as h
from leveret.core.errors import StoreRefused
from leveret.testing.fake_clock import idle


@pytest.fixture
def app():
    return Leveret("shop", broker="memory://", store="memory://")


async def test_a_letter_that_the_store_refuses_does_not_keep_the_others_from_being_kept(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)

        async def refuse(name, *arguments) -> None:
            if name == "keep" and any(letter.body == b"bad" for letter in arguments[0]):
                raise StoreRefused("not this one")

        t.store.before = refuse
        await t.send("shop.events.dlq", b"bad")
        await t.clock.advance(3)
        await t.send("shop.events.dlq", b"good")
        await t.clock.advance(3)
        assert [letter.body for letter in t.data.letters.values()] == [b"good"]
        assert t.unsettled("shop.events.dlq") == 1
        assert not t.runner.keeper.quiet
        assert len(t.alarms.holding) == 1
        t.store.before = None
        await t.clock.advance(60)
        assert sorted(letter.body for letter in t.data.letters.values()) == [b"bad", b"good"]
        assert t.unsettled("shop.events.dlq") == 0
        assert t.runner.keeper.quiet
        assert t.alarms.holding == set()


async def test_a_refused_letter_is_back_in_its_queue_after_a_stop(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)

        async def refuse(name, *_) -> None:
            if name == "keep":
                raise StoreRefused("not this one")

        t.store.before = refuse
        await t.send("shop.events.dlq", b"bad")
        await t.clock.advance(1)
        stopping = asyncio.ensure_future(t.runner.keeper.stop())
        await t.clock.advance(10)
        await stopping
        assert (t.ready("shop.events.dlq"), t.unsettled("shop.events.dlq")) == (1, 0)


async def test_the_alarm_about_a_refused_letter_ends_when_the_next_term_keeps_it(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)

        async def refuse(name, *_) -> None:
            if name == "keep":
                raise StoreRefused("not this one")

        t.store.before = refuse
        await t.send("shop.events.dlq", b"bad")
        await t.clock.advance(1)
        assert t.alarms.holding == {("retry_store_unavailable", "shop keeper")}
        keeper = t.runner.keeper
        grant = keeper.keeper.grant
        keeper._lost("test")
        await idle()
        t.store.before = None
        keeper._gained(grant)
        await t.clock.advance(1)
        assert [letter.body for letter in t.data.letters.values()] == [b"bad"]
        assert t.alarms.holding == set()


async def test_a_request_that_expired_in_its_queue_is_counted_and_not_kept(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        expired = {h.TIMEOUT_MS: 1000, "x-death": [{"reason": "expired", "queue": "shop.prices", "count": 1}]}
        await t.send("shop.events.dlq", b"nobody waits", headers=expired)
        await t.send("shop.events.dlq", b"a letter")
        assert [letter.body for letter in t.data.letters.values()] == [b"a letter"]
        assert t.runner.keeper.expired_requests == 1
        assert (t.ready("shop.events.dlq"), t.unsettled("shop.events.dlq")) == (0, 0)


async def test_a_letter_that_arrives_while_the_keeper_stops_is_kept_once_or_goes_back(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        intake = t.runner.keeper.intake
        plain = intake._arrived.set

        def stop_first() -> None:
            plain()
            stopping.append(asyncio.ensure_future(t.runner.keeper.finish()))
            intake._closing = True

        stopping = []
        intake._arrived.set = stop_first
        await t.send("shop.events.dlq", b"late")
        await idle()
        assert (t.ready("shop.events.dlq"), len(t.data.letters)) == (1, 0)
        await asyncio.gather(*stopping)


async def test_a_letter_that_cannot_be_read_for_a_fault_of_ours_is_kept_as_it_is(app, monkeypatch):
    from leveret.dead_letters import intake

    def broken(*_, **__):
        raise RuntimeError("a fault of ours")

    async with RunningApp(app) as t:
        await t.clock.advance(1)
        monkeypatch.setattr(intake, "read", broken)
        await t.send("shop.events.dlq", b"odd", message_id="odd", type="order")
        await t.clock.advance(5)
        [letter] = t.data.letters.values()
        assert (letter.body, letter.message_id, letter.ending) == (b"odd", "odd", "foreign")
        assert "a fault of ours" in letter.reason
