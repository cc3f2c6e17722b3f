"""B20, B31: a retry worker that dies with a claim in its hands, or as the leader, is followed within a lease."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, SoftFailure
from leveret.core import handover

#: Seconds that a lease lasts, and that a standby needs to see that it is free.
LEASE, TICK = 30.0, 0.5

stores = pytest.mark.parametrize("store", ["memory", "sqlite"])


def instance(scene: Scene, ran: list[int], *, first_delay: float) -> Leveret:
    app = scene.host(Leveret("shop"))

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=first_delay)

    return app


async def killed(app: Leveret) -> None:
    """End it as a kill would: nothing is given back, no lease is released."""
    runner, app._open.runner = app._open.runner, None
    await runner.drop()
    app._open.parts.transport.abort()


@stores
async def test_b20_killed_right_after_its_claim_the_message_is_delivered_by_the_next_within_a_lease(
    store, tmp_path
):
    scene = Scene(tmp_path / "leveret.db" if store == "sqlite" else None)
    ran: list[int] = []
    one = instance(scene, ran, first_delay=10)
    claimed = asyncio.Event()

    async def reached(here: str, message_id: str | None) -> None:
        if here == handover.TAKEN_WHEN_DUE:
            claimed.set()
            await asyncio.Event().wait()

    one._stand = replace(one._stand, world=replace(one._stand.world, reached=reached))
    await one.open()
    running = one.running()
    await running.__aenter__()
    await one.publish("order.placed", {})
    await scene.advance(10.1)
    assert claimed.is_set()
    await killed(one)
    assert ran == [1]

    other = instance(scene, ran, first_delay=10)
    async with other.running():
        await scene.advance(LEASE + 2 * TICK)
        assert ran == [1, 2]
        await scene.advance(3 * LEASE)
        assert ran == [1, 2]
        assert await other.counts() == (0, 0, 0, 0)
    await one.close()


@stores
async def test_b31_a_leader_killed_with_the_next_due_in_an_hour_is_followed_within_a_lease(store, tmp_path):
    scene = Scene(tmp_path / "leveret.db" if store == "sqlite" else None)
    ran: list[int] = []
    one, other = (instance(scene, ran, first_delay=3600) for _ in range(2))
    await one.open()
    running = one.running()
    await running.__aenter__()
    await one.publish("order.placed", {})
    await scene.advance(10 * LEASE)
    # Idle for ten leases, and still the leader.
    assert one._open.runner.retry_service.keeper.holds
    async with other.running():
        await scene.advance(LEASE)
        assert not other._open.runner.retry_service.keeper.holds
        await killed(one)
        await scene.advance(LEASE + TICK)
        assert other._open.runner.retry_service.keeper.holds
        await scene.advance(3600)
        assert ran == [1, 2]
    await one.close()
