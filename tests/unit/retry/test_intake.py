from __future__ import annotations

import asyncio

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.core import envelope
from leveret.core import headers as h
from leveret.core.errors import StoreUnavailable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.stores.memory import MemoryStore
from leveret.testing.fake_clock import idle


@pytest.fixture
def runs():
    return []


@pytest.fixture
def app(runs):
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None:
        runs.append(body)

    return app


def envelope_of(name: str, **more) -> dict:
    return {
        "message_id": name,
        "headers": {
            h.ENVELOPE: h.SOFT_FAILURE, h.RETRY_ID: name, h.QUEUE: "shop.charge", h.ATTEMPT: 2, h.FAILURE: 1,
            h.RETRY_AFTER: 3600.0, **more,
        },
    }  # fmt: skip


async def test_a_malformed_envelope_that_cannot_be_buried_yet_does_not_stop_the_others(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)

        transport = app._open.parts.transport
        plain = transport.send

        def send(out):
            if out.routing_key == "shop.events.dlq":
                t.broker.refuse_next()
            return plain(out)

        transport.send = send
        await t.send("shop.retry", b"bad", message_id="bad", headers={h.ENVELOPE: h.SOFT_FAILURE})
        await t.send("shop.retry", b"good", **envelope_of("good"))
        await t.clock.advance(5)
        assert [entry.message_id for entry, _ in t.data.retries.values()] == ["good"]
        assert t.unsettled("shop.retry") == 1
        assert not t.runner.retry_service.quiet
        transport.send = plain
        await t.clock.advance(60)
        assert [letter.ending for letter in t.data.letters.values()] == ["malformed"]
        assert t.unsettled("shop.retry") == 0
        assert t.runner.retry_service.quiet


async def test_a_malformed_envelope_of_a_wrapped_message_dies_with_the_message_as_it_was(app):
    original = Properties.build(message_id="m", headers={"wide": "x" * 1000})
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        headers = {h.ENVELOPE: h.SOFT_FAILURE, h.WRAPPED: len(original.raw)}
        await t.send("shop.retry", original.raw + b"order", message_id="m", headers=headers)
        await t.clock.advance(5)
        (letter,) = t.data.letters.values()
        assert (letter.ending, letter.body) == ("malformed", b"order")
        assert Properties(letter.properties).header("wide") == "x" * 1000


