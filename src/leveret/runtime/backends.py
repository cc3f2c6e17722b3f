"""What programs of the JSON form stand on: one connection that several parts share, and parts made on it."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.core.topology import Names, RMQExchangeConfig
from leveret.ports import (
    ConsumerManagerInterface,
    MessageConsumerInterface,
    PublisherInterface,
    Transport,
    World,
)
from leveret.retry.exchanges import MessageConsumerManager, MessagePublisher, ReplayRouter, RouteFunc
from leveret.runtime.config import RuntimeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfra:
    """A connection to the broker, and the world it lives in: made once, shared by whoever is given it.

    Example:
        infra = await create_runtime_infra(load_config(code={"broker": "memory://"}))
        runner = RetryWorkerRunner(config, "retry", exchange=exchange, infra=infra)
        await infra.close()
    """

    world: World
    transport: Transport

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        await self.transport.close()


async def create_runtime_infra(config: RuntimeConfig, *, world: World | None = None) -> RuntimeInfra:
    """Connect to the broker of *config*.

    Args:
        config: names the broker.
        world: None: the real one.

    Raises:
        ConfigError: no broker is named.
        MissingExtra: its client library is not installed.
        BrokerError: it cannot be used.
    """
    from leveret.runtime import wiring
    from leveret.runtime.world import system_world

    world = system_world() if world is None else world
    transport = wiring.make_transport(config.require_broker(), world)
    await transport.open()
    return RuntimeInfra(world=world, transport=transport)


def create_publisher(
    infra: RuntimeInfra, *, exchange: RMQExchangeConfig, route_func: RouteFunc | None = None
) -> PublisherInterface:
    """A publisher of JSON messages to *exchange*, not set up yet: confirmed, persistent, mandatory.

    Args:
        infra: the connection.
        exchange: where to.
        route_func: the routing keys of a message; None: `ReplayRouter`.
    """
    return MessagePublisher(infra.transport, exchange, ReplayRouter() if route_func is None else route_func)


def create_consumer_manager(
    config: RuntimeConfig,
    infra: RuntimeInfra,
    consumer: MessageConsumerInterface,
    *,
    exchange: RMQExchangeConfig,
    worker_type: str,
) -> ConsumerManagerInterface:
    """What feeds *consumer* all that goes through *exchange*, by the queue `<exchange>.<worker_type>`; not set up yet.

    What it cannot read goes to the dead letters of the namespace where *config* names one, else to `<exchange>.dlq`.

    Raises:
        ConfigError: the exchange is a direct one, on which nobody can watch everything.
    """
    dead_letters = Names(config.namespace).dead_letters if config.namespace else f"{exchange.name}.dlq"
    return MessageConsumerManager(
        infra.transport,
        consumer,
        exchange=exchange,
        queue=f"{exchange.name}.{worker_type}",
        dead_letters=dead_letters,
        clock=infra.world.clock,
        new_id=infra.world.new_id,
    )
