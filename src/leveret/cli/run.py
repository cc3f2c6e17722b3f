"""`leveret run`: the app's workers, its retry worker and its keeper, until a signal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leveret.cli.options import Common, Target, command
from leveret.cli.words import broker_words

if TYPE_CHECKING:
    from leveret.app import Leveret
    from leveret.cli.apps import Opened
    from leveret.cli.console import Console
    from leveret.pipeline.worker import WorkerSpec
    from leveret.runtime.plan import WorkerPlan
    from leveret.runtime.runner import Stopped

#: Seconds that the banner waits to be able to say who holds the leases.
_LEASE_LOOK = 1.0


def add_to(cli: typer.Typer) -> None:
    """Declare `run`."""
    command(cli, "run")(run)


def run(
    target: Target = None,
    workers: Annotated[
        list[str] | None,
        typer.Option("--worker", metavar="NAME", help="Only this worker; may be given several times."),
    ] = None,
    no_retry_worker: Annotated[
        bool,
        typer.Option("--no-retry-worker", help="Do not keep soft-failed messages here until they are due."),
    ] = False,
    no_keeper: Annotated[
        bool, typer.Option("--no-keeper", help="Do not move dead letters into the store here.")
    ] = False,
    until_idle: Annotated[
        bool,
        typer.Option("--until-idle", help="End once the queues are empty, nothing runs and nothing waits."),
    ] = False,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="Start anew when a .py file below this folder changes. For development."
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any setting of leveret.toml, such as workers.charge.prefetch=50; may be given several times. "
            "[LEVERET_WORKERS__CHARGE__PREFETCH]",
        ),
    ] = None,
    *,
    common: Common,
) -> int | None:
    """Run an app: its workers, its retry worker and its keeper.

    Ctrl+C or SIGTERM stops: what runs is finished within shutdown_grace, what has not started goes back to its queue.
    A second one stops at once; what was in hand is delivered again. A broker that is not up yet is waited for; one that
    refuses us is not.
    """
    if reload:
        from leveret.cli.reload import supervise

        return supervise()
    from leveret.cli.apps import load, settled
    from leveret.cli.logs import show_log

    app = load(target, common, command="run", more=read_settings(settings or []))
    show_log(settled(app).log, quiet=common.quiet, as_json=common.json)
    asyncio.run(
        serve(
            app,
            common,
            workers=workers or None,
            retry_worker=not no_retry_worker,
            keeper=not no_keeper,
            until_idle=until_idle,
        )
    )
    return None


def read_settings(given: list[str]) -> dict[str, str]:
    """KEY=VALUE as flags by dotted key.

    Raises:
        ConfigError: one has no `=`, or no key.
    """
    from leveret.core.errors import ConfigError

    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r}: expected KEY=VALUE, such as workers.charge.prefetch=50")
        found[key.strip()] = value
    return found


async def serve(
    app: Leveret,
    common: Common,
    *,
    workers: list[str] | None,
    retry_worker: bool,
    keeper: bool,
    until_idle: bool = False,
) -> None:
    """Run *app* with its banner and its last words. A broker that is not up yet is waited for."""
    from leveret.cli.apps import host, opened
    from leveret.cli.console import Console
    from leveret.cli.reaching import reach

    console = Console(common)
    begun = False

    async def ready() -> None:
        nonlocal begun
        begun = True
        await _show_banner(console, opened(app), workers=workers, retry_worker=retry_worker, keeper=keeper)

    def stopping(running: int) -> None:
        if running:
            grace = opened(app).config.shutdown_grace
            console.note(
                f" stopping: {running} running {'has' if running == 1 else 'have'} up to {grace:g} s; "
                "Ctrl+C again stops at once"
            )

    def stopped(came_to: Stopped) -> None:
        if console.json:
            console.record({
                "event": "stopped", "finished": came_to.finished, "returned": came_to.returned,
                "dropped": came_to.dropped,
            })  # fmt: skip
        dropped = f", {came_to.dropped} ended and delivered again" if came_to.dropped else ""
        console.note(
            f" stopped: {came_to.finished} finished, {came_to.returned} returned to their queue{dropped}"
        )

    await host(
        app,
        reach=lambda transport: reach(transport, console, patience=None),
        workers=workers,
        retry_worker=retry_worker,
        keeper=keeper,
        until_idle=until_idle,
        ready=ready,
        stopping=stopping,
        stopped=stopped,
    )
    if not begun:
        console.note(" stopped: the broker had not answered yet, and nothing was begun")


async def _show_banner(
    console: Console, inside: Opened, *, workers: list[str] | None, retry_worker: bool, keeper: bool
) -> None:
    from leveret.cli.settings import settings_of
    from leveret.core.retry_entry import Filter

    here = Filter(namespace=inside.namespace)
    waiting = await inside.store.count_entries(here)
    dead = await inside.store.count_letters(here)
    config = inside.config
    plans = [plan for plan in inside.plans if workers is None or plan.spec.name in workers]
    rpcs = [spec for spec in inside.rpcs if workers is None or spec.name in workers]
    wanted = [name for name, asked in (("retry", retry_worker), ("keeper", keeper)) if asked]
    roles = {name: await _role(inside, name) for name in wanted}
    if console.json:
        console.record(
            {
                "event": "ready",
                "namespace": inside.namespace,
                "broker": inside.transport.display,
                "broker_version": inside.transport.server_version,
                "store": inside.store.display,
                "waiting": waiting,
                "dead": dead,
                "workers": [_worker_record(plan, inside.namespace) for plan in plans],
                "rpc": [
                    {
                        "channel": spec.name,
                        "queue": spec.queue(inside.namespace),
                        "prefetch": spec.prefetch,
                        "single": spec.single,
                    }
                    for spec in rpcs
                ],
                "leases": roles,
                "settings": [each._asdict() for each in settings_of(config)],
            }
        )
    if console.quiet or console.json:
        return
    console.note(
        f" {inside.namespace}   {broker_words(inside.transport)} ({config.origin('broker')})   "
        f"{inside.store.display} ({config.origin('store')}): {waiting} waiting, {dead} dead"
    )
    if not plans and workers == []:
        await _show_services(console, inside, roles, waiting=waiting, dead=dead)
        return
    if plans:
        console.notes(
            ["worker", "queue", "takes", "prefetch", "at once", "timeout", "tries"],
            [_worker_row(plan, inside.namespace) for plan in plans],
            right=("prefetch", "at once", "timeout"),
        )
    if rpcs:
        console.notes(
            ["answers", "queue", "prefetch", "single"],
            [
                [spec.name, spec.queue(inside.namespace), str(spec.prefetch), "yes" if spec.single else "no"]
                for spec in rpcs
            ],
            right=("prefetch",),
        )
    shown = [each for each in settings_of(config) if _worth_a_line(each.key, each.origin)]
    for each in shown:
        console.note(f" set: {each}")
    also = [
        f"{title} ({roles[name]})"
        for name, title in (("retry", "retry worker"), ("keeper", "keeper of the dead letters"))
        if name in roles
    ]
    console.note(f" also here: {', '.join(also) or 'neither retry worker nor keeper'}.  Ready; Ctrl+C stops.")


async def _show_services(
    console: Console, inside: Opened, roles: Mapping[str, str], *, waiting: int, dead: int
) -> None:
    """The last line of a process that runs no worker of its own: how it stands, and what there is to do."""
    from leveret.core.retry_entry import Filter

    parts = []
    if "retry" in roles:
        overdue = await inside.store.count_entries(Filter(namespace=inside.namespace), overdue=True)
        parts.append(f"{roles['retry']}. {waiting} waiting, {overdue or 'none'} overdue")
    if "keeper" in roles:
        parts.append(f"{roles['keeper']}. {dead} dead")
    console.note(f" {inside.namespace}: {'; '.join(parts)}.  Ready; Ctrl+C stops.")


def _worth_a_line(key: str, origin: str) -> bool:
    """The first line shows broker and store; what the code says stands in the code."""
    return key not in {"app", "broker", "store"} and origin != "code"


async def _role(inside: Opened, name: str) -> str:
    """How this process stands towards a lease; asked for it a moment ago, so that it may take a look or two."""
    until = time.monotonic() + _LEASE_LOOK
    while True:
        state = (await inside.store.leases(inside.namespace)).get(f"{inside.namespace}/{name}")
        if state is not None and state.left > 0:
            if state.holder == inside.holder:
                return f"holds the lease, term {state.term}"
            from leveret.cli.words import holder

            return f"standing by; {holder(state.holder)} holds the lease, term {state.term}, {state.left:.0f} s left"
        if time.monotonic() >= until:
            return "standing by"
        await asyncio.sleep(0.02)


def _takes(spec: WorkerSpec) -> str:
    return ", ".join(spec.types or (spec.name,))


def _worker_row(plan: WorkerPlan, namespace: str) -> list[str]:
    spec = plan.spec
    tries = str(plan.policy).replace(" tries: ", ": ", 1)
    timeout = "none" if spec.timeout is None else f"{spec.timeout:g} s"
    return [
        spec.name, f"{namespace}.{spec.name}", _takes(spec), str(spec.prefetch), str(spec.concurrency), timeout, tries,
    ]  # fmt: skip


def _worker_record(plan: WorkerPlan, namespace: str) -> dict[str, Any]:
    spec = plan.spec
    return {
        "worker": spec.name,
        "queue": f"{namespace}.{spec.name}",
        "takes": list(spec.types or (spec.name,)),
        "prefetch": spec.prefetch,
        "concurrency": spec.concurrency,
        "timeout": spec.timeout,
        "max_attempts": plan.policy.max_attempts,
        "schedule": plan.policy.schedule(),
    }
