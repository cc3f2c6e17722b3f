from __future__ import annotations

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret, Message


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "result",
    [
        Message("receipt", {}, expiration=-1),
        Message("receipt", {}, headers=7),
        Message("receipt", {}, id=17),
        Message("receipt", {}, id="x" * 300),
        Message("receipt", Unshowable()),
        Message("receipt", {}, priority="high"),
        Message("receipt", {}, content_type=7),
        Message(7, {}),
        Unshowable(),
    ],
)
async def test_a_result_that_cannot_be_written_becomes_a_dead_letter_and_its_handler_runs_once(result):
    app = Leveret("shop", broker="memory://", store="memory://")
    runs = []

    @app.worker("order.placed")
    async def charge(order: dict):
        runs.append(order)
        return [result]

    async with RunningApp(app) as t:
        await app.publish("order.placed", {})
        await t.clock.advance(30)
        assert len(runs) == 1
        assert [letter.ending for letter in t.data.letters.values()] == ["unroutable result"]


async def test_results_that_share_an_id_are_each_kept_where_nobody_takes_them():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker("order.placed")
    async def charge(order: dict):
        return [Message("receipt", {"part": part}, id="of order 1") for part in (1, 2)]

    async with RunningApp(app) as t:
        await app.publish("order.placed", {})
        await t.clock.advance(30)
        bodies = sorted(letter.body for letter in t.data.letters.values())
        assert bodies == [b'{"part":1}', b'{"part":2}']


async def test_results_of_a_message_without_an_id_keep_their_ids_where_a_cut_makes_them_go_again():
    app = Leveret("shop", broker="memory://", store="memory://")
    ids = []

    @app.worker
    async def charge(body: bytes):
        return [Message("receipt", {})]

    async with RunningApp(app) as t:
        t.broker.declare_queue("receipts")
        t.broker.bind("shop.events", "receipts", "receipt")

        def cut(message, queues) -> None:
            if queues == ["receipts"]:
                ids.append(message.properties.message_id)
                if len(ids) == 1:
                    t.broker.lose_next_confirm()

        t.broker.on_publish.append(cut)
        await t.send("shop.charge", b"x")
        t.broker.stop()
        await t.clock.advance(5)
        t.broker.start()
        await t.clock.advance(30)
        assert len(ids) == 2
        assert len(set(ids)) == 1


async def test_of_several_results_only_those_go_again_that_were_not_confirmed():
    app = Leveret("shop", broker="memory://", store="memory://")
    parts = []

    @app.worker("order.placed")
    async def charge(order: dict):
        return [Message("receipt", {"part": 1}), Message("receipt", {"part": 2})]

    async with RunningApp(app) as t:
        t.broker.declare_queue("receipts")
        t.broker.bind("shop.events", "receipts", "receipt")

        def cut(message, queues) -> None:
            if queues == ["receipts"]:
                parts.append(message.body)
                if len(parts) == 2:
                    t.broker.lose_next_confirm()

        t.broker.on_publish.append(cut)
        await app.publish("order.placed", {})
        await t.clock.advance(1)
        t.broker.stop()
        await t.clock.advance(5)
        t.broker.start()
        await t.clock.advance(30)
        assert parts == [b'{"part":1}', b'{"part":2}', b'{"part":2}']
