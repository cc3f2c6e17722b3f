"""A26: the failing side declares the retry queue itself, so a soft failure waits there for the first retry worker.

On a broker where nothing was ever declared only the workers run. A message fails; a minute later somebody starts a
retry worker for the first time, and the message comes back.
"""

from __future__ import annotations

from tests.cases.scene import Scene

from leveret import Context, Leveret, SoftFailure


async def test_a26_the_envelope_waits_in_its_queue_until_the_first_retry_worker_is_started():
    scene = Scene()
    workers = scene.host(Leveret("shop"))
    ran = []

    @workers.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append((ctx.attempt, ctx.message_id))
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=5)

    async with workers.running(retry_worker=False, keeper=False):
        id = await workers.publish("order.placed", {})
        await scene.advance(60)
        assert scene.broker.snapshot()["shop.retry"] == (1, 0, 0)
        assert scene.broker.snapshot()["shop.charge"] == (0, 0, 1)

        retry_worker = scene.host(Leveret("shop"))
        async with retry_worker.running():
            await scene.advance(5)
            assert ran == [(1, id), (2, id)]
            assert await workers.counts() == (0, 0, 0, 0)
