from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
from tests.unit.running_app import FailingStore, RunningApp

from leveret import Leveret, SoftFailure
from leveret.core import envelope
from leveret.core import headers as h
from leveret.core.errors import StoreRefused, StoreUnavailable
from leveret.core.message import Outgoing, retry_key
from leveret.core.properties import Properties
from leveret.core.retry_entry import Due, Lane, RetryEntry
from leveret.ports import Grant
from leveret.retry import MemoryRetryLease
from leveret.retry.lines import MOST_OF_ONE_QUEUE, MOST_WAITING
from leveret.retry.schedule import Schedule
from leveret.stores.memory import MemoryStore


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


def entry(name: str = "a", *, wait: float = 0.0, queue: str = "shop.charge", **more) -> RetryEntry:
    defaults = {
        "namespace": "shop", "key": retry_key(queue, name), "queue": queue, "worker": "charge", "retry_id": name,
        "message_id": name, "attempt": 1, "failure": 1, "wait": wait, "body": name.encode(),
        "properties": Properties.build(message_id=name, headers={h.RETRY_ID: name}).raw,
    }  # fmt: skip
    return RetryEntry(**(defaults | more))


def takes_held(t: RunningApp) -> asyncio.Event:
    """Until this is set, the store hands out nothing that is due."""
    go_on = asyncio.Event()

    async def held(name, *_) -> None:
        if name == "take":
            await go_on.wait()

    t.store.before = held
    return go_on


async def stored(t: RunningApp, *entries: RetryEntry) -> None:
    """What an earlier process has left in the store."""
    store = MemoryStore(clock=t.clock, data=t.data)
    await store.open()
    await store.put(entries)


async def test_a_store_that_answers_late_makes_nothing_go_early(app, runs):
    t = RunningApp(app)
    await stored(t, entry(wait=8))

    async def slow(name, *_) -> None:
        if name == "upcoming":
            await t.clock.sleep(5)

    t.store.before = slow
    async with t:
        await t.clock.advance(7.9)
        assert runs == []
        await t.clock.advance(6)
        assert runs == [b"a"]


async def test_what_was_published_does_not_go_again_where_the_store_is_away_before_it_could_be_removed(
    app, runs
):
    t = RunningApp(app)
    await stored(t, entry("one", wait=1), entry("two", wait=1))

    async def go_away(name, *_) -> None:
        if name == "remove":
            t.store.away = True

    t.store.before = go_away
    async with t:
        await t.clock.advance(10)
        assert sorted(runs) == [b"one", b"two"]
        t.store.before, t.store.away = None, False
        await t.clock.advance(70)
        assert sorted(runs) == [b"one", b"two"]
        assert t.data.retries == {}


async def test_a_store_that_is_away_for_longer_than_the_lease_makes_nothing_go_twice(app, runs):
    t = RunningApp(app)
    await stored(t, entry(wait=1))

    async def go_away(name, *_) -> None:
        if name == "remove":
            t.store.away = True

    plain = MemoryStore.lease

    def lease(name):
        kept = plain(t.store, name)
        renew = kept.acquire_or_renew

        async def acquire_or_renew(*arguments):
            await t.store.asked("shop", ())
            return await renew(*arguments)

        kept.acquire_or_renew = acquire_or_renew
        return kept

    t.store.lease = lease
    t.store.before = go_away
    async with t:
        await t.clock.advance(90)
        assert not t.runner.retry_service.working
        t.store.before, t.store.away = None, False
        await t.clock.advance(70)
        assert runs == [b"a"]
        assert t.data.retries == {}


async def test_a_batch_of_an_old_term_does_not_go_out_under_the_one_in_which_the_lease_was_taken_again(
    app, runs, monkeypatch
):
    t = RunningApp(app)
    await stored(t, entry(wait=1))
    async with t:
        t.broker.block()
        await t.clock.advance(2)
        assert t.runner.retry_service.dispatch.lines.under_way

        async def taken_again(lease, holder):
            # As after a stop: another one had it meanwhile, and the broker takes messages again in the same moment.
            t.broker.unblock()
            return Grant(lease.name, holder, term=3)

        monkeypatch.setattr(MemoryRetryLease, "grant", taken_again)
        await t.runner.retry_service.keeper.run_once()
        await t.clock.advance(0.5)
        assert runs == []


