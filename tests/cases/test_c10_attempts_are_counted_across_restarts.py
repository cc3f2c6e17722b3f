"""C10: the count of attempts travels with the message and lies in the store: exact across restarts and instances.

With three retries allowed and two instances that take turns, each one started anew for every attempt, the handler runs
four times in all. So it does when each attempt's process is killed while it works, as far as that can be told: runs
that a kill cut short are starts, not attempts.
"""

from __future__ import annotations

import itertools

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, RetryPolicy, SoftFailure
from leveret.testing import TestLeveret

THREE_RETRIES = RetryPolicy(first_delay=10, factor=1, jitter=0, max_attempts=4)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_c10_two_instances_that_are_restarted_between_all_attempts_run_it_four_times_in_all(
    store, tmp_path
):
    scene = Scene(tmp_path / "leveret.db" if store == "sqlite" else None)
    runs = []

    def instance(name: str) -> Leveret:
        app = scene.host(Leveret("shop", retry=THREE_RETRIES))

        @app.worker("order.placed")
        async def charge(ctx: Context) -> None:
            runs.append((name, ctx.attempt, ctx.max_attempts))
            raise SoftFailure("503")

        return app

    instances = itertools.cycle([instance("a"), instance("b")])
    async with next(instances).running() as app:
        await app.publish("order.placed", {})
        await scene.advance()
    for _ in range(6):
        async with next(instances).running():
            await scene.advance(10)
    assert runs == [("a", 1, 4), ("b", 2, 4), ("a", 3, 4), ("b", 4, 4)]
    async with next(instances).running() as app:
        await scene.advance()
        [letter] = await app.dead_letters.list()
        assert (letter.attempts, letter.ending) == (4, "retries exhausted")
        assert await app.counts() == (0, 0, 0, 1)


async def test_c10_with_both_instances_up_it_still_runs_four_times():
    scene = Scene()
    runs = []

    def instance() -> Leveret:
        app = scene.host(Leveret("shop", retry=THREE_RETRIES))

        @app.worker("order.placed", prefetch=1)
        async def charge(ctx: Context) -> None:
            runs.append(ctx.attempt)
            raise SoftFailure("503")

        return app

    one, other = instance(), instance()
    async with one.running():
        async with other.running():
            await one.publish("order.placed", {})
            await scene.advance(15)
        await scene.advance(60)
        assert runs == [1, 2, 3, 4]


async def test_c10_a_crash_between_all_attempts_changes_no_count():
    app = Leveret("shop", retry=THREE_RETRIES)
    runs = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise SoftFailure("503")

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        for _ in range(6):
            await t.crash()
            await t.advance(seconds=10)
        assert runs == [1, 2, 3, 4]
        assert [letter.attempts for letter in t.dead()] == [4]
