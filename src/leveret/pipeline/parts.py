"""Parts: what the verbs share in one open app, so that each names what it uses and none knows an adapter."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from leveret.core.envelope import Where
from leveret.core.run import Run
from leveret.core.topology import Names, RMQExchangeConfig, Topology
from leveret.pipeline.store_condition import StoreCondition
from leveret.ports import Alarms, Store, Transport, World

log = logging.getLogger("leveret")


@dataclass(slots=True, kw_only=True)
class Parts:
    """What the verbs share in one open app."""

    names: Names
    exchange: RMQExchangeConfig
    world: World
    transport: Transport
    store: Store
    alarms: Alarms
    #: What every side declares; declared again where the retry or dead-letter queue turns out to be gone.
    base: Topology
    #: Who this process is to others: host/pid/random.
    holder: str
    #: Told of every settled delivery.
    watchers: list[Callable[[Run], object]] = field(default_factory=list)
    #: Whether the store answers; whoever cannot go on without it asks by way of this.
    store_condition: StoreCondition = field(init=False)

    def __post_init__(self) -> None:
        self.store_condition = StoreCondition(
            self.names.namespace, store=self.store.display, alarms=lambda: self.alarms
        )

    @property
    def where(self) -> Where:
        """What the connection demands of a copy."""
        return Where(frame_max=self.transport.frame_max, user=self.transport.user)

    async def reach(self, point: str, message_id: str | None) -> None:
        """A hand-over point; the simulator and the tests may strike here."""
        if self.world.reached is not None:
            await self.world.reached(point, message_id)
