"""What retry intake and keeper have in common: one queue into the store, batch by batch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.core import headers as h
from leveret.core.errors import StoreRefused, StoreUnavailable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.pipeline import batches
from leveret.pipeline.batches import BatchConsumer
from leveret.retry.service import TermService
from leveret.testing.fake_clock import idle


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: its queue, and the store's call for a batch."""

    queue: str
    call: str

    def service(self, t: RunningApp) -> TermService:
        return t.runner.retry_service if self.call == "put" else t.runner.keeper

    def intake(self, t: RunningApp) -> BatchConsumer:
        return self.service(t).intake

    def stored(self, t: RunningApp) -> list[bytes]:
        if self.call == "put":
            return sorted(entry.body for entry, _ in t.data.retries.values())
        return sorted(letter.body for letter in t.data.letters.values() if letter.ending != "malformed")

    async def send(self, t: RunningApp, *bodies: bytes) -> None:
        """Send these in one turn, so that they arrive as one batch."""
        for body in bodies:
            name = body.decode()
            headers = {
                h.ENVELOPE: h.SOFT_FAILURE, h.RETRY_ID: name, h.QUEUE: "shop.charge", h.ATTEMPT: 2, h.FAILURE: 1,
                h.RETRY_AFTER: 86_400.0,
            } if self.call == "put" else {}  # fmt: skip
            t.outside.send(Outgoing("", self.queue, body, Properties.build(message_id=name, headers=headers)))
        await idle()


SIDES = {
    "intake": Side(queue="shop.retry", call="put"),
    "keeper": Side(queue="shop.events.dlq", call="keep"),
}


@pytest.fixture(params=SIDES.values(), ids=SIDES.keys())
def side(request) -> Side:
    return request.param


@pytest.fixture
async def t():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None: ...

    async with RunningApp(app) as running:
        await running.clock.advance(1)
        yield running


async def test_a_batch_is_one_transaction_and_acked_after_it(t, side):
    unsettled_then = []

    async def look(name, *arguments) -> None:
        if name == side.call:
            unsettled_then.append((len(arguments[0]), t.unsettled(side.queue)))

    t.store.before = look
    await side.send(t, b"a", b"b", b"c")
    assert unsettled_then == [(3, 3)]
    assert side.stored(t) == [b"a", b"b", b"c"]
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (0, 0)
    assert side.intake(t).in_hand == 0


async def test_of_a_batch_that_the_store_refuses_all_but_the_culprit_are_stored(t, side):
    sizes = []

    async def refuse(name, *arguments) -> None:
        if name == side.call:
            sizes.append(len(arguments[0]))
            if any(entry.body == b"bad" for entry in arguments[0]):
                raise StoreRefused("not this one")

    t.store.before = refuse
    await side.send(t, b"a", b"b", b"bad", b"c", b"d")
    assert side.stored(t) == [b"a", b"b", b"c", b"d"]
    # Halved: 5 = 2 + 3, and the three, which begin with the culprit, 1 + 2.
    assert sizes[:3] == [5, 2, 3]
    assert sorted(sizes[3:5]) in ([1, 1], [1, 2])


async def test_while_the_store_is_away_all_stays_unacked_and_an_alarm_says_so(t, side):
    t.store.away = True
    await side.send(t, b"a", b"b")
    # Less than the lease takes to be renewed: it has its own way to the store, and would say that it is back.
    await t.clock.advance(5)
    assert t.unsettled(side.queue) == 2
    assert side.intake(t).in_hand == 2
    assert ("retry_store_unavailable", "shop") in t.alarms.holding
    t.store.away = False
    await t.clock.advance(3)
    assert side.stored(t) == [b"a", b"b"]
    assert t.unsettled(side.queue) == 0
    assert t.alarms.holding == set()


async def test_a_stop_while_the_store_is_away_gives_everything_back(t, side):
    t.store.away = True
    await side.send(t, b"a", b"b")
    stopping = asyncio.ensure_future(side.service(t).stop())
    await t.clock.advance(10)
    await stopping
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (2, 0)
    assert side.stored(t) == []


async def test_a_stop_waits_for_the_batch_in_hand_and_gives_back_what_came_after_it(t, side):
    go_on = asyncio.Event()

    async def wait(name, *_) -> None:
        if name == side.call:
            await go_on.wait()

    t.store.before = wait
    await side.send(t, b"a", b"b")
    await side.send(t, b"late")
    stopping = asyncio.ensure_future(side.service(t).stop())
    await idle()
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (1, 2)
    go_on.set()
    await stopping
    assert side.stored(t) == [b"a", b"b"]
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (1, 0)


