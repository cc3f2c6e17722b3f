"""A store that hosts share: standbys persist what failed, and the holder is told of it by the store in time (R4)."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from tests.cases.scene import Scene

from leveret import Context, Leveret, SoftFailure
from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.stores.memory import MemoryStore
from leveret.testing.store_contract import an_entry


class SharedMemory(MemoryStore):
    """As a store on a server is: whoever is there may write to it."""

    @property
    def shared(self) -> bool:
        return True


class Hosts:
    """Instances of one app on one broker and one store, each with a retry worker; the first one holds the lease."""

    def __init__(self) -> None:
        self.scene = Scene()
        #: (seconds between failure and next run, attempt)
        self.waited: list[float] = []
        self._failed_at: dict[str, float] = {}

    def app(self, delay: float) -> Leveret:
        app = self.scene.host(Leveret("shop"))
        app._stand = replace(
            app._stand, store=lambda: SharedMemory(clock=self.scene.clock, data=self.scene.data)
        )

        @app.worker("order.placed")
        async def charge(ctx: Context) -> None:
            if ctx.attempt == 1:
                self._failed_at[ctx.message_id] = self.scene.clock.monotonic()
                raise SoftFailure("503", retry_after=delay)
            now = self.scene.clock.monotonic()
            self.waited.append(now - self._failed_at.get(ctx.message_id, now))

        return app


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0, 20.0, 100.0])
async def test_what_a_standby_has_persisted_is_on_time(delay: float):
    hosts = Hosts()
    async with AsyncExitStack() as stack:
        apps = [hosts.app(delay) for _ in range(3)]
        for app in apps:
            await stack.enter_async_context(app.running())
            await hosts.scene.advance(1)
        services = [app._open.runner.retry_service for app in apps]
        assert [service.keeper.holds for service in services] == [True, False, False]
        # In the middle of what the holder has looked ahead for.
        await hosts.scene.advance(7)
        stored_by = []
        for service in services:
            plain = service.intake.write
            service.intake.write = lambda entries, service=service, plain=plain: (
                stored_by.append(service),
                plain(entries),
            )[1]
        for number in range(12):
            await apps[0].publish("order.placed", {"number": number})
        for _ in range(int((delay + 1.6) / 0.1)):
            await hosts.scene.advance(0.1)
        assert len(set(stored_by)) == 3, "the standbys had nothing to do"
        assert len(hosts.waited) == 12
        assert max(hosts.waited) <= delay + 0.6
        # What a float of the wall clock rounds to.
        assert min(hosts.waited) >= delay - 1e-6


async def test_a_standby_that_stops_brings_what_it_has_in_hand_to_its_end_and_nothing_runs_twice():
    hosts = Hosts()
    async with AsyncExitStack() as stack:
        holder, standby = hosts.app(1.0), hosts.app(1.0)
        await stack.enter_async_context(holder.running())
        await hosts.scene.advance(1)
        await standby.open()
        running = standby.running()
        await running.__aenter__()
        await hosts.scene.advance(1)
        for number in range(10):
            await holder.publish("order.placed", {"number": number})
        await running.__aexit__(None, None, None)
        await standby.close()
        await hosts.scene.advance(3)
        assert len(hosts.waited) == 10
        assert await holder.counts() == (0, 0, 0, 0)


async def test_what_was_long_overdue_when_a_standby_persisted_it_goes_within_a_second():
    hosts = Hosts()
    async with AsyncExitStack() as stack:
        holder = hosts.app(1.0)
        await stack.enter_async_context(holder.running())
        await hosts.scene.advance(8)
        store = SharedMemory(clock=hosts.scene.clock, data=hosts.scene.data)
        await store.open()
        await store.put([_overdue(hosts)])
        await hosts.scene.advance(1.1)
        assert await holder.retries.count() == 0
        assert len(hosts.waited) == 1


def _overdue(hosts: Hosts) -> RetryEntry:
    return an_entry(
        queue="shop.charge",
        wait=None,
        due_at=hosts.scene.clock.now() - 500.0,
        body=b"{}",
        properties=Properties.build(
            message_id="old", type="order.placed", headers={"leveret-attempt": 2}
        ).raw,
    )