async def test_intake_goes_on_holding_its_envelopes_while_the_store_is_away(app):
    async with RunningApp(app) as t:
        t.store.away = True
        intake = t.runner.retry_service.intake
        assert intake is not None
        for _ in range(20):
            await t.clock.advance(0.5)
            assert t.runner.retry_service.intake is intake


async def test_a_cancelled_retry_is_dead_or_run_but_never_both(app, runs):
    t = RunningApp(app)
    await stored(t, entry(wait=10))
    async with t:
        await t.clock.advance(9)

        async def slow(name, *_) -> None:
            # It is due, and out, before it is buried; and buried before it is removed.
            if name in {"bury", "remove"}:
                await t.clock.sleep({"bury": 2, "remove": 3}[name])

        t.store.before = slow
        asking = asyncio.ensure_future(app.retries.cancel("a"))
        await t.clock.advance(30)
        await asking
        assert len(runs) + len(t.data.letters) == 1
        assert t.data.retries == {}


async def test_held_retries_of_one_id_are_each_cancelled(app):
    t = RunningApp(app)
    rows = [entry(queue=queue, state="held", wait=1000) for queue in ("shop.charge", "shop.mail")]
    await stored(t, *rows)
    async with t:
        await t.clock.advance(1)
        asking = asyncio.ensure_future(app.retries.cancel("a"))
        await t.clock.advance(1)
        report = await asking
        assert (report.asked, report.done, report.notes) == (2, 2, ())
        assert sorted(letter.queue for letter in t.data.letters.values()) == ["shop.charge", "shop.mail"]
        assert t.data.retries == {}


async def test_an_act_whose_holder_loses_the_lease_stays_written_for_the_next_one(app):
    t = RunningApp(app)
    await stored(t, entry(wait=1000))
    async with t:
        await t.clock.advance(1)

        async def take_over(name, *_) -> None:
            if name == "bury":
                row = t.data.leases["shop/retry"]
                row.holder, row.term, row.expires = "other", row.term + 1, t.clock.monotonic() + 5

        t.store.before = take_over
        asking = asyncio.ensure_future(app.retries.cancel("a"))
        await t.clock.advance(1)
        t.store.before = None
        await t.clock.advance(30)
        assert [letter.ending for letter in t.data.letters.values()] == ["cancelled"]
        await asking


async def test_a_broker_that_stops_while_a_queue_is_gone_does_not_end_the_work(app, caplog):
    t = RunningApp(app)
    await stored(t, entry(wait=1, queue="shop.gone"))
    async with t:
        await t.clock.advance(3)
        [(row, _)] = t.data.retries.values()
        assert row.state == "blocked"
        service = t.runner.retry_service
        dispatch = service.dispatch
        t.broker.stop()
        await t.clock.advance(40)
        assert service.dispatch is dispatch
        t.broker.start()
        t.broker.declare_queue("shop.gone")
        await t.clock.advance(400)
        assert t.ready("shop.gone") == 1


async def test_retries_go_out_while_others_fill_the_confirm_window(app, runs):
    t = RunningApp(app)
    async with t:
        transport = app._open.parts.transport
        t.broker.declare_queue("busy")
        stop = False

        async def publish_for_ever() -> None:
            while not stop:
                await transport.ready()
                await transport.send(Outgoing("", "busy", b"", Properties.build()))

        others = [asyncio.ensure_future(publish_for_ever()) for _ in range(1500)]
        await asyncio.sleep(0)
        await t.store.put([entry()])
        t.runner.retry_service.dispatch.rescan()
        for _ in range(200):
            await asyncio.sleep(0)
        stop = True
        assert runs == [b"a"]
        await asyncio.gather(*others)


@pytest.mark.parametrize(
    "properties", [b"", b"\xff", b"\xff\xff", b"\x20\x00\xff\xff\xff\xff", bytes(range(256))]
)
async def test_a_stored_entry_that_is_malformed_does_not_stop_the_rest(app, runs, properties):
    t = RunningApp(app)
    await stored(t, entry("bad", properties=properties), entry("far", queue="x" * 300), entry("good"))
    async with t:
        await t.clock.advance(5)
        assert b"good" in runs


async def test_a_queue_that_withholds_its_confirms_does_not_keep_other_retries_from_going(app, runs):
    t = RunningApp(app)
    async with t:
        t.broker.declare_queue("minority")

        def withhold(message, queues) -> None:
            if queues == ["minority"]:
                t.broker.lose_next_confirm()

        t.broker.on_publish.append(withhold)
        for number in range(6):
            await t.store.put([entry(f"m{number}", queue="minority"), entry(f"c{number}")])
            t.runner.retry_service.dispatch.rescan()
            await t.clock.advance(20)
        assert len(runs) == 6


