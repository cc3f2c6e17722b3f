"""Looking into a store from outside: opened, never created, and named at the head of what is shown."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leveret.core.errors import ConfigError, NotFound, NotSupported, StoreError

if TYPE_CHECKING:
    from leveret.cli.console import Console
    from leveret.cli.options import Common
    from leveret.ports import Store, World
    from leveret.runtime.config import RuntimeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """An open store, and what a command needs beside it."""

    config: RuntimeConfig
    world: World
    store: Store
    console: Console

    @property
    def namespace(self) -> str | None:
        """The namespace that was named anywhere; None: all that the store holds."""
        return self.config.namespace

    async def namespaces(self) -> list[str]:
        """Those that are shown."""
        return [self.namespace] if self.namespace else await self.store.namespaces()

    async def one_namespace(self) -> str:
        """The one that is named, or the only one that the store holds.

        Raises:
            ConfigError: there are several, or none.
        """
        found = await self.namespaces()
        if len(found) == 1:
            return found[0]
        if not found:
            return self.config.require_namespace()
        raise ConfigError(
            f"{self.store.display} holds several namespaces: {', '.join(found)}. Name one: --namespace {found[0]}"
        )

    async def head(self) -> str:
        """Which store, broker and namespace this is about."""
        if self.namespace:
            where = f"namespace {self.namespace} ({self.config.origin('namespace')})"
        else:
            found = await self.store.namespaces()
            where = f"all namespaces: {', '.join(found)}" if found else "no namespace yet"
        return f"store {self.store.display} · broker {self.config.broker or 'not named'} · {where}"

    async def show_head(self) -> None:
        """The head, where a person reads."""
        if not self.console.json and not self.console.quiet:
            self.console.head(await self.head())


@contextlib.asynccontextmanager
async def looking(common: Common, more: Mapping[str, Any] | None = None) -> AsyncIterator[Look]:
    """Open the store that the command line, the environment or the file names.

    Raises:
        ConfigError: all that is wrong in the settings.
        NotSupported: it is memory://, which another process cannot look into.
        StoreError: there is none yet, or it cannot be used.
    """
    from leveret.cli.console import Console
    from leveret.runtime.wiring import make_store
    from leveret.runtime.world import system_world

    config = common.settings(more)
    if config.store.kind == "memory":
        raise NotSupported(
            f"the store {config.store} ({config.origin('store')}) lives inside one process: there is nothing that "
            "another one could look into. In that process: app.retries and app.dead_letters"
        )
    world = system_world()
    store = make_store(config.store, world)
    try:
        await store.open(create=False)
    except NotFound as error:
        raise StoreError(f"{error}. Another one: --store URL") from None
    console = Console(common)
    for warning in config.warnings:
        console.warning(warning)
    try:
        yield Look(config=config, world=world, store=store, console=console)
    finally:
        await store.close()


def refuse_memory_broker(config: RuntimeConfig, command: str) -> None:
    """Say so where a command needs a broker that other processes can reach.

    Raises:
        ConfigError: no broker is named.
        NotSupported: it is memory://.
    """
    broker = config.require_broker()
    if broker.scheme == "memory":
        raise NotSupported(
            f"leveret {command}: {broker} ({config.origin('broker')}) lives inside one process, and this would be "
            "another. Name a broker that both can reach, with --broker amqp://…, or do it in the app's own process"
        )
