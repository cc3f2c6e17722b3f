"""C17: what was cancelled is not delivered when its time comes, and the report says whether the cancel was in time.

A second before it is due it is; while it is being published it is too late, and the report says so; afterwards nothing
waits under that name. By id or by words; for retries, and for messages whose first publish waits. Purging the queue
that a retry will go back to touches nothing that waits, since that lies in the store.
"""

from __future__ import annotations

import asyncio

import pytest

from leveret import ConfigError, Context, Leveret, Message, SoftFailure
from leveret.core import handover
from leveret.testing import TestLeveret

WAIT = 10


@pytest.fixture
def ran():
    return []


@pytest.fixture
def app(ran):
    app = Leveret("shop")

    @app.worker("order.*")
    async def charge(order: dict, ctx: Context) -> None:
        ran.append((ctx.message_id, ctx.attempt))
        if ctx.attempt == 1 and order.get("fail", True):
            raise SoftFailure(order.get("reason", "503"), retry_after=WAIT)

    return app


@pytest.mark.parametrize("kind", ["retry", "first publish"])
async def test_c17_a_second_before_it_is_due_it_is_in_time(app, ran, kind):
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {"id": 1}, delay=WAIT if kind == "first publish" else None)
        before = list(ran)
        await t.advance(seconds=WAIT - 1)
        report = await app.retries.cancel(id)
        assert (report.answered, report.finished, report.asked, report.done, report.notes) == (
            True,
            True,
            1,
            1,
            (),
        )
        await t.advance(hours=1)
        await t.crash()
        await t.advance(hours=1)
        assert ran == before
        [letter] = t.dead()
        assert (letter.message_id, letter.ending, letter.reason, letter.body) == (
            id, "cancelled", "cancelled", b'{"id":1}',
        )  # fmt: skip


async def test_c17_while_it_is_being_published_it_is_too_late_and_the_report_says_so(app, ran):
    go_on = asyncio.Event()

    async def hold(point: str, message_id: str | None) -> None:
        if point == handover.TAKEN_WHEN_DUE:
            await go_on.wait()

    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {})
        t.handover = hold
        await t.advance(seconds=WAIT)
        report = await app.retries.cancel(id)
        assert (report.asked, report.done) == (1, 0)
        assert report.notes == ("1 too late: being published at this moment",)
        go_on.set()
        await t.advance()
        assert ran == [(id, 1), (id, 2)]
        assert t.dead() == t.waiting() == []


async def test_c17_afterwards_nothing_waits_under_that_id(app, ran):
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {})
        await t.advance(seconds=WAIT)
        report = await app.retries.cancel(id)
        assert (report.answered, report.asked, report.done) == (True, 0, 0)
        assert ran == [(id, 1), (id, 2)]
        assert t.dead() == []


async def test_c17_a_cancel_that_comes_before_its_envelope_is_stored_finds_nothing_and_says_so(app, ran):
    go_on = asyncio.Event()

    async def hold(point: str, message_id: str | None) -> None:
        if point == handover.RETRY_RECEIVED:
            await go_on.wait()

    async with TestLeveret(app) as t:
        t.handover = hold
        id = await t.publish("order.placed", {})
        report = await app.retries.cancel(id)
        assert (report.asked, report.done) == (0, 0)
        go_on.set()
        await t.advance(seconds=WAIT)
        assert ran == [(id, 1), (id, 2)]


@pytest.mark.parametrize(
    ("words", "cancelled"),
    [
        ({"worker": "charge"}, "abcd"),
        ({"reason": "503"}, "ab"),
        ({"type": "order.changed"}, "bd"),
        ({"text": '"red"'}, "c"),
        ({"reason": "503", "type": "order.changed"}, "b"),
        ({"attempts": 2}, ""),
        ({"worker": "nobody"}, ""),
    ],
    ids=str,
)
async def test_c17_words_say_which_are_cancelled_and_the_others_come(app, ran, words, cancelled):
    cancelled = set(cancelled)
    async with TestLeveret(app) as t:
        await app.publish_many([
            Message("order.placed", {"reason": "503"}, id="a"),
            Message("order.changed", {"reason": "503"}, id="b"),
            Message("order.placed", {"reason": "no answer", "colour": "red"}, id="c"),
            Message("order.changed", {"reason": "no answer"}, id="d"),
        ])  # fmt: skip
        await t.advance()
        report = await app.retries.cancel(**words, why="the shop is closed")
        assert (report.asked, report.done) == (len(cancelled), len(cancelled))
        await t.advance(seconds=WAIT)
        assert {id for id, attempt in ran if attempt == 2} == {"a", "b", "c", "d"} - cancelled
        assert {letter.message_id for letter in t.dead()} == cancelled
        assert {letter.reason for letter in t.dead()} <= {"the shop is closed"}


async def test_c17_an_act_without_words_is_refused(app, ran):
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {})
        with pytest.raises(ConfigError, match="needs ids, or words"):
            await app.retries.cancel()
        await t.advance(seconds=WAIT)
        assert ran == [(id, 1), (id, 2)]


async def test_c17_a_cancelled_message_is_no_less_safe_than_a_dead_one_and_can_be_replayed(app, ran):
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {"fail": True})
        await app.retries.cancel(id)
        [letter] = t.dead()
        report = await app.dead_letters.replay(letter.id, reset_attempts=False)
        await t.advance()
        assert report.done == 1
        assert ran == [(id, 1), (id, 2)]
        assert t.dead() == []


async def test_c17_purging_the_queue_that_retries_go_back_to_purges_no_retry(app, ran):
    async with TestLeveret(app) as t:
        ids = [await t.publish("order.placed", {"id": number}) for number in range(5)]
        assert t.broker.purge("shop.charge") == 0
        await t.advance(seconds=WAIT)
        assert sorted(id for id, attempt in ran if attempt == 2) == sorted(ids)
