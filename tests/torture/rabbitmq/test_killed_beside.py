"""A process is killed (kill -9) while messages of the others stand at every hand-over point of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.torture.ledger import planned
from tests.torture.rabbitmq.scene import ALL_PLANNED, KEEPER, PATIENCE, RETRY, WORKERS, Scene, Shop

from leveret.core import handover

#: Where each process has messages when the victim is killed, one kill after the other. A worker has room for one at
#: each of its points; the others go through theirs one after the other.
KILLS: dict[str, list[dict[str, dict[str, int]]]] = {
    WORKERS: [
        {
            RETRY: {handover.RETRY_RECEIVED: 6, handover.TAKEN_WHEN_DUE: 2},
            KEEPER: {handover.KEEPER_STORED: 2},
        },
        {RETRY: {handover.STORED: 1, handover.REPUBLISH_SENT: 1}, KEEPER: {handover.REPLAY_CLAIMED: 1}},
        {RETRY: {handover.REPUBLISH_CONFIRMED: 1}, KEEPER: {handover.REPLAY_CONFIRMED: 2}},
    ],
    RETRY: [
        {
            WORKERS: {
                handover.PUBLISH_SENT: 12,
                handover.DELIVERED: 12,
                handover.HANDLER_DONE: 9,
                handover.RESULTS_CONFIRMED: 2,
                handover.ENVELOPE_SENT: 5,
                handover.ENVELOPE_CONFIRMED: 3,
                handover.DEAD_LETTER_CONFIRMED: 3,
                handover.SUSPECT_MOVED: 1,
            },
            KEEPER: {handover.KEEPER_STORED: 2},
        },
        {KEEPER: {handover.REPLAY_CLAIMED: 1}},
        {KEEPER: {handover.REPLAY_CONFIRMED: 2}},
    ],
}
#: Its own points are struck by itself, see test_killed_processes.
OWN = {
    WORKERS: set(handover.ALL[:7]) | {handover.SUSPECT_MOVED},
    RETRY: set(handover.ALL[7:12]),
}
HARD = sum(plan.kind == "hard" for plan in planned())


@pytest.mark.parametrize("victim", KILLS)
def test_with_the_points_of_its_own_every_hand_over_point_is_struck(victim: str):
    others = {point for kill in KILLS[victim] for strikes in kill.values() for point in strikes}
    assert others == set(handover.ALL) - OWN[victim]


@pytest.mark.parametrize("victim", KILLS)
async def test_a_process_killed_while_the_others_stand_at_every_point_of_theirs_loses_nothing(
    victim: str, scene: Callable[..., Scene]
):
    stage = await scene()
    kills = KILLS[victim]
    shops = {role: Shop(role, [role]) for role in (WORKERS, RETRY, KEEPER)}
    for role in (RETRY, KEEPER):
        await stage.start(shops[role], kills[0].get(role), dies=False)
    # What a process has died of is a suspect.
    await stage.start(shops[WORKERS], {handover.HANDLER_DONE: 7}, publishes=20)
    await stage.killed(shops[WORKERS])
    await stage.start(shops[WORKERS], kills[0].get(WORKERS), dies=False, publishes=ALL_PLANNED)
    people: asyncio.Task[None] | None = None
    for number, kill in enumerate(kills):
        if handover.REPLAY_CLAIMED in kill.get(KEEPER, {}):
            async with asyncio.timeout(PATIENCE):
                while await stage.dead_letters.count(reason="hopeless") < HARD:
                    await stage.turn()
            people = asyncio.create_task(stage.mend_and_replay())
        for role, strikes in kill.items():
            assert {await shops[role].waits_at() for _ in strikes} == set(strikes)
        await stage.opened(shops[victim])
        shops[victim].running.kill()
        await stage.killed(shops[victim])
        await stage.start(shops[victim], publishes=ALL_PLANNED if victim == WORKERS else 0)
        following = kills[number + 1] if number + 1 < len(kills) else {}
        for role, shop in shops.items():
            if role != victim:
                await shop.tell({})
                if following.get(role):
                    await shop.tell(following[role])
    assert people is not None
    await people
    await stage.finish()