async def test_a_malformed_envelope_in_hand_goes_back_at_a_stop(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        transport = app._open.parts.transport
        plain = transport.send

        def send(out):
            t.broker.refuse_next()
            return plain(out)

        transport.send = send
        await t.send("shop.retry", b"bad", message_id="bad", headers={h.ENVELOPE: h.SOFT_FAILURE})
        assert t.unsettled("shop.retry") == 1
        stopping = asyncio.ensure_future(t.runner.retry_service.stop())
        await t.clock.advance(10)
        await stopping
        assert (t.ready("shop.retry"), t.unsettled("shop.retry")) == (1, 0)


async def test_a_stop_waits_until_a_malformed_envelope_is_a_dead_letter(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        transport = app._open.parts.transport
        plain = transport.send

        def refuse_once(out):
            transport.send = plain
            t.broker.refuse_next()
            return plain(out)

        transport.send = refuse_once
        await t.send("shop.retry", b"bad", message_id="bad", headers={h.ENVELOPE: h.SOFT_FAILURE})
        assert t.unsettled("shop.retry") == 1
        stopping = asyncio.ensure_future(t.runner.retry_service.stop())
        await t.clock.advance(2)
        await stopping
        assert (t.ready("shop.retry"), t.unsettled("shop.retry")) == (0, 0)
        assert [letter.ending for letter in t.data.letters.values()] == ["malformed"]


async def test_an_envelope_that_was_given_back_at_a_stop_is_not_stored_as_well(app):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        intake = t.runner.retry_service.intake
        plain = intake._arrived.set

        def stop_first() -> None:
            plain()
            stopping.append(asyncio.ensure_future(intake.finish()))
            # Between its arrival and the intake's next turn.
            intake._closing = True

        stopping = []
        intake._arrived.set = stop_first
        await t.send("shop.retry", b"late", **envelope_of("late"))
        await idle()
        await asyncio.gather(*stopping)
        assert t.ready("shop.retry") == 1
        assert t.data.retries == {}
        assert intake.in_hand == 0


async def test_an_envelope_that_cannot_be_read_for_a_fault_of_ours_is_a_dead_letter_and_stops_no_other(
    app, monkeypatch
):
    plain = envelope.read_retry

    def broken(body, *arguments, **options):
        if body == b"odd":
            raise RuntimeError("a fault of ours")
        return plain(body, *arguments, **options)

    async with RunningApp(app) as t:
        await t.clock.advance(1)
        monkeypatch.setattr(envelope, "read_retry", broken)
        await t.send("shop.retry", b"odd", **envelope_of("odd"))
        await t.send("shop.retry", b"good", **envelope_of("good"))
        await t.clock.advance(1)
        assert [entry.message_id for entry, _ in t.data.retries.values()] == ["good"]
        [letter] = t.data.letters.values()
        assert letter.ending == "malformed"
        assert "a fault of ours" in letter.reason
        assert t.unsettled("shop.retry") == 0


@pytest.mark.parametrize("shared", [False, True], ids=["a store of one host", "a store that hosts share"])
async def test_what_was_stored_and_told_as_a_timeout_runs_once_though_it_is_seen_before_it_is_put_again(
    app, runs, shared, monkeypatch
):
    monkeypatch.setattr(MemoryStore, "shared", shared)
    async with RunningApp(app) as t:
        await t.clock.advance(1)

        t.store.before = done_and_not_told(t)
        await t.send("shop.retry", b"one", **envelope_of("one", **{h.RETRY_AFTER: 1.0}))
        # Until long after each way of looking into the store has looked.
        await t.clock.advance(100)
        assert [entry.message_id for entry, _ in t.data.retries.values()] == ["one"]
        assert runs == []
        t.store.before = None
        await t.clock.advance(60)
        assert runs == [b"one"]
        assert t.data.retries == {}
        assert t.unsettled("shop.retry") == 0


def done_and_not_told(t: RunningApp):
    async def before(name, *arguments) -> None:
        if name == "put":
            await MemoryStore.put(t.store, *arguments)
            raise StoreUnavailable("no answer within 5 s")

    return before


async def test_what_was_stored_without_an_answer_and_is_sent_for_now_runs_once(app, runs):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        t.store.before = done_and_not_told(t)
        await t.send("shop.retry", b"one", **envelope_of("one"))
        await t.clock.advance(10)
        asking = asyncio.ensure_future(app.retries.now("one"))
        await t.clock.advance(10)
        assert (await asking).done == 1
        assert runs == []
        t.store.before = None
        await t.clock.advance(30)
        assert runs == [b"one"]
        await t.clock.advance(4000)
        assert runs == [b"one"]


@pytest.mark.parametrize("verb", ["cancel", "move"])
async def test_what_was_stored_without_an_answer_is_not_cancelled_or_moved_before_there_is_one(
    app, runs, verb
):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        t.store.before = done_and_not_told(t)
        await t.send("shop.retry", b"one", **envelope_of("one"))
        await t.clock.advance(10)
        act = app.retries.cancel("one") if verb == "cancel" else app.retries.move("one", to="elsewhere")
        asking = asyncio.ensure_future(act)
        await t.clock.advance(10)
        assert (await asking).notes == ("1 too early: being stored at this moment",)
        t.store.before = None
        await t.clock.advance(4000)
        assert (runs, t.data.letters) == ([b"one"], {})


@pytest.mark.parametrize("by", [-3600, 3600])
async def test_a_copy_of_an_envelope_after_a_jump_of_the_clock_moves_nothing(app, runs, by):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        await t.send("shop.retry", b"one", **envelope_of("one", **{h.RETRY_AFTER: 30.0}))
        await t.clock.advance(5)
        t.clock.jump(by)
        await t.send("shop.retry", b"one", **envelope_of("one", **{h.RETRY_AFTER: 30.0}))
        await t.clock.advance(24)
        assert runs == []
        await t.clock.advance(2)
        assert runs == [b"one"]


async def test_an_envelope_that_comes_once_more_leaves_the_time_of_what_waits(app, runs):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        await t.send("shop.retry", b"one", **envelope_of("one", **{h.RETRY_AFTER: 10.0}))
        await t.clock.advance(5)
        await t.send("shop.retry", b"one", **envelope_of("one", **{h.RETRY_AFTER: 10.0}))
        await t.clock.advance(4.9)
        assert runs == []
        await t.clock.advance(0.2)
        assert runs == [b"one"]


@pytest.mark.parametrize("shared", [False, True], ids=["a store of one host", "a store that hosts share"])
async def test_each_of_a_batch_that_is_halved_for_want_of_an_answer_goes_once_its_own_is_there(
    app, runs, shared, monkeypatch
):
    monkeypatch.setattr(MemoryStore, "shared", shared)
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        behind = True

        async def before(name, *arguments) -> None:
            if name == "put" and behind:
                names = [entry.message_id for entry in arguments[0]]
                if names == ["a", "b", "c", "d"]:
                    # All of it was done, though nothing tells so.
                    await MemoryStore.put(t.store, *arguments)
                if names != ["a", "b"]:
                    raise StoreUnavailable("no answer within 32 s")

        t.store.before = before
        for name in "abcd":
            envelope = envelope_of(name, **{h.RETRY_AFTER: 1.0})
            t.outside.send(Outgoing("", "shop.retry", name.encode(), Properties.build(**envelope)))
        await t.clock.advance(200)
        assert runs == [b"a", b"b"]
        assert sorted(entry.message_id for entry, _ in t.data.retries.values()) == ["c", "d"]
        assert t.unsettled("shop.retry") == 2
        behind = False
        await t.clock.advance(60)
        assert runs == [b"a", b"b", b"c", b"d"]
        assert t.data.retries == {}
        assert t.unsettled("shop.retry") == 0


async def test_one_that_comes_twice_in_a_batch_that_is_halved_runs_once(app, runs):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        behind = True

        async def before(name, *arguments) -> None:
            if name == "put" and behind:
                names = [entry.message_id for entry in arguments[0]]
                if len(names) == 4:
                    await MemoryStore.put(t.store, *arguments)
                if names != ["one", "b"]:
                    raise StoreUnavailable("no answer within 32 s")

        t.store.before = before
        for name in ("one", "b", "one", "d"):
            envelope = envelope_of(name, **{h.RETRY_AFTER: 1.0})
            t.outside.send(Outgoing("", "shop.retry", name.encode(), Properties.build(**envelope)))
        await t.clock.advance(200)
        # Gone out now, it would be stored once more with its twin.
        assert runs == [b"b"]
        behind = False
        await t.clock.advance(60)
        assert sorted(runs) == [b"b", b"d", b"one"]
        assert t.data.retries == {}


async def test_what_waits_already_and_comes_again_goes_on_time_while_the_rest_of_its_batch_has_no_answer(
    app, runs
):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        await t.send("shop.retry", b"one", **envelope_of("one", **{h.RETRY_AFTER: 60.0}))

        async def before(name, *arguments) -> None:
            if name == "put" and [entry.message_id for entry in arguments[0]] not in (["one"], ["b"]):
                raise StoreUnavailable("no answer within 32 s")

        t.store.before = before
        intake = t.runner.retry_service.intake
        intake._at_once = 1
        for name in ("one", "c", "d"):
            t.outside.send(Outgoing("", "shop.retry", name.encode(), Properties.build(**envelope_of(name))))
        await t.clock.advance(58)
        assert runs == []
        await t.clock.advance(2)
        assert runs == [b"one"]
        assert t.unsettled("shop.retry") == 2
