from __future__ import annotations

import asyncio

import pytest

from leveret import HardFailure, Leveret
from leveret.testing import TestLeveret


def failing_app() -> tuple[Leveret, list[int]]:
    app = Leveret("shop", broker="memory://")
    runs: list[int] = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        runs.append(order["id"])
        # A replay that had no end would never let the test go on to say so.
        assert len(runs) < 50
        raise HardFailure("cannot charge")

    return app, runs


@pytest.mark.parametrize("named_by", ["words", "message ids"])
async def test_a_replay_ends_though_its_first_letters_die_again_before_its_last_goes_out(named_by):
    app, runs = failing_app()
    async with TestLeveret(app, fail_fast=False) as t:
        for number in range(3):
            await t.publish("order.placed", {"id": number}, id=f"message-{number}")
        await t.advance(seconds=1)
        runs.clear()

        letters = app.dead_letters
        if named_by == "words":
            replay = asyncio.create_task(letters.replay(reason="cannot charge", rate=1))
        else:
            replay = asyncio.create_task(letters.replay([f"message-{n}" for n in range(3)], rate=1))
        await t.advance(seconds=1)
        await t.advance(seconds=10)

        assert sorted(runs) == [0, 1, 2]
        report = await replay
        assert (report.finished, report.asked, report.done) == (True, 3, 3)
        assert len(t.dead()) == 3
