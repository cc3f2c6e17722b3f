from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.unit.running_app import RunningApp

from leveret import HardFailure, Leveret
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import StoreUnavailable
from leveret.core.properties import Properties
from leveret.stores.memory import MemoryStore


@pytest.fixture
def runs():
    return []


@pytest.fixture
def takes():
    """How long a run takes, as something to await; at first no time."""
    return [lambda _: asyncio.sleep(0)]


@pytest.fixture
def app(runs, takes):
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None:
        runs.append(body)
        await takes[-1](0.01)
        raise HardFailure("hopeless")

    @app.worker
    async def ship(body: bytes) -> None:
        runs.append(body)

    return app


def letter(name: str, *, queue: str = "shop.ship", **more) -> DeadLetter:
    defaults = {
        "namespace": "shop", "id": name, "message_id": name, "queue": queue, "worker": queue.split(".")[1],
        "reason": "hopeless", "body": name.encode(), "died_at": 1.0,
        "properties": Properties.build(message_id=name).raw,
    }  # fmt: skip
    return DeadLetter(**(defaults | more))


async def lie_there(t: RunningApp, *letters: DeadLetter) -> None:
    store = MemoryStore(clock=t.clock, data=t.data)
    await store.open()
    await store.keep(letters)


async def replayed(t: RunningApp, seconds: float = 60, **words):
    asking = asyncio.ensure_future(t.app.dead_letters.replay(**words))
    await t.clock.advance(seconds)
    return await asking


async def test_a_replay_ends_where_what_it_replays_dies_again_at_once(app, runs):
    t = RunningApp(app)
    await lie_there(t, letter("a", queue="shop.charge"), letter("b", queue="shop.charge"))
    async with t:
        report = await replayed(t, reason="hopeless")
        assert report.finished
        assert (report.asked, report.done) == (2, 2)
        assert sorted(runs) == [b"a", b"b"]
        states = sorted((letter.state, letter.body) for letter in t.data.letters.values())
        assert states == [("dead", b"a"), ("dead", b"b"), ("replayed", b"a"), ("replayed", b"b")]


async def test_a_replay_that_another_process_takes_over_leaves_alone_what_it_saw_die_again(app, runs, takes):
    t = RunningApp(app)
    takes.append(t.clock.sleep)
    names = [f"{number:02}" for number in range(10)]
    await lie_there(t, *(letter(name, queue="shop.charge") for name in names))
    async with t:
        asking = asyncio.ensure_future(app.dead_letters.replay(reason="hopeless", rate=1))
        await t.clock.advance(4.5)
        # The lease goes to somebody else for a moment.
        row = t.data.leases["shop/keeper"]
        row.holder, row.term, row.expires = "other", row.term + 1, t.clock.monotonic() + 2
        await t.clock.advance(120)
        await asking
        assert all(act.report.finished for act in t.data.acts.values())
        assert sorted(runs) == [name.encode() for name in names]


async def test_no_letter_stays_claimed_where_a_replay_ends_because_another_one_failed(app):
    t = RunningApp(app)
    await lie_there(t, letter("a", queue="shop.gone"), letter("b"))
    async with t:
        await t.clock.advance(1)

        def withhold(message, queues) -> None:
            if queues == ["shop.ship"]:
                t.broker.lose_next_confirm()

        t.broker.on_publish.append(withhold)
        asking = asyncio.ensure_future(app.dead_letters.replay(reason="hopeless"))
        await t.clock.advance(1)
        t.broker.drop_connections()
        await t.clock.advance(30)
        await asking
        assert all(act.report.finished for act in t.data.acts.values())
        assert {letter.id: letter.state for letter in t.data.letters.values()} == {"a": "dead", "b": "dead"}
        assert "may" in t.data.letters["shop", "b"].replays[-1].outcome


async def test_a_letter_that_the_store_does_not_have_whole_is_told_and_the_others_are_replayed(
    app, runs, monkeypatch
):
    t = RunningApp(app)
    await lie_there(t, letter("a"), letter("b"))
    claim = t.store.claim

    async def losing(*asked, **more):
        return [replace(each, body=None) if each.id == "a" else each for each in await claim(*asked, **more)]

    monkeypatch.setattr(t.store, "claim", losing)
    async with t:
        report = await replayed(t, reason="hopeless")
        assert (report.finished, report.asked, report.done) == (True, 2, 1)
        (note,) = report.notes
        assert "1 could not be published and lie there as before" in note
        assert "the store does not have all of its body; `leveret dead show a` says what is missing" in note
        assert {each.id: each.state for each in t.data.letters.values()} == {"a": "dead", "b": "replayed"}
        assert runs == [b"b"]


