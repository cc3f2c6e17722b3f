"""Every delivery is settled, whatever ends its handler or its publishes, so that no worker comes to a stop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from leveret import Context, Leveret, Message, SoftFailure
from leveret.testing import TestLeveret


@pytest.fixture
def app():
    return Leveret("shop", broker="memory://", store="memory://")


def settled(t: TestLeveret, queue: str = "shop.work") -> bool:
    found = t.broker.snapshot()[queue]
    return (found.ready, found.unsettled) == (0, 0)


async def test_a_redelivery_that_comes_while_one_of_several_results_is_under_way_is_settled(app):
    runs = []

    @app.worker("order", prefetch=1)
    async def work(order: dict) -> list[Message] | None:
        runs.append(order["n"])
        return [Message("a", {}), Message("b", {})] if order["n"] == 1 else None

    async with TestLeveret(app, fail_fast=False) as t:
        for name in ("a", "b"):
            t.broker.declare_queue(name)
            t.broker.bind("shop.events", name, name)
        struck = False

        async def handover(point: str, _) -> None:
            nonlocal struck
            if point == "H3" and not struck:
                struck = True
                # The first result sleeps until its next try, the second waits for its confirm.
                t.broker.refuse_next(1)
                t.broker.lose_next_confirm(1)

        t.handover = handover
        await t.publish("order", {"n": 1})
        await t.advance(seconds=0.5)
        t.broker.stop()
        # The first one looks, and finds the connection gone; then the redelivery comes.
        await t.advance(seconds=0.6)
        t.broker.start()
        await t.advance(seconds=10)
        assert settled(t)
        await t.publish("order", {"n": 2})
        assert (runs, settled(t)) == ([1, 2], True)


async def test_a_handler_that_ends_its_own_task_ends_neither_its_worker_nor_what_looks_for_suspects(app):
    runs = []

    @app.worker("order", prefetch=2, timeout=5)
    async def work(order: dict, ctx: Context) -> None:
        runs.append(order["n"])
        if order["n"] <= 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            # As a library's timeout may leave it behind: a cancel that nobody took back. Then the worker's own comes.
            await t.clock.sleep(60)

    async with TestLeveret(app, fail_fast=False) as t:
        for number in (1, 2, 3):
            await t.publish("order", {"n": number})
        await t.advance(hours=1)
        assert settled(t)
        assert settled(t, "shop.work.suspects")
        assert runs.count(3) == 1
        assert [letter.ending for letter in t.dead()] == ["worker died"] * 2


async def test_an_observer_exchange_that_is_gone_is_declared_again_and_left_alone_for_a_minute(app, caplog):
    @app.worker("order", retry=None)
    async def work(order: dict) -> None:
        raise SoftFailure("503", retry_after=3600)

    async with TestLeveret(app, fail_fast=False) as t:
        t.broker.delete_exchange("shop.observer")
        for number in range(3):
            await t.publish("order", {"n": number})
        assert [record.action for record in caplog.records].count("observer") == 1
        t.broker.declare_queue("watched")
        t.broker.bind("shop.observer", "watched")
        await t.publish("order", {"n": 3})
        assert t.broker.snapshot()["watched"].ready == 0
        await t.advance(seconds=60)
        await t.publish("order", {"n": 4})
        assert t.broker.snapshot()["watched"].ready == 1
        assert len(t.waiting()) == 5
