"""`leveret topology`: what an app declares on its broker, what is there, and how the one becomes the other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from leveret.cli import exits
from leveret.cli.options import Common, command

if TYPE_CHECKING:
    from leveret.cli.apps import Declared
    from leveret.cli.console import Console
    from leveret.core.topology import Difference
    from leveret.ports import Transport

#: A broker tells nobody of its bindings but by its management API.
_BINDINGS = (
    "bindings: not checked, AMQP does not tell of them; leveret topology apply makes those that are missing"
)


#: What the commands are about: an app, or what a daemon declares that is none.
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:NAME",
        help="An app such as shop:app, or a Topology such as daemon:TOPOLOGY; default: app in leveret.toml. "
        "[LEVERET_APP]",
    ),
]


def add_to(cli: typer.Typer) -> None:
    """Declare the group."""
    group = typer.Typer(
        help="Exchanges, queues and bindings on the broker. Nothing here deletes.", no_args_is_help=True
    )
    command(group, "show")(show)
    command(group, "check")(check)
    command(group, "diff")(diff)
    command(group, "apply")(apply)
    cli.add_typer(group, name="topology")


class _There(NamedTuple):
    """A look at the broker of an app."""

    console: Console
    app: Declared
    transport: Transport
    differences: Sequence[Difference]

    @property
    def head(self) -> str:
        from leveret.cli.words import broker_words

        return f"namespace {self.app.namespace} · {broker_words(self.transport)}"

    @property
    def as_declared(self) -> str:
        from leveret.cli.words import counted

        topology = self.app.topology
        wrong = {(each.kind, each.name) for each in self.differences}
        right = len(topology.exchanges) + len(topology.queues) - len(wrong)
        return f"{counted(right, 'exchange or queue', 'exchanges and queues')} as declared"


@contextlib.asynccontextmanager
async def _looking(target: str | None, common: Common, name: str) -> AsyncIterator[_There]:
    from leveret.cli.apps import load_declared
    from leveret.cli.console import Console
    from leveret.cli.looking import refuse_memory_broker
    from leveret.cli.reaching import connected
    from leveret.runtime.world import system_world

    console = Console(common)
    app = load_declared(target, common, command=f"topology {name}")
    refuse_memory_broker(app.config, f"topology {name}")
    async with connected(app.config, system_world(), console) as transport:
        yield _There(console, app, transport, await transport.inspect(app.topology))


async def check(target: Target = None, *, common: Common) -> int:
    """Check that exchanges and queues are there, as the app declares them.

    Changes nothing. Ends with exit code 1 where something is missing or differs.
    """
    async with _looking(target, common, "check") as there:
        console = there.console
        if console.json:
            for each in there.differences:
                console.record(_record(each))
        else:
            console.head(there.head)
            for each in there.differences:
                console.result(f" {_LEVELS[each.state]}   {each.words}", _LEVELS[each.state])
            if any(each.state == "missing" for each in there.differences):
                console.result(
                    " What is missing is made by:  leveret topology apply, or when the app starts", "hint"
                )
            console.result(f" ok   {there.as_declared}", "ok")
            console.head(_BINDINGS)
        return exits.WRONG if there.differences else exits.DONE


#: How grave each state is, as `doctor` has it.
_LEVELS = {"missing": "warn", "differs": "warn", "unsafe": "fault", "refused": "fault"}


async def diff(
    target: Target = None,
    steps: Annotated[
        bool,
        typer.Option("--steps", help="Show how to change each by hand, without losing a message."),
    ] = False,
    *,
    common: Common,
) -> int:
    """Show what differs on the broker, argument by argument.

    Changes nothing. Ends with exit code 1 where something is missing or differs.
    """
    async with _looking(target, common, "diff") as there:
        console = there.console
        ways = ways_to_change(there, target) if steps else {}
        if console.json:
            for each in there.differences:
                way = ways.get((each.kind, each.name))
                console.record(_record(each) | ({} if way is None else {"steps": way}))
            return exits.WRONG if there.differences else exits.DONE
        console.head(there.head)
        if there.differences:
            rows = [_row(each, shown=not steps) for each in there.differences]
            console.table(["queue", "argument", "there", "here", "what to do"], rows)
        else:
            console.result(f" {there.as_declared}; nothing differs")
        for (kind, name), way in ways.items():
            console.result(f"\n {kind} {name}", "title")
            for number, step in enumerate(way, 1):
                console.result(f"  {number}. {step}")
        return exits.WRONG if there.differences else exits.DONE


async def apply(target: Target = None, *, common: Common) -> None:
    """Make what is missing on the broker: exchanges, queues and bindings.

    Deletes nothing and changes nothing that is there; a queue that would lose messages is refused before anything is
    made.
    """
    from leveret.core.errors import AccessRefused, QueueMismatch

    async with _looking(target, common, "apply") as there:
        for each in there.differences:
            if each.state == "unsafe":
                raise QueueMismatch(f"{each.words}. Nothing was made")
            if each.state == "refused":
                raise AccessRefused(f"{each.words}. Nothing was made")
        for note in await there.transport.declare(there.app.topology):
            there.console.warning(note)
        console = there.console
        made = [each for each in there.differences if each.state == "missing"]
        if console.json:
            for each in made:
                console.record({"made": each.name, "kind": each.kind})
            return
        console.head(there.head)
        for each in made:
            console.result(f" made   {each.kind} {each.name}", "ok")
        console.result(f" {there.as_declared}, {len(made)} made now; every binding is there")


def _record(each: Difference) -> dict[str, Any]:
    return {
        "kind": each.kind, "name": each.name, "state": each.state, "argument": each.argument or None,
        "there": each.there, "here": each.here, "words": each.words,
    }  # fmt: skip


def _row(each: Difference, *, shown: bool) -> list[str]:
    more = "; leveret topology diff --steps shows how to change it" if shown else ""
    todo = {
        "missing": "leveret topology apply makes it",
        "differs": f"kept as it is{more}",
        "unsafe": f"not used, it would lose messages{more}",
        "refused": each.words,
    }[each.state]
    name = each.name if each.kind == "queue" else f"exchange {each.name}"
    if each.state in {"missing", "refused"}:
        return [name, "–", "missing" if each.state == "missing" else "refused", "declared", todo]
    return [name, each.argument, _value(each.there), _value(each.here), todo]


def _value(value: object) -> str:
    return "–" if value is None else str(value)


def ways_to_change(there: _There, target: str | None) -> dict[tuple[str, str], list[str]]:
    """For each exchange and queue that differs, the steps that change it by hand without losing a message."""
    from leveret.core.topology import Names

    names = Names(there.app.namespace)
    apply = " ".join(["leveret topology apply", *([target] if target else [])])
    broker = there.app.config.require_broker()
    vhost = "" if broker.vhost == "/" else f" --vhost '{broker.vhost}'"
    types = {(each.name, each.argument): each.there for each in there.differences}
    declared = {queue.name: queue.queue_type for queue in there.app.topology.queues}
    ways: dict[tuple[str, str], list[str]] = {}
    for each in there.differences:
        key = (each.kind, each.name)
        if key in ways or each.state in {"missing", "refused"}:
            continue
        if each.kind == "exchange":
            ways[key] = [
                "An exchange cannot be changed. Give the app another one, by another name (exchange=…), or go on here.",
                "Stop whatever publishes to it. What is published meanwhile is refused and told to whoever publishes.",
                f"rabbitmqadmin delete exchange name={each.name}{vhost}   (its bindings go with it, no message does)",
                f"{apply}   and start again what publishes",
            ]
            continue
        quorum = types.get((each.name, "x-queue-type"), declared.get(each.name)) == "quorum"
        # RabbitMQ refuses --if-empty for quorum queues.
        delete = f"rabbitmqctl delete_queue {each.name}{vhost}"
        delete += (
            "   (only once it shows 0 messages: of a quorum queue the broker does not check that itself)"
            if quorum
            else " --if-empty"
        )
        plan = next((plan for plan in there.app.plans if each.name == names.queue(plan.spec.name)), None)
        if each.name == names.retry_queue:
            drain = "Drain it: stop the workers (what fails comes in here), and leave leveret retry-worker running"
        elif each.name == names.dead_letters:
            drain = "Drain it: stop the workers, and leave leveret keeper running"
        else:
            drain = "Drain it: stop what publishes, and leave its workers running"
        drain += " until this shows 0 messages, unacknowledged ones included:\n"
        drain += f"     rabbitmqctl list_queues{vhost} name messages"
        steps = [drain]
        if plan is not None:
            steps.append(
                'What waits for its next try may stay: it is kept as "queue gone" until the queue is back. To have it '
                f"worked off elsewhere, move it:  leveret retries move --worker {plan.spec.name} --to QUEUE"
            )
        steps.append("Stop everything that consumes it, then delete it:  " + delete)
        steps.append(f"Make it anew, with its bindings:  {apply}")
        steps.append("Start again what was stopped.")
        ways[key] = steps
    return ways


async def show(target: Target = None, *, common: Common) -> None:
    """Show what an app declares, without connecting to anything."""
    from leveret.cli.apps import load_declared
    from leveret.cli.console import Console

    console = Console(common)
    found = load_declared(target, common, command="topology show")
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
    origin = "its names" if found.config.namespace is None else found.config.origin("namespace")
    console.head(f"namespace {found.namespace} ({origin}) · broker {found.config.broker or 'not named'}")
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