@pytest.mark.parametrize("queues", [2, 6])
async def test_however_many_queues_withhold_their_confirms_retries_leave_room_in_the_window(
    app, runs, queues
):
    async with RunningApp(app) as t:
        minority = [f"minority {number}" for number in range(queues)]
        for queue in minority:
            t.broker.declare_queue(queue)

        def withhold(message, queues) -> None:
            if queues[0] in minority:
                t.broker.lose_next_confirm()

        t.broker.on_publish.append(withhold)
        for queue in minority:
            await t.store.put([entry(str(number), queue=queue) for number in range(MOST_OF_ONE_QUEUE + 200)])
        t.runner.retry_service.dispatch.rescan()
        for _ in range(6):
            await t.clock.advance(10)
            assert app._open.parts.transport.sendable
        # Nor do they take all that retries have; beyond two, what else is due waits for one of them.
        if queues == 2:
            await t.store.put([entry(str(number)) for number in range(100)])
            t.runner.retry_service.dispatch.rescan()
            await t.clock.advance(10)
            assert len(runs) == 100


async def test_what_trickles_to_a_queue_that_withholds_its_confirms_makes_others_late_for_seconds_only(
    app, runs
):
    async with RunningApp(app) as t:
        await t.clock.advance(1)
        t.broker.declare_queue("minority")

        def withhold(message, queues) -> None:
            if queues == ["minority"]:
                t.broker.lose_next_confirm()

        t.broker.on_publish.append(withhold)
        dispatch = t.runner.retry_service.dispatch
        for tenth in range(300):
            for one in (entry(f"m{tenth}", wait=1.0, queue="minority"), entry(f"{tenth}", wait=1.0)):
                await t.store.put([one])
                dispatch.add(Due(one.key, one.failure, 1.0, one.queue, lane=Lane.WRITTEN))
            await t.clock.advance(0.1)
            # It takes as long as one wait for an answer until the first silence is known.
            if tenth > 80:
                assert len(runs) >= tenth - 12
        assert len(runs) == len(set(runs))


async def test_while_the_answer_of_a_queue_is_awaited_not_all_is_quiet(app):
    async with RunningApp(app) as t:
        t.broker.declare_queue("minority")

        def withhold(message, queues) -> None:
            t.broker.lose_next_confirm()

        t.broker.on_publish.append(withhold)
        await t.store.put([entry(str(number), queue="minority") for number in range(MOST_OF_ONE_QUEUE + 1)])
        t.runner.retry_service.dispatch.rescan()
        for _ in range(20):
            await t.clock.advance(0.97)
            assert not t.runner.retry_service.quiet


async def test_envelopes_whose_time_passed_while_nobody_took_them_in_go_at_the_rate_of_what_is_overdue(
    app, runs
):
    t = RunningApp(app, knobs=lambda knobs: replace(knobs, overdue_rate=10.0))
    t.broker.declare_queue("shop.retry", {"x-queue-type": "classic"})
    t.broker.declare_queue("here")
    await t.outside.open()
    for number in range(40):
        body, properties = envelope.delayed(
            b"%d" % number, Properties.build(message_id=str(number)), exchange="", routing_key="here",
            retry_id=str(number), at=0.0, wait=None, due_at=t.clock.now() - 100 + number, where=envelope.Where(),
        )  # fmt: skip
        await t.outside.send(Outgoing("", "shop.retry", body, properties))
    async with t:
        await t.clock.advance(1.95)
        assert 18 <= t.ready("here") <= 22
        await t.clock.advance(3)
        assert [int(message.body) for message in t.broker.messages("here")] == list(range(40))


async def test_a_backlog_of_one_queue_is_looked_at_a_few_times_a_row_however_long_it_is(
    app, runs, monkeypatch
):
    looked_at = 0
    plain = Schedule.add

    def counted(*arguments, **more):
        nonlocal looked_at
        looked_at += 1
        return plain(*arguments, **more)

    monkeypatch.setattr(Schedule, "add", counted)
    rows = 10 * MOST_OF_ONE_QUEUE
    t = RunningApp(app)
    await stored(t, *(entry(str(number), wait=1) for number in range(rows)))
    async with t:
        await t.clock.advance(10)
        assert len(runs) == rows
    assert looked_at < 3 * rows


