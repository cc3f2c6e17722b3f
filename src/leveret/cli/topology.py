"""`leveret topology show`: what an app declares on its broker."""

from __future__ import annotations

import typer

from leveret.cli.options import Common, Target, command


def add_to(cli: typer.Typer) -> None:
    """Declare the group."""
    group = typer.Typer(help="Exchanges, queues and bindings on the broker.", no_args_is_help=True)
    # A second command comes with the broker that has something to compare; until then typer would fold the only one.
    group.callback()(_group)
    command(group, "show")(show)
    cli.add_typer(group, name="topology")


def _group() -> None:
    """Exchanges, queues and bindings on the broker."""


async def show(target: Target = None, *, common: Common) -> None:
    """Show what an app declares, without connecting to anything."""
    from leveret.cli.apps import declared, load
    from leveret.cli.console import Console

    console = Console(common)
    app = load(target, common, command="topology show")
    found = declared(app)
    topology = found.topology
    if console.json:
        for exchange in topology.exchanges:
            console.record({"exchange": exchange.name, "type": exchange.type, "durable": exchange.durable})
        for queue in topology.queues:
            console.record(
                {"queue": queue.name, "type": queue.queue_type, "arguments": dict(queue.arguments)}
            )
        for binding in topology.bindings:
            console.record(
                {"binding": binding.queue, "exchange": binding.exchange, "key": binding.routing_key}
            )
        return
    console.head(
        f"namespace {found.namespace} ({found.config.origin('namespace')}) · "
        f"broker {found.config.broker or 'not named'}"
    )
    console.table(
        ["exchange", "type", "durable"],
        [[each.name, each.type, "yes" if each.durable else "no"] for each in topology.exchanges],
    )
    console.table(
        ["queue", "type", "arguments"],
        [
            [
                each.name,
                each.queue_type or "as the broker has it",
                ", ".join(f"{name}={value}" for name, value in each.arguments.items()) or "–",
            ]
            for each in topology.queues
        ],
    )
    console.table(
        ["exchange", "key", "goes to"],
        [[each.exchange, each.routing_key or "(all)", each.queue] for each in topology.bindings],
    )
