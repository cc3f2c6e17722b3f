"""The app that a command is about, with the flags on top of its code. The only file here that looks inside one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from leveret.cli import exits
from leveret.core.errors import ConfigError, LeveretError

if TYPE_CHECKING:
    from leveret.app import Leveret
    from leveret.cli.options import Common
    from leveret.core.topology import Topology
    from leveret.ports import Store, Transport
    from leveret.runtime.config import RuntimeConfig
    from leveret.runtime.runner import Stopped, WorkerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What an app declares, known before it is open."""

    namespace: str
    config: RuntimeConfig
    plans: Sequence[WorkerPlan]
    topology: Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What an open app works with."""

    namespace: str
    config: RuntimeConfig
    plans: Sequence[WorkerPlan]
    transport: Transport
    store: Store
    #: Who this process is to others.
    holder: str


def load(
    target: str | None, common: Common, *, command: str, more: Mapping[str, Any] | None = None
) -> Leveret:
    """The app that *target* names, else `app` in the settings; flags beat what its code says.

    An error inside the user's module is shown whole, from the module's own first line on.

    Raises:
        ConfigError: none is named, or the settings are wrong.
        AppNotFound: nothing of that name is there.
        typer.Exit: the user's module failed, and that was shown.
    """
    from leveret.runtime.loading import load_app

    # Read first, so that a fault in the settings is not told as a fault of the user's module. Flags for single workers
    # wait for the app: only it knows how their names are spelt.
    config = common.settings()
    target = target or config.app
    if target is None:
        raise ConfigError(
            f"leveret {command} needs an app. Name it in one of: leveret {command} MODULE:APP · "
            'LEVERET_APP=MODULE:APP · app = "MODULE:APP" in leveret.toml'
        )
    if common.config is not None:
        # The app reads its settings itself, when its module makes it.
        os.environ["LEVERET_CONFIG"] = common.config
    try:
        app = load_app(target, command=f"leveret {command}")
    except LeveretError:
        raise
    except Exception as error:  # noqa: BLE001 - a module may raise anything, and whatever it is, it is shown
        exits.show_users(error)
        raise typer.Exit(exits.USAGE) from None
    app._with_flags(common.flags(more))  # noqa: SLF001 - see the head of this file
    return app


def settled(app: Leveret) -> RuntimeConfig:
    """The settings of *app*, flags included."""
    return app._config  # noqa: SLF001


def declared(app: Leveret) -> Declared:
    """What *app* would declare on its broker.

    Raises:
        ConfigError: it has no namespace.
    """
    from leveret.core.topology import Names, RMQExchangeConfig
    from leveret.runtime.wiring import make_store
    from leveret.runtime.world import system_world

    config = app._settled_config()  # noqa: SLF001
    namespace = config.require_namespace()
    names = Names(namespace)
    plans = [app._plan(spec, config) for spec in app._workers.values()]  # noqa: SLF001
    topology = app._topology(  # noqa: SLF001
        names,
        config.exchange or RMQExchangeConfig(names.events),
        plans,
        config,
        pinned=not make_store(config.store, system_world()).shared,
    )
    return Declared(namespace=namespace, config=config, plans=plans, topology=topology)


def opened(app: Leveret) -> Opened:
    """What an open *app* works with.

    Raises:
        AppNotOpen: it is not open.
    """
    inside = app._opened("a look")  # noqa: SLF001
    parts = inside.parts
    return Opened(
        namespace=parts.names.namespace,
        config=inside.config,
        plans=inside.plans,
        transport=parts.transport,
        store=parts.store,
        holder=parts.holder,
    )


@contextlib.asynccontextmanager
async def opening(app: Leveret, reach: Callable[[Transport], Awaitable[None]]) -> AsyncIterator[Opened]:
    """Have *app* open within the block; *reach* connects."""
    await app._open_by(reach)  # noqa: SLF001
    try:
        yield opened(app)
    finally:
        await app.close()


async def host(
    app: Leveret,
    *,
    reach: Callable[[Transport], Awaitable[None]],
    workers: Sequence[str] | None,
    retry_worker: bool,
    keeper: bool,
    until_idle: bool,
    ready: Callable[[], Awaitable[object]],
    stopping: Callable[[int], object],
    stopped: Callable[[Stopped], object],
) -> None:
    """Run *app* until a signal, or until it is idle; *reach* connects, and a signal ends its waiting."""
    await app._host(  # noqa: SLF001
        workers=workers,
        retry_worker=retry_worker,
        keeper=keeper,
        until_idle=until_idle,
        signals=True,
        reach=reach,
        ready=ready,
        stopping=stopping,
        stopped=stopped,
    )