async def test_a_backlog_without_a_rate_is_read_no_faster_than_it_goes_and_holds_up_no_fresh_one(app, runs):
    t = RunningApp(app, knobs=lambda knobs: replace(knobs, overdue_rate=None))
    rows = MOST_WAITING + 3 * MOST_OF_ONE_QUEUE
    on_time = entry("on time", wait=2.5)
    await stored(t, on_time, *(entry(f"{number:05}", wait=number / 1000 - 100) for number in range(rows)))
    go_on = takes_held(t)
    async with t:
        await t.clock.advance(2)
        dispatch = t.runner.retry_service.dispatch
        in_memory = (
            sum(map(len, dispatch.lines._waiting.values()))
            + len(dispatch.lines.under_way)
            + len(dispatch.schedule)
        )
        assert in_memory <= MOST_WAITING + MOST_OF_ONE_QUEUE + 1
        fresh = entry("fresh", wait=1)
        await t.store.put([fresh])
        dispatch.add(Due(fresh.key, fresh.failure, 1.0, fresh.queue, lane=Lane.WRITTEN))
        await t.clock.advance(1.5)
        assert {fresh.key, on_time.key} <= dispatch.lines.under_way
        go_on.set()
        await t.clock.advance(60)
        assert len(runs) == rows + 2
        backlog = [body for body in runs if body.isdigit()]
        late = [abs(place - int(body)) for place, body in enumerate(backlog)]
        assert max(late) <= MOST_OF_ONE_QUEUE, "the oldest did not go first"


@pytest.mark.parametrize("writer", ["this process", "a standby"])
async def test_thousands_that_are_due_in_one_second_go_oldest_first_and_hold_up_no_fresh_one(
    app, runs, monkeypatch, writer
):
    monkeypatch.setattr(FailingStore, "shared", writer == "a standby")
    t = RunningApp(app, knobs=lambda knobs: replace(knobs, overdue_rate=None))
    rows = MOST_WAITING + 3 * MOST_OF_ONE_QUEUE
    await stored(t, *(entry(f"{number:05}", wait=2 + number / rows) for number in range(rows)))

    async def slow(name, *_) -> None:
        if name == "take":
            await t.clock.sleep(0.2)

    t.store.before = slow
    async with t:
        # Some 3 000 go out in a second, so that the last ones are late by three.
        await t.clock.advance(4)
        assert len(runs) < rows * 2 / 3
        fresh = entry("fresh", wait=1)
        await t.store.put([fresh])
        if writer == "this process":
            t.runner.retry_service.dispatch.add(
                Due(fresh.key, fresh.failure, 1.0, fresh.queue, lane=Lane.WRITTEN)
            )
        await t.clock.advance(1.5)
        assert len(runs) < rows
        assert b"fresh" in runs
        runs.remove(b"fresh")
        await t.clock.advance(10)
        assert len(runs) == rows
    passed = [abs(int(body) - place) for place, body in enumerate(runs)]
    assert max(passed) <= 2 * MOST_OF_ONE_QUEUE, "the oldest did not go first"


async def test_an_answer_that_never_came_moves_no_later_failure_of_the_same_message(runs):
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None:
        runs.append(body)
        if len(runs) == 1:
            raise SoftFailure("again", retry_after=10)

    t = RunningApp(app)
    async with t:

        def withhold(message, queues) -> None:
            if queues == ["shop.charge"]:
                t.broker.lose_next_confirm()

        t.broker.on_publish.append(withhold)
        headers = {h.RETRY_ID: "a", h.FAILURE: 1}
        await t.store.put([entry(properties=Properties.build(message_id="a", headers=headers).raw)])
        t.runner.retry_service.dispatch.rescan()
        # It failed again at once, and what is waited for is the answer to its first failure.
        await t.clock.advance(9.5)
        assert len(runs) == 1
        await t.clock.advance(1)
        assert len(runs) == 2


async def test_what_did_not_stay_in_the_schedule_goes_within_half_a_minute_also_under_a_load_without_an_end(
    app, runs, monkeypatch
):
    monkeypatch.setattr("leveret.retry.dispatch.Schedule", partial(Schedule, capacity=50))
    t = RunningApp(app)
    await stored(t, *(entry(str(number), wait=number) for number in range(120)))
    async with t:
        await t.clock.advance(1)
        # Not told to the dispatcher: as if it had been left out where more was written than the schedule keeps.
        await t.store.put([entry("left out", wait=1)])
        await t.clock.advance(32)
        assert t.runner.retry_service.dispatch.schedule.refilling() is not None, "all of it was loaded"
        assert b"left out" in runs