async def test_a_lease_that_goes_gives_back_the_batch_in_hand_and_what_came_after_it(t, side):
    t.store.away = True
    await side.send(t, b"a", b"b")
    await side.send(t, b"c")
    assert t.unsettled(side.queue) == 3
    side.service(t)._lost("test")
    await idle()
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (3, 0)


async def test_what_is_being_stored_when_a_lease_goes_is_acked_and_does_not_come_again(t, side):
    go_on = asyncio.Event()

    async def wait(name, *_) -> None:
        if name == side.call:
            await go_on.wait()

    t.store.before = wait
    await side.send(t, b"a", b"b")
    await side.send(t, b"late")
    side.service(t)._lost("test")
    await idle()
    # The store may have them already, and the next holder would publish them.
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (0, 3)
    go_on.set()
    await idle()
    assert side.stored(t) == [b"a", b"b"]
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (1, 0)


async def test_what_could_not_be_stored_when_a_lease_goes_is_given_back(t, side):
    go_on = asyncio.Event()

    async def fail(name, *_) -> None:
        if name == side.call:
            await go_on.wait()
            raise StoreUnavailable("the store is away")

    t.store.before = fail
    await side.send(t, b"a", b"b")
    side.service(t)._lost("test")
    await idle()
    go_on.set()
    await idle()
    assert side.stored(t) == []
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (2, 0)


async def test_what_comes_while_a_stop_takes_leave_of_the_broker_goes_back_unstored(t, side):
    intake = side.intake(t)
    plain = intake._subscription.cancel

    async def late() -> None:
        await side.send(t, b"late")
        await plain()

    intake._subscription.cancel = late
    await intake.finish()
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (1, 0)
    assert intake.in_hand == 0
    assert side.stored(t) == []
    intake._subscription.cancel = plain


async def test_what_the_broker_has_back_is_not_stored_any_more(t, side):
    go_on = asyncio.Event()

    async def wait(name, *_) -> None:
        if name == side.call:
            await go_on.wait()

    t.store.before = wait
    await side.send(t, b"a")
    await side.send(t, b"b")
    t.broker.stop()
    go_on.set()
    await t.clock.advance(1)
    assert side.stored(t) == [b"a"]
    assert side.intake(t).in_hand == 0
    t.broker.start()
    await t.clock.advance(1)
    assert b"b" in side.stored(t)
    assert t.unsettled(side.queue) == 0


async def test_what_went_stale_while_the_store_was_away_is_stored_once_and_never_piles_up(t, side):
    t.store.away = True
    bodies = [b"%d" % number for number in range(10)]
    await side.send(t, *bodies)
    for _ in range(20):
        t.broker.drop_connections()
        await idle()
        assert side.intake(t).consuming
    # The batch that waits for the store, and what the last connection brought.
    assert side.intake(t).in_hand <= 20
    written = []

    async def count(name, *arguments) -> None:
        if name == side.call:
            written.extend(arguments[0])

    t.store.away, t.store.before = False, count
    await t.clock.advance(60)
    assert side.stored(t) == bodies
    assert len(written) == 10
    assert t.unsettled(side.queue) == 0


async def test_a_fault_of_ours_gives_the_batch_back_and_it_is_stored_a_second_later(t, side):
    broken = True

    async def fail(name, *_) -> None:
        if name == side.call and broken:
            raise RuntimeError("a fault of ours")

    t.store.before = fail
    await side.send(t, b"a", b"b")
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (2, 0)
    broken = False
    await t.clock.advance(2)
    assert side.stored(t) == [b"a", b"b"]
    assert t.unsettled(side.queue) == 0


async def test_one_set_aside_whose_task_fails_is_in_hand_until_the_end_and_then_back_in_its_queue(
    t, side, caplog
):
    async def fail() -> None:
        raise RuntimeError("a fault of ours")

    intake = side.intake(t)
    plain = intake.read

    def read(delivery):
        if delivery.body != b"odd":
            return plain(delivery)
        intake.set_aside(delivery, fail())
        return None

    intake.read = read
    await side.send(t, b"odd", b"a")
    await side.send(t, b"b")
    assert side.stored(t) == [b"a", b"b"]
    assert t.unsettled(side.queue) == 1
    [told] = [r for r in caplog.records if getattr(r, "action", "") == "held"]
    assert (
        told.getMessage()
        == f"a message of {side.queue} could not be dealt with; it stays unacked until we stop"
    )
    await side.service(t).stop()
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (1, 0)


