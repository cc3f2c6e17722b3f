"""C02: who cannot prove that it holds the lease publishes nothing, also where the proof fails by an error."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.cases.scene import Scene

from leveret import Leveret, Message
from leveret.core.errors import StoreUnavailable
from leveret.stores.memory import MemoryRetryLease


class Away:
    """While set, no lease can be asked for."""

    on = False


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    away = Away()
    plain = MemoryRetryLease.acquire_or_renew

    async def acquire_or_renew(self: MemoryRetryLease, holder_id: str, now: float, expires_at: float) -> bool:
        if away.on:
            raise StoreUnavailable("the store is away")
        return await plain(self, holder_id, now, expires_at)

    monkeypatch.setattr(MemoryRetryLease, "acquire_or_renew", acquire_or_renew)
    return away


@pytest.fixture
async def waiting(away: Away) -> AsyncIterator[tuple[Scene, Leveret, list[str]]]:
    """An app that runs, with ten messages due in 60 s."""
    scene = Scene()
    app = scene.host(Leveret("shop"))

    @app.worker("order.placed")
    async def charge() -> None:
        pass

    async with app.running(workers=(), keeper=False):
        ids = [await app.publish(Message("order.placed", n), delay=60) for n in range(10)]
        await scene.advance(1)
        yield scene, app, ids
        away.on = False


def published(scene: Scene) -> list[str | None]:
    return [message.properties.message_id for message in scene.broker.messages("shop.charge")]


async def test_c02_a_holder_that_cannot_renew_publishes_nothing_until_it_can_and_then_each_once(
    waiting, away
):
    scene, app, ids = waiting
    away.on = True
    await scene.advance(120)
    assert not app._open.runner.retry_service.keeper.holds
    assert published(scene) == []
    away.on = False
    await scene.advance(30)
    assert sorted(published(scene)) == sorted(ids)


async def test_c02_one_that_never_got_it_publishes_nothing(waiting, away):
    scene, _, ids = waiting
    other = scene.host(Leveret("shop"))
    away.on = True
    async with other.running(keeper=False):
        await scene.advance(120)
        assert not other._open.runner.retry_service.keeper.holds
        assert published(scene) == []
        away.on = False
        await scene.advance(30)
        # One of the two has it now.
        assert sorted(published(scene)) == sorted(ids)
