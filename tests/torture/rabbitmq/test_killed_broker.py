"""The broker is killed (kill -9) while messages stand at every hand-over point, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.rabbitmq_node import Node
from tests.torture.ledger import planned
from tests.torture.rabbitmq.scene import ALL_PLANNED, KEEPER, PATIENCE, RETRY, WORKERS, Scene, Shop

from leveret.core import handover

#: Where each process has a message when the broker is killed, by kill. A worker has room for one at each of its points;
#: the others go through theirs one after the other.
KILLS: list[dict[str, dict[str, int]]] = [
    {
        WORKERS: {
            # What is published behind it meets the broker that has come back.
            handover.PUBLISH_SENT: 12,
            handover.DELIVERED: 12,
            handover.HANDLER_DONE: 9,
            handover.RESULTS_CONFIRMED: 2,
            handover.ENVELOPE_SENT: 5,
            handover.ENVELOPE_CONFIRMED: 3,
            handover.DEAD_LETTER_CONFIRMED: 3,
            handover.SUSPECT_MOVED: 1,
        },
        RETRY: {handover.RETRY_RECEIVED: 6, handover.TAKEN_WHEN_DUE: 2},
        KEEPER: {handover.KEEPER_STORED: 2},
    },
    {
        WORKERS: {},
        RETRY: {handover.STORED: 1, handover.REPUBLISH_SENT: 1},
        KEEPER: {handover.REPLAY_CLAIMED: 1},
    },
    {WORKERS: {}, RETRY: {handover.REPUBLISH_CONFIRMED: 1}, KEEPER: {handover.REPLAY_CONFIRMED: 2}},
]
#: So many messages fail hard.
HARD = sum(plan.kind == "hard" for plan in planned())


def test_the_kills_find_messages_at_every_hand_over_point():
    assert {point for kill in KILLS for strikes in kill.values() for point in strikes} == set(handover.ALL)


async def test_a_broker_killed_at_every_hand_over_point_loses_nothing(
    rabbitmq: Node, scene: Callable[..., Scene]
):
    stage = await scene()
    shops = {role: Shop(role, [role]) for role in (WORKERS, RETRY, KEEPER)}
    for role in (RETRY, KEEPER):
        await stage.start(shops[role], KILLS[0][role], dies=False)
    # What a process has died of is a suspect.
    await stage.start(shops[WORKERS], {handover.HANDLER_DONE: 7}, publishes=20)
    await stage.killed(shops[WORKERS])
    await stage.start(shops[WORKERS], KILLS[0][WORKERS], dies=False, publishes=ALL_PLANNED)
    people: asyncio.Task[None] | None = None
    for number, kill in enumerate(KILLS):
        if handover.REPLAY_CLAIMED in kill[KEEPER]:
            async with asyncio.timeout(PATIENCE):
                while await stage.dead_letters.count(reason="hopeless") < HARD:
                    await stage.turn()
            people = asyncio.create_task(stage.mend_and_replay())
        for role, strikes in kill.items():
            assert {await shops[role].waits_at() for _ in strikes} == set(strikes)
        stage.broker_killed()
        following = KILLS[number + 1] if number + 1 < len(KILLS) else {}
        for role, shop in shops.items():
            await shop.tell({})
            if following.get(role):
                await shop.tell(following[role])
        await asyncio.to_thread(rabbitmq.start)
    assert people is not None
    await people
    await stage.finish()
