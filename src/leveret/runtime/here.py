"""Acts that are done in this process (`--here`), where nobody else holds the lease."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from leveret.core.errors import StoreError
from leveret.core.topology import Names, RMQExchangeConfig, Topology
from leveret.core.urls import BrokerUrl
from leveret.dead_letters.replay import Replays
from leveret.pipeline.parts import Parts
from leveret.ports import Grant, Store, Transport, World
from leveret.retry.acts import RetryActs
from leveret.retry.lease import Standing
from leveret.retry.service import ACTS_EVERY, TermService
from leveret.runtime import wiring
from leveret.runtime.world import holder_name


class ActsHere(TermService):
    """Holds a lease for a while, and does nothing with it but what people have asked for.

    Args:
        parts: of the process.
        lease: `retry` or `keeper`.
        ttl: seconds that the lease lasts unrenewed.
    """

    def __init__(self, parts: Parts, *, lease: str, ttl: float) -> None:
        super().__init__(parts, lease=lease, ttl=ttl)
        self._replays = Replays(parts, self.keeper)
        # Without a dispatch: nothing is published, so that what is made due waits for the next retry worker.
        self._retries = RetryActs(parts, None)
        self._on_retries = lease == "retry"

    async def work(self, grant: Grant) -> None:
        """Obey acts."""
        obey = self._retries.obey if self._on_retries else self._replays.obey
        await self.act_when_asked(grant, obey, ACTS_EVERY)

    async def finish(self) -> None:
        """Finish the replay window in hand."""
        if not self._on_retries:
            await self._replays.finish()


def parts_here(
    store: Store,
    world: World,
    namespace: str,
    *,
    transport: Transport,
    exchange: RMQExchangeConfig | None = None,
) -> Parts:
    """What acts need in a process that runs no app."""
    names = Names(namespace)
    return Parts(
        names=names,
        exchange=exchange or RMQExchangeConfig(names.events),
        world=world,
        transport=transport,
        store=store,
        alarms=wiring.make_alarms(world, namespace),
        base=Topology(),
        holder=holder_name(world),
    )


def no_transport(world: World) -> Transport:
    """For acts on retries, which touch the store alone: a transport that is never opened."""
    return wiring.make_transport(BrokerUrl(scheme="memory"), world)


@contextlib.asynccontextmanager
async def acting_here(
    parts: Parts, *, lease: str, ttl: float
) -> AsyncIterator[tuple[Callable[[], object], Standing | None]]:
    """Claim the lease and obey acts in the background of the block; it is released at the end.

    Yields:
        What to call once an act is written; and where somebody else holds the lease, who: nothing is done here then,
        for the holder does it.

    Raises:
        StoreError: the store cannot say who holds it.
    """
    service = ActsHere(parts, lease=lease, ttl=ttl)
    await service.keeper.run_once()
    if not service.keeper.holds:
        standing = await service.standing()
        if not standing.holder:
            raise StoreError(f"the {lease} lease of {parts.names.namespace} could not be claimed. Try again")
        yield (lambda: None), standing
        return
    service.start()
    try:
        yield service.nudged.set, None
    finally:
        await service.stop()