async def test_no_letter_stays_claimed_where_one_of_its_window_cannot_be_written(app, runs, monkeypatch):
    from leveret.core.errors import BadPayload
    from leveret.dead_letters import replay

    plain = replay.outgoing

    def broken(letter, **options):
        if letter.id == "a":
            raise BadPayload("this one cannot be written")
        return plain(letter, **options)

    monkeypatch.setattr(replay, "outgoing", broken)
    t = RunningApp(app)
    await lie_there(t, letter("a"), letter("b"))
    async with t:
        report = await replayed(t, reason="hopeless")
        assert {letter.id: letter.state for letter in t.data.letters.values()} == {
            "a": "dead",
            "b": "replayed",
        }
        assert report.done == 1
        assert any("this one cannot be written" in note for note in report.notes)
        assert runs == [b"b"]


async def test_no_letter_stays_claimed_where_a_replay_is_resumed_only_to_stop(app):
    t = RunningApp(app)
    names = [f"{number:02}" for number in range(4)]
    await lie_there(t, *(letter(name, queue="shop.charge") for name in names))
    async with t:
        await t.clock.advance(1)

        async def take_over(name, *arguments) -> None:
            if (
                name == "replayed"
                and sum(letter.state == "replayed" for letter in t.data.letters.values()) == 2
            ):
                row = t.data.leases["shop/keeper"]
                row.holder, row.term, row.expires = "other", row.term + 1, t.clock.monotonic() + 2
                t.store.before = None
                await asyncio.get_running_loop().create_future()

        t.store.before = take_over
        asking = asyncio.ensure_future(app.dead_letters.replay(reason="hopeless", rate=1, stop_after=2))
        await t.clock.advance(120)
        await asking
        assert all(act.report.finished for act in t.data.acts.values())
        assert [letter.id for letter in t.data.letters.values() if letter.state == "claimed"] == []


async def test_a_replay_goes_on_where_the_store_was_away_for_a_while(app, runs):
    t = RunningApp(app)
    names = [f"{number:02}" for number in range(6)]
    await lie_there(t, *(letter(name) for name in names))
    async with t:
        await t.clock.advance(1)
        asking = asyncio.ensure_future(app.dead_letters.replay(reason="hopeless", rate=1))
        await t.clock.advance(2.5)
        t.store.away = True
        await t.clock.advance(5)
        t.store.away = False
        await t.clock.advance(60)
        await asking
        assert all(act.report.finished for act in t.data.acts.values())
        assert sorted(runs) == [name.encode() for name in names]


async def test_requests_are_left_out_of_a_group_replay_and_counted(app, runs):
    t = RunningApp(app)
    await lie_there(t, letter("a"), letter("b", rpc=True), letter("c", rpc=True))
    async with t:
        report = await replayed(t, reason="hopeless")
        assert (report.asked, report.done) == (1, 1)
        assert report.notes[0].startswith("2 RPC requests left out")
        assert runs == [b"a"]
        report = await replayed(t, reason="nothing of the kind")
        assert report.notes == ()


async def test_a_replay_that_the_store_never_answers_for_keeps_no_other_from_being_done(app, runs):
    t = RunningApp(app)
    await lie_there(t, letter("one"), letter("two"))
    async with t:

        async def before(name, *arguments) -> None:
            if name == "claim" and "one" in arguments[0].ids:
                raise StoreUnavailable("57014: too long")

        t.store.before = before
        first, second = (asyncio.ensure_future(app.dead_letters.replay([id])) for id in ("one", "two"))
        await t.clock.advance(60)
        assert (await second).done == 1
        assert runs == [b"two"]
        assert t.runner.keeper.quiet
        t.store.before = None
        await t.clock.advance(60)
        await first
        assert runs == [b"two", b"one"]
        assert await t.store.asked("shop", ["dead.replay"]) == []
