"""The app that a command is about, with the flags on top of its code. The only file here that looks inside one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from leveret.cli import exits
from leveret.core.errors import ConfigError, LeveretError

if TYPE_CHECKING:
    from leveret.app import Leveret
    from leveret.cli.options import Common
    from leveret.core.topology import Topology
    from leveret.ports import Store, Transport
    from leveret.rpc.endpoint import RpcSpec
    from leveret.runtime.config import RuntimeConfig
    from leveret.runtime.plan import WorkerPlan
    from leveret.runtime.runner import Stopped

T = TypeVar("T")


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
    rpcs: Sequence[RpcSpec]
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

    app = _loaded(target, common, command, load_app)
    app._with_flags(common.flags(more))  # noqa: SLF001 - see the head of this file
    return app


def load_declared(target: str | None, common: Common, *, command: str) -> Declared:
    """What *target* declares: an app, or a `Topology` value of a daemon that is none. Raises as `load` does."""
    from leveret.core.topology import Topology
    from leveret.runtime.loading import load_declaration

    found = _loaded(target, common, command, load_declaration)
    if isinstance(found, Topology):
        config = common.settings()
        # Every name of a namespace begins with it.
        names = [each.name for each in found.exchanges] + [each.name for each in found.queues]
        namespace = config.namespace or (names[0].partition(".")[0] if names else "none")
        return Declared(namespace=namespace, config=config, plans=(), topology=found)
    found._with_flags(common.flags(None))  # noqa: SLF001
    return declared(found)


def _loaded(target: str | None, common: Common, command: str, loader: Callable[..., T]) -> T:
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
        return loader(target, command=f"leveret {command}")
    except LeveretError:
        raise
    except Exception as error:  # noqa: BLE001 - a module may raise anything, and whatever it is, it is shown
        exits.show_users(error)
        raise typer.Exit(exits.USAGE) from None


def settled(app: Leveret) -> RuntimeConfig:
    """The settings of *app*, flags included."""
    return app._config  # noqa: SLF001


def declared(app: Leveret) -> Declared:
    """What *app* would declare on its broker.

    Raises:
        ConfigError: it has no namespace.
    """
    from leveret.core.topology import Names
    from leveret.runtime.wiring import make_store
    from leveret.runtime.world import system_world

    plan = app._planned()  # noqa: SLF001
    config = plan.config
    namespace = config.require_namespace()
    topology = plan.topology(Names(namespace), pinned=not make_store(config.store, system_world()).shared)
    return Declared(namespace=namespace, config=config, plans=plan.workers, topology=topology)


def opened(app: Leveret) -> Opened:
    """What an open *app* works with.

    Raises:
        AppNotOpen: it is not open.
    """
    inside = app._opened("a look")  # noqa: SLF001
    parts = inside.parts
    return Opened(
        namespace=parts.names.namespace,
        config=inside.plan.config,
        plans=inside.plan.workers,
        rpcs=inside.plan.rpcs,
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