async def test_what_standbys_write_faster_than_it_goes_out_is_left_to_the_store(app, runs, monkeypatch):
    monkeypatch.setattr(FailingStore, "shared", True)
    monkeypatch.setattr("leveret.retry.lines.MOST_WAITING", 200)
    t = RunningApp(app, knobs=lambda knobs: replace(knobs, overdue_rate=None))
    go_on = takes_held(t)
    async with t:
        await t.clock.advance(1)
        dispatch = t.runner.retry_service.dispatch
        rows = 0
        for many in (MOST_OF_ONE_QUEUE, *[100] * 20):
            await t.store.put([entry(str(rows + number), wait=0.8) for number in range(many)])
            rows += many
            await t.clock.advance(1)
        assert sum(map(len, dispatch.lines._waiting.values())) + len(dispatch.schedule) <= len(Lane) * 200
        go_on.set()
        await t.clock.advance(10)
        assert len(runs) == rows


async def test_more_than_may_wait_for_one_slow_queue_holds_up_no_other_and_all_of_it_goes(
    app, runs, monkeypatch
):
    monkeypatch.setattr("leveret.retry.lines.MOST_WAITING", 100)
    t = RunningApp(app)
    async with t:
        await t.clock.advance(1)
        t.broker.declare_queue("slow")
        go_on = asyncio.Event()

        async def held(name, *arguments) -> None:
            if name == "take" and any(key.startswith("slow") for key, _ in arguments[1]):
                await go_on.wait()

        t.store.before = held
        dispatch = t.runner.retry_service.dispatch

        async def write(*entries: RetryEntry) -> None:
            await t.store.put(entries)
            for one in entries:
                dispatch.add(Due(one.key, one.failure, one.wait, one.queue, lane=Lane.WRITTEN))

        rows = MOST_OF_ONE_QUEUE + 300
        await write(*(entry(str(number), wait=1.0, queue="slow") for number in range(rows)))
        await write(entry("other", wait=2.0))
        await t.clock.advance(2.1)
        assert runs == [b"other"]
        assert t.ready("slow") == 0
        go_on.set()
        await t.clock.advance(10)
        assert t.ready("slow") == rows


async def test_where_all_lanes_bring_more_to_a_queue_than_it_takes_each_goes_on(app, runs):
    t = RunningApp(app, knobs=lambda knobs: replace(knobs, overdue_rate=None))
    await stored(
        t,
        *(entry(f"overdue {number}", wait=-100) for number in range(8 * MOST_OF_ONE_QUEUE)),
        *(entry(f"loaded {number}", wait=1) for number in range(3 * MOST_OF_ONE_QUEUE)),
    )

    async def slow(name, *_) -> None:
        if name == "take":
            await t.clock.sleep(0.2)

    t.store.before = slow
    async with t:
        dispatch = t.runner.retry_service.dispatch
        written = [entry(f"written {number}", wait=1) for number in range(3 * MOST_OF_ONE_QUEUE)]
        await t.store.put(written)
        for one in written:
            dispatch.add(Due(one.key, one.failure, 1.0, one.queue, lane=Lane.WRITTEN))
        await t.clock.advance(1.3)
        before = Counter(body.split()[0] for body in runs)
        await t.clock.advance(0.6)
        went = Counter(body.split()[0] for body in runs) - before
        assert len(dispatch.lines._waiting) == 3, "one of them was done"
        assert min(went[lane] for lane in (b"overdue", b"loaded", b"written")) >= 200
        assert max(went, key=went.__getitem__) == b"written"


async def test_a_refill_does_not_bring_what_waits_for_a_slow_queue_once_more(app, runs):
    t = RunningApp(app)
    await stored(t, *(entry(f"other {number}", wait=number + 0.5) for number in range(1, 30)))

    async def slow(name, *arguments) -> None:
        if name == "take" and any(key.startswith("slow") for key, _ in arguments[1]):
            await t.clock.sleep(3)

    t.store.before = slow
    async with t:
        await t.clock.advance(1)
        t.broker.declare_queue("slow")
        rows = [entry(str(number), wait=1.0, queue="slow") for number in range(2 * MOST_WAITING)]
        await t.store.put(rows)
        for one in rows:
            t.runner.retry_service.dispatch.add(Due(one.key, one.failure, 1.0, one.queue, lane=Lane.WRITTEN))
        await t.clock.advance(29)
        assert len(runs) == 29
        await t.clock.advance(100)
        assert t.ready("slow") == len({message.body for message in t.broker.messages("slow")}) == len(rows)


