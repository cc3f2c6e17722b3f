"""B22: a message that kills every process that starts it, among nine good ones, is bounded (P12)."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable

import pytest
from tests.torture.rabbitmq.scene import ALL_ROLES, PATIENCE, Scene, Shop

from leveret.core.errors import PublishRefused
from leveret.core.message import Outgoing
from leveret.core.properties import Properties

STARTS = 5
GOOD = 9


def body_of(number: int) -> bytes:
    kind = b"deadly" if number == GOOD // 2 else b"plain"
    return b'{"kind":"%s","number":%d}' % (kind, number)


async def accepts(stage: Scene, queue: str, number: int) -> bool:
    properties = Properties.build(message_id=f"m-{number}", delivery_mode=2)
    try:
        await stage.transport.send(Outgoing("", queue, body_of(number), properties))
    except PublishRefused:
        return False
    return True


async def killed_before_all_is_quiet(stage: Scene, shop: Shop) -> bool:
    quiet, killed = asyncio.ensure_future(stage.quiet()), asyncio.ensure_future(stage.killed(shop))
    await asyncio.wait({quiet, killed}, return_when=asyncio.FIRST_COMPLETED)
    for task in (quiet, killed):
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if killed.cancelled():
        await quiet
        return False
    await killed
    return True


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param("charge", id="plain"),
        pytest.param("book", id="ordered, classic"),
        pytest.param("vault", id="ordered, quorum"),
    ],
)
async def test_b22_a_message_that_kills_its_process_dies_alone(worker: str, scene: Callable[..., Scene]):
    stage = await scene(max_deliveries=STARTS)
    shop = Shop("shop", ALL_ROLES)
    await stage.start(shop)
    queue = stage.names.queue(worker)
    async with asyncio.timeout(PATIENCE):
        while await stage.transport.queue_state(queue) is None:
            await stage.turn()
        # A quorum queue that was declared this moment may have no leader yet, and says no.
        while not await accepts(stage, queue, 0):
            await stage.turn()
        assert all(await asyncio.gather(*(accepts(stage, queue, number) for number in range(1, GOOD + 1))))
    kills = 0
    # Each kill that leaves a message twice, see below, is good for as many starts again as were left.
    while await killed_before_all_is_quiet(stage, shop):
        kills += 1
        assert kills < 4 * STARTS
        await stage.start(shop)
    await stage.stop()
    # A kill between the confirm of a moved message and the ack of its original leaves both, and each is counted on.
    letter, *copies = await stage.letters()
    for each in (letter, *copies):
        assert (each.ending, each.state, each.worker) == ("worker died", "dead", worker)
        assert (each.message_id, each.body) == (f"m-{GOOD // 2}", body_of(GOOD // 2))
    assert kills >= STARTS if copies else kills == STARTS
    starts = Counter(bytes.fromhex(line["body"]) for line in stage.lines() if line["event"] == "start")
    assert starts.pop(letter.body) == kills
    done = Counter(bytes.fromhex(line["body"]) for line in stage.lines() if line["event"] == "done")
    assert done.keys() == {body_of(number) for number in range(GOOD + 1)} - {letter.body}
    interrupted = stage.ledger().interrupted
    for counted in (starts, done):
        assert all(number <= 1 + interrupted[body] for body, number in counted.items())
    assert shop.running.returncode != -signal.SIGKILL
