"""A process is killed (kill -9) at each hand-over point on a real broker, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.torture.rabbitmq.scene import ALL_PLANNED, ALL_ROLES, KEEPER, RETRY, WORKERS, Scene, Shop

from leveret.core import handover

#: Who is killed, at which arrival at the point: not the first one, so that neighbours are in hand as well.
STRIKES = {
    handover.PUBLISH_SENT: (WORKERS, 25),
    handover.DELIVERED: (WORKERS, 9),
    handover.HANDLER_DONE: (WORKERS, 7),
    handover.RESULTS_CONFIRMED: (WORKERS, 2),
    handover.ENVELOPE_SENT: (WORKERS, 4),
    handover.ENVELOPE_CONFIRMED: (WORKERS, 4),
    handover.DEAD_LETTER_CONFIRMED: (WORKERS, 3),
    handover.RETRY_RECEIVED: (RETRY, 5),
    handover.STORED: (RETRY, 5),
    handover.TAKEN_WHEN_DUE: (RETRY, 4),
    handover.REPUBLISH_SENT: (RETRY, 4),
    handover.REPUBLISH_CONFIRMED: (RETRY, 4),
    handover.KEEPER_STORED: (KEEPER, 4),
    handover.REPLAY_CLAIMED: (KEEPER, 2),
    handover.REPLAY_CONFIRMED: (KEEPER, 2),
    handover.SUSPECT_MOVED: (WORKERS, 2),
}


def test_every_hand_over_point_is_struck():
    assert set(STRIKES) == set(handover.ALL)


@pytest.mark.parametrize("point", handover.ALL)
async def test_a_process_killed_at_a_hand_over_point_loses_nothing(point: str, scene: Callable[..., Scene]):
    who, nth = STRIKES[point]
    stage = await scene()
    victim, others = Shop("victim", [who]), Shop("others", [role for role in ALL_ROLES if role != who])
    publishes = ALL_PLANNED * (who == WORKERS)
    await stage.start(others, publishes=ALL_PLANNED - publishes)
    if point == handover.SUSPECT_MOVED:
        # What a process has died of is a suspect; what it lost with a connection it knows when it comes back.
        await stage.start(victim, {handover.HANDLER_DONE: 7}, publishes=publishes)
        await stage.killed(victim)
    await stage.start(victim, {point: nth}, publishes=publishes)
    async with asyncio.TaskGroup() as people:
        people.create_task(stage.finish())
        await stage.killed(victim)
        await stage.start(victim, publishes=publishes)