async def test_a_retry_that_waits_for_room_and_is_put_off_by_hand_does_not_go_before(app, runs):
    t = RunningApp(app)
    async with t:
        await t.clock.advance(1)
        go_on = takes_held(t)
        dispatch = t.runner.retry_service.dispatch
        rows = [entry(str(number), wait=1.0) for number in range(MOST_OF_ONE_QUEUE)] + [
            entry("put off", wait=1.5)
        ]
        await t.store.put(rows)
        for one in rows:
            dispatch.add(Due(one.key, one.failure, one.wait, one.queue, lane=Lane.WRITTEN))
        await t.clock.advance(2)
        assert any("shop.charge:put off" in waiting for waiting in dispatch.lines._waiting.values())
        asking = asyncio.ensure_future(app.retries.reschedule("put off", after=3600))
        await t.clock.advance(2)
        assert (await asking).done == 1
        go_on.set()
        await t.clock.advance(60)
        assert b"put off" not in runs


@pytest.fixture
async def blocked(app):
    """Three that have been blocked for so long that each waits for minutes, since their queue is gone."""
    t = RunningApp(app)
    await stored(t, *[entry(name, wait=1, queue="shop.gone") for name in "abc"])
    async with t:
        await t.clock.advance(300)
        assert [row.state for row, _ in t.data.retries.values()] == ["blocked"] * 3
        yield t


def no_unblock(t: RunningApp, error: Exception) -> list[float]:
    """Lets `unblock` fail from now on; when it was tried."""
    tried = []

    async def before(name, *_) -> None:
        if name == "unblock":
            tried.append(t.clock.monotonic())
            raise error

    t.store.before = before
    return tried


def an_hour_later(t: RunningApp) -> None:
    """Lets what is blocked wait for an hour more by itself."""
    for row, try_at in list(t.data.retries.values()):
        if row.state == "blocked":
            t.data.place(row, try_at + 3600)
    t.runner.retry_service.dispatch.rescan()


@pytest.mark.parametrize("error", [StoreUnavailable("57014: too long"), StoreRefused("not this one")])
async def test_a_queue_that_is_back_is_so_though_its_blocked_rows_cannot_be_released(blocked, error):
    t = blocked
    tried = no_unblock(t, error)
    t.broker.declare_queue("shop.gone")
    await t.clock.advance(600)
    # Each has gone at its own time.
    assert t.ready("shop.gone") == 3
    assert t.data.retries == {}
    assert ("retry_republish_failed", "shop.gone") not in t.alarms.holding
    assert len(tried) > 5


async def test_blocked_rows_are_released_as_soon_as_the_store_does_it(blocked):
    t = blocked
    tried = no_unblock(t, StoreUnavailable("57014: too long"))
    an_hour_later(t)
    t.broker.declare_queue("shop.gone")
    while not tried:
        await t.clock.advance(1)
    await t.clock.advance(10)
    assert t.ready("shop.gone") == 0
    assert ("retry_store_unavailable", "shop") in t.alarms.holding
    t.store.before = None
    await t.clock.advance(30)
    assert t.ready("shop.gone") == 3
    assert t.alarms.holding == set()
    assert len(tried) == 4


async def test_a_queue_that_goes_once_more_before_its_rows_are_released_is_looked_for_again(blocked):
    t = blocked
    tried = no_unblock(t, StoreUnavailable("57014: too long"))
    an_hour_later(t)
    t.broker.declare_queue("shop.gone")
    while not tried:
        await t.clock.advance(1)
    t.broker.delete_queue("shop.gone")
    await t.store.put([entry("d", queue="shop.gone")])
    t.runner.retry_service.dispatch.rescan()
    await t.clock.advance(60)
    asked = len(tried)
    await t.clock.advance(600)
    assert len(tried) == asked
    assert sorted(row.state for row, _ in t.data.retries.values()) == ["blocked"] * 4
    t.store.before = None
    t.broker.declare_queue("shop.gone")
    await t.clock.advance(300)
    assert t.ready("shop.gone") == 4
    assert t.alarms.holding == set()
