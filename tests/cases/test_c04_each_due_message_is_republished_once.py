"""C04: several retry workers on one store publish each due message once, also where the broker is slow to confirm.

Four on one SQLite file, with 2,000 due at once. (Ten thousand, in four processes: tests/torture/test_take_over.py.)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.cases.scene import Scene

from leveret import Leveret, Message
from leveret.core.message import Outgoing
from leveret.transports.memory import MemoryTransport

NUMBER = 2_000


class SlowTransport(MemoryTransport):
    """A broker that takes 90 s to confirm what goes to the worker, three times as long as a lease lasts."""

    def send(self, message: Outgoing) -> asyncio.Future[None]:
        answer = super().send(message)
        if message.routing_key != "order.placed":
            return answer
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tell() -> None:
            if not late.done():
                late.set_result(None)

        answer.add_done_callback(lambda _: self._clock.call_later(90, tell))
        return late


def retry_workers(scene: Scene, number: int) -> list[Leveret]:
    return [scene.host(Leveret("shop")) for _ in range(number)]


def published(scene: Scene) -> Counter[str | None]:
    return Counter(message.properties.message_id for message in scene.broker.messages("shop.charge"))


async def with_a_worker(scene: Scene) -> Leveret:
    app = scene.host(Leveret("shop"))

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    await app.open()
    return app


async def test_c04_four_retry_workers_on_one_sqlite_file_publish_each_of_2000_once(tmp_path):
    scene = Scene(tmp_path / "leveret.db")
    app = await with_a_worker(scene)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(app.close)
        four = retry_workers(scene, 4)
        for each in four:
            await stack.enter_async_context(each.running(keeper=False))
        ids = await asyncio.gather(
            *(app.publish(Message("order.placed", n), delay=60) for n in range(NUMBER))
        )
        await scene.advance(1)
        # The standbys hold no lease, and so publish nothing.
        assert sum(each._open.runner.retry_service.keeper.holds for each in four) == 1
        assert published(scene) == {}
        await scene.advance(70)
        assert published(scene) == Counter(ids)
        assert await app.counts() == (NUMBER, 0, 0, 0)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_c04_a_broker_that_confirms_after_three_leases_makes_no_second_copy(store, tmp_path):
    scene = Scene(tmp_path / "leveret.db" if store == "sqlite" else None)
    app = await with_a_worker(scene)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(app.close)
        two = retry_workers(scene, 2)
        for each in two:
            world = each._stand.world
            each._stand = replace(
                each._stand, transport=lambda world=world: SlowTransport(scene.broker, world=world)
            )
            await stack.enter_async_context(each.running(keeper=False))
        ids = [await app.publish(Message("order.placed", n), delay=10) for n in range(20)]
        await scene.advance(80)
        # All are out, none is confirmed, and more than two leases have passed since.
        assert published(scene) == Counter(ids)
        assert (await app.counts()).waiting == 20
        await scene.advance(320)
        assert published(scene) == Counter(ids)
        assert (await app.counts()).waiting == 0