async def test_what_comes_after_a_stop_has_begun_stays_in_its_queue(t, side):
    await side.intake(t).finish()
    await side.send(t, b"late")
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (1, 0)
    assert side.stored(t) == []


async def test_a_batch_ends_where_its_bodies_are_many_bytes_and_a_larger_one_goes_alone(t, side, monkeypatch):
    monkeypatch.setattr(batches, "BATCH_BYTES", 8)
    bodies = []

    async def look(name, *arguments) -> None:
        if name == side.call:
            bodies.append([entry.body for entry in arguments[0]])

    t.store.before = look
    await side.send(t, b"aaa", b"bbbbb", b"c", b"more than eight", b"d", b"e")
    assert bodies == [[b"aaa", b"bbbbb"], [b"c"], [b"more than eight"], [b"d", b"e"]]
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (0, 0)


async def test_a_store_that_answers_for_few_at_once_gets_all_of_a_batch(t, side):
    sizes, acked = [], []

    async def answer_for_few(name, *arguments) -> None:
        if name == side.call:
            sizes.append(len(arguments[0]))
            acked.append(20 - t.unsettled(side.queue) == len(side.stored(t)))
            if len(arguments[0]) > 3:
                raise StoreUnavailable("it has not answered for 32 s")

    t.store.before = answer_for_few
    bodies = [b"%02d" % number for number in range(20)]
    await side.send(t, *bodies)
    await t.clock.advance(60)
    assert side.stored(t) == bodies
    assert all(acked)
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (0, 0)
    # What gets no answer is halved; what gets one is followed by twice as many.
    assert sizes[:6] == [20, 10, 5, 2, 4, 2]


async def test_a_batch_is_whole_again_once_the_store_has_answered_for_some(t, side):
    t.store.away = True
    await side.send(t, *[b"%03d" % number for number in range(600)])
    await t.clock.advance(100)
    t.store.away = False
    await t.clock.advance(30)
    assert len(side.stored(t)) == 600
    sizes = []

    async def count(name, *arguments) -> None:
        if name == side.call:
            sizes.append(len(arguments[0]))

    t.store.before = count
    await side.send(t, *[b"more %03d" % number for number in range(200)])
    assert sizes == [200]


async def test_of_a_batch_that_gets_no_answer_one_alone_is_tried_until_it_does(t, side):
    sizes = []
    t.store.away = True

    async def count(name, *arguments) -> None:
        if name == side.call:
            sizes.append(len(arguments[0]))

    t.store.before = count
    await side.send(t, *[b"%d" % number for number in range(9)])
    await t.clock.advance(20)
    assert sizes == [9, 4, 2, 1, 1]
    assert t.unsettled(side.queue) == 9
    t.store.away = False
    await t.clock.advance(30)
    assert sizes == [9, 4, 2, 1, 1, 1, 2, 4, 2]
    assert side.stored(t) == [b"%d" % number for number in range(9)]
    assert t.unsettled(side.queue) == 0


async def test_a_lease_that_goes_while_half_a_batch_is_being_stored_gives_back_the_other_half(t, side):
    go_on = asyncio.Event()

    async def wait(name, *arguments) -> None:
        if name == side.call:
            if len(arguments[0]) > 2:
                raise StoreUnavailable("it has not answered for 32 s")
            await go_on.wait()

    t.store.before = wait
    await side.send(t, b"a", b"b", b"c", b"d")
    await t.clock.advance(2)
    side.service(t)._lost("test")
    await idle()
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (0, 4)
    go_on.set()
    await idle()
    assert side.stored(t) == [b"a", b"b"]
    assert (t.ready(side.queue), t.unsettled(side.queue)) == (2, 0)


async def test_the_half_that_the_broker_has_back_by_then_is_not_stored(t, side):
    go_on = asyncio.Event()

    async def wait(name, *arguments) -> None:
        if name == side.call:
            if len(arguments[0]) > 2:
                raise StoreUnavailable("it has not answered for 32 s")
            await go_on.wait()

    t.store.before = wait
    await side.send(t, b"a", b"b", b"c", b"d")
    await t.clock.advance(2)
    t.broker.stop()
    go_on.set()
    await t.clock.advance(1)
    assert side.stored(t) == [b"a", b"b"]
    assert side.intake(t).in_hand == 0
    assert t.alarms.holding == set()
