from __future__ import annotations

import asyncio

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
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


async def test_a_letter_that_arrives_while_the_keeper_stops_is_kept_once_or_goes_back(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        keeper = t.runner.keeper
        plain = keeper._arrived.set

        def stop_first() -> None:
            plain()
            stopping.append(asyncio.ensure_future(keeper.finish()))
            keeper._closing = True

        stopping = []
        keeper._arrived.set = stop_first
        await t.send("shop.events.dlq", b"late")
        await idle()
        assert (t.ready("shop.events.dlq"), len(t.data.letters)) == (1, 0)
        await asyncio.gather(*stopping)


async def test_a_letter_that_cannot_be_read_for_a_fault_of_ours_is_kept_as_it_is(app, monkeypatch):
    from leveret.dead_letters import keeper

    def broken(*_, **__):
        raise RuntimeError("a fault of ours")

    async with RunningApp(app) as t:
        await t.clock.advance(1)
        monkeypatch.setattr(keeper, "read", broken)
        await t.send("shop.events.dlq", b"odd", message_id="odd", type="order")
        await t.clock.advance(5)
        [letter] = t.data.letters.values()
        assert (letter.body, letter.message_id, letter.ending) == (b"odd", "odd", "foreign")
        assert "a fault of ours" in letter.reason
