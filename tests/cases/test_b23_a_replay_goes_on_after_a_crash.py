"""B23: a replay of many is interrupted by a crash and goes on afterwards; each letter ends dead or replayed.

1,000 letters here, with the crash in the middle.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.cases.scene import Scene

from leveret import Context, HardFailure, Leveret, Message

NUMBER = 1_000


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_b23_after_a_crash_half_way_all_1000_are_replayed_and_at_most_one_window_twice(store, tmp_path):
    scene = Scene(tmp_path / "leveret.db" if store == "sqlite" else None)
    done: Counter[str | None] = Counter()
    hopeless = True

    def instance() -> Leveret:
        app = scene.host(Leveret("shop"))

        @app.worker("order.placed")
        async def charge(ctx: Context) -> None:
            if hopeless:
                raise HardFailure("410")
            done[ctx.message_id] += 1

        return app

    one = instance()
    await one.open()
    running = one.running()
    await running.__aenter__()
    ids = await one.publish_many(Message("order.placed", n) for n in range(NUMBER))
    await scene.advance(1)
    assert await one.dead_letters.count() == NUMBER
    hopeless = False
    asking = asyncio.create_task(one.dead_letters.replay(reason="410", rate=100))
    await scene.advance(5)
    assert NUMBER // 4 < len(done) < NUMBER * 3 // 4
    # As a kill does it: nobody is told, nothing is given back.
    asking.cancel()
    runner, one._open.runner = one._open.runner, None
    await runner.drop()
    one._open.parts.transport.abort()

    other = instance()
    async with other.running():
        # The act was written into the store: whoever holds the lease next goes on with it.
        await scene.advance(60)
        assert set(done) == set(ids)
        twice = [id for id, number in done.items() if number > 1]
        assert max(done.values()) <= 2
        maybe = [
            letter
            for id in twice
            for letter in (await other.dead_letters.list(states=("replayed",), text=id)).items
            if letter.replays and letter.replays[-1].outcome == "maybe twice"
        ]
        assert len(maybe) == len(twice)
        assert await other.dead_letters.count() == 0
        assert await other.dead_letters.count(states=("claimed",)) == 0
        assert await other.dead_letters.count(states=("replayed",)) == NUMBER
    await one.close()
