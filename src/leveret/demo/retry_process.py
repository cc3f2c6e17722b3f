"""RetryProcess: a retry worker as a process of its own would be, which can die like one at the worst moment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol, runtime_checkable

from leveret.core import handover
from leveret.core.errors import NotSupported
from leveret.core.retry_entry import Filter
from leveret.core.topology import Names, RMQExchangeConfig, base_topology
from leveret.core.urls import BrokerUrl, StoreUrl
from leveret.pipeline.parts import Parts
from leveret.pipeline.publishing import Publisher
from leveret.retry.dispatch import Lateness
from leveret.retry.service import RetryService
from leveret.runtime import wiring
from leveret.runtime.world import holder_name, system_world


@runtime_checkable
class Abortable(Protocol):
    """A transport whose connection can be cut as a killed process cuts it."""

    def abort(self) -> None:
        """End without a goodbye: the broker has all back that was unsettled."""


class RetryProcess:
    """The retry worker of one namespace, with a connection and a handle on the store that nobody shares.

    Args:
        namespace, broker, store: as the app has them.
        ttl: seconds that its lease lasts once nobody renews it.
        overdue_rate: so many overdue messages a second.
    """

    def __init__(
        self, namespace: str, *, broker: BrokerUrl, store: StoreUrl, ttl: float, overdue_rate: float = 1000.0
    ) -> None:
        self._fatal = False
        #: Set once a message is published again and not deleted yet: the moment at which a death repeats it.
        self.between = asyncio.Event()
        world = replace(system_world(), reached=self._reached)
        names = Names(namespace)
        transport = wiring.make_transport(broker, world)
        if not isinstance(transport, Abortable):
            raise NotSupported(f"{broker}: the demo cannot cut this connection. Run it on memory://")
        self._cut = transport.abort
        exchange = RMQExchangeConfig(names.events)
        self._parts = Parts(
            names=names,
            exchange=exchange,
            world=world,
            transport=transport,
            store=wiring.make_store(store, world),
            alarms=wiring.make_alarms(world, namespace),
            base=base_topology(names, exchange, "classic", pinned=True),
            holder=holder_name(world),
        )
        publisher = Publisher(self._parts, timeout=10.0, known_types=dict)
        self._service = RetryService(self._parts, publisher, ttl=ttl, overdue_rate=overdue_rate)

    async def start(self) -> None:
        """Connect, open the store, ask for the lease, and work."""
        await self._parts.store.open()
        await self._parts.transport.open()
        await self._parts.transport.declare(self._parts.base)
        self._service.start()

    async def stop(self) -> None:
        """Finish, give up the lease, disconnect."""
        await self._service.stop()
        await self._parts.transport.close()
        await self._parts.store.close()

    def stand_still(self) -> None:
        """Go no further than between the publish of a message that is due and its delete; then `between` is set."""
        self._fatal = True

    async def die(self) -> None:
        """End as by `kill -9`: nothing is acked, given back, deleted or released."""
        self._cut()
        await self._service.stop(release=False)
        await self._parts.store.close()

    async def overdue(self) -> int:
        """How many messages should have been published by now."""
        return await self._parts.store.count_entries(
            Filter(namespace=self._parts.names.namespace), overdue=True
        )

    def lateness(self) -> Lateness:
        """How late it published what was due."""
        return self._service.lateness()

    async def _reached(self, point: str, message_id: str | None) -> None:
        if self._fatal and point == handover.REPUBLISH_CONFIRMED:
            self.between.set()
            await asyncio.get_running_loop().create_future()
