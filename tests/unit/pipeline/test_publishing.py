from __future__ import annotations

import asyncio

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret, Message, PublishFailures, PublishTimeout, SoftFailure
from leveret.core.alarm import DLQ_PUBLISH_FAILED
from leveret.pipeline.publishing import MANY_AT_ONCE
from leveret.testing.fake_clock import idle


@pytest.fixture
def app():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker("order.placed")
    async def charge(order: dict) -> None: ...

    return app


@pytest.mark.parametrize("wrong", [{"expiration": -1}, {"headers": 7}, {"expiration": "soon"}])
async def test_publish_many_never_counts_a_message_that_cannot_be_written_as_confirmed(app, wrong):
    async with RunningApp(app):
        good = Message("order.placed", {}, id="good")
        with pytest.raises(PublishFailures) as told:
            await app.publish_many([good, Message("order.placed", {}, id="bad", **wrong)])
        assert told.value.confirmed == ["good"]
        assert list(told.value.failed) == [1]


async def test_publish_many_makes_no_task_for_a_message_that_need_not_wait(app):
    async with RunningApp(app) as t:
        most = 0

        def count(*_):
            nonlocal most
            most = max(most, len(asyncio.all_tasks()))

        before = len(asyncio.all_tasks())
        t.broker.on_publish.append(count)
        await app.publish_many(Message("order.placed", n, id=str(n)) for n in range(200))
        # The handlers of what has arrived have one each, up to their prefetch.
        assert most - before < 60


async def test_publish_many_tells_which_answers_never_came(app):
    async with RunningApp(app) as t:
        t.broker.lose_next_confirm()
        publishing = asyncio.ensure_future(
            app.publish_many(Message("order.placed", n, id=str(n)) for n in range(5))
        )
        await t.clock.advance(10)
        with pytest.raises(PublishFailures) as told:
            await publishing
        assert told.value.confirmed == ["1", "2", "3", "4"]
        assert isinstance(told.value.failed[0], PublishTimeout)
        assert told.value.failed[0].message == Message("order.placed", 0, id="0")


async def test_a_message_of_publish_many_that_failed_bears_the_id_it_was_given(app):
    async with RunningApp(app):
        with pytest.raises(PublishFailures) as told:
            await app.publish_many(
                [Message("order.placed"), Message("order.nobody"), Message("order.placed")]
            )
        [failed] = told.value.failed.values()
        assert failed.message.type == "order.nobody"
        assert len({failed.message.id, *told.value.confirmed} - {None, ""}) == 3


async def test_publish_many_takes_an_asynchronous_iterable(app):
    async def coming():
        for number in range(120):
            yield Message("order.placed", {"id": number}, id=str(number))

    async with RunningApp(app):
        assert await app.publish_many(coming()) == [str(number) for number in range(120)]


@pytest.mark.parametrize("publish", ["publish", "publish_many", "result"])
async def test_a_message_without_a_payload_carries_an_empty_object(publish):
    app = Leveret("shop", broker="memory://", store="memory://")
    got = []

    @app.worker("order.placed")
    async def charge(order: dict) -> Message:
        got.append(order)
        return Message("order.charged")

    @app.worker("order.charged")
    async def ship(order: dict) -> None:
        got.append(order)

    async with RunningApp(app):
        if publish == "publish_many":
            await app.publish_many([Message("order.charged")])
        else:
            await app.publish(Message("order.charged" if publish == "publish" else "order.placed"))
        await idle()
    assert got == ([{}, {}] if publish == "result" else [{}])


async def test_publish_many_ends_by_its_deadline_where_the_broker_stays_away(app):
    async with RunningApp(app) as t:
        t.broker.stop()
        await idle()
        publishing = asyncio.ensure_future(
            app.publish_many(Message("order.placed", n, id=str(n)) for n in range(50))
        )
        await t.clock.advance(10)
        with pytest.raises(PublishFailures) as told:
            await publishing
        assert told.value.confirmed == []
        assert len(told.value.failed) == 50


async def test_publish_many_goes_on_beyond_what_may_be_under_way_at_once(app):
    async with RunningApp(app):
        ids = [str(n) for n in range(2 * MANY_AT_ONCE + 1)]
        assert await app.publish_many(Message("order.placed", {}, id=id) for id in ids) == ids


async def test_a_publish_many_that_is_cancelled_does_not_wait_for_the_answers(app):
    async with RunningApp(app) as t:
        t.broker.lose_next_confirm()
        publishing = asyncio.ensure_future(app.publish_many([Message("order.placed", {}, id="lost")]))
        await idle()
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing


async def test_a_publish_ends_by_its_deadline_where_it_first_had_to_wait_for_the_connection(app):
    async with RunningApp(app) as t:
        t.broker.stop()
        await idle()
        publishing = asyncio.ensure_future(app.publish("order.placed", {}))
        await t.clock.advance(9)
        t.broker.lose_next_confirm()
        t.broker.start()
        await t.clock.advance(1.5)
        assert publishing.done()
        with pytest.raises(PublishTimeout):
            await publishing


async def test_a_publish_in_the_cleanup_of_a_cancelled_task_still_says_that_it_is_unknown(app):
    async with RunningApp(app) as t:
        t.broker.lose_next_confirm()
        heard = []

        async def work() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                try:
                    await app.publish("order.placed", {})
                except PublishTimeout as error:
                    heard.append(error)
                raise

        task = asyncio.ensure_future(work())
        await idle()
        task.cancel()
        await t.clock.advance(11)
        assert len(heard) == 1
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_alarm_of_a_step_in_hand_ends_where_the_connection_went_and_the_redelivery_succeeds():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        raise SoftFailure("not yet", retry_after=3600)

    async with RunningApp(app) as t:
        # The envelope, not the message.
        t.broker.on_publish.append(
            lambda message, _: message.routing_key == "shop.charge" and t.broker.refuse_next()
        )
        await t.send("shop.charge", b"{}", message_id="a")
        assert t.alarms.holding == {(DLQ_PUBLISH_FAILED, "shop.retry")}
        # Away for longer than the step's first wait, so that it finds its delivery stale.
        t.broker.stop()
        await t.clock.advance(5)
        t.broker.start()
        await t.clock.advance(10)
        assert len(t.data.retries) == 1
        assert t.alarms.holding == set()
