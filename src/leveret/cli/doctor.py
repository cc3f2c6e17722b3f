"""`leveret doctor`: everything that can be looked at from here, and what to do about what is wrong."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from leveret.cli import exits
from leveret.cli.options import Common, Target, command

if TYPE_CHECKING:
    from leveret.cli.apps import Declared
    from leveret.cli.console import Console
    from leveret.cli.looking import Look
    from leveret.core.topology import Difference, Topology
    from leveret.ports import Store, Transport, World
    from leveret.runtime.config import RuntimeConfig

#: The argument of a quorum queue after so many returns of which the broker takes a message away.
_DELIVERY_LIMIT = "x-delivery-limit"


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Literal["ok", "note", "warn", "fault"]
    about: str
    text: str


def add_to(cli: typer.Typer) -> None:
    """Declare `doctor`."""
    command(cli, "doctor")(doctor)


async def doctor(target: Target = None, *, common: Common) -> int:
    """Look at everything, and say what to do about faults.

    At settings, app, broker, queues, store and retry worker; every value that is set is shown with its origin. The
    broker is sent one message, through a queue of its own. Ends with exit code 1 where there is a fault.
    """
    from leveret.cli.console import Console
    from leveret.runtime.wiring import make_store
    from leveret.runtime.world import system_world

    console = Console(common)
    config = common.settings()
    findings: list[Finding] = []
    app: Declared | None = None
    if target or config.app:
        finding, app = _look_at_app(target, common)
        config = app.config
        findings.append(finding)
    findings += _look_at_settings(config)
    world = system_world()
    findings += await _look_at_broker(config, app, world, console)
    findings += [
        finding async for finding in _look_at_store(config, make_store(config.store, world), world, console)
    ]
    if console.json:
        for each in findings:
            console.record(each._asdict())
    else:
        console.table(
            ["", "", ""], [list(each) for each in findings], styles=[each.level for each in findings]
        )
    return exits.WRONG if any(each.level == "fault" for each in findings) else exits.DONE


def _look_at_app(target: str | None, common: Common) -> tuple[Finding, Declared]:
    from leveret.cli.apps import declared, load
    from leveret.cli.words import counted, listed

    app = load(target, common, command="doctor")
    found = declared(app)
    names = [plan.spec.name for plan in found.plans]
    text = f"{found.namespace}: {counted(len(names), 'worker')}"
    if not names:
        return Finding("warn", "app", f"{text}. It only publishes"), found
    return Finding("ok", "app", f"{text}: {listed(names)}"), found


def _look_at_settings(config: RuntimeConfig) -> list[Finding]:
    from leveret.cli.settings import settings_of

    found = [Finding("ok", "setting", str(each)) for each in settings_of(config)]
    found += [Finding("warn", "setting", warning) for warning in config.warnings]
    return found or [Finding("ok", "setting", "nothing is set; every value is at its default")]


async def _look_at_broker(
    config: RuntimeConfig, app: Declared | None, world: World, console: Console
) -> list[Finding]:
    from leveret.cli.reaching import connected
    from leveret.core.errors import BrokerError, ConfigError, MissingExtra

    if config.broker is None:
        return [
            Finding(
                "warn", "broker", "none is named here. An app may name its own: leveret doctor MODULE:APP"
            )
        ]
    if config.broker.scheme == "memory":
        where = f"{config.broker} lives inside one process, there is nothing to look at from here"
        return [Finding("ok", "broker", where)]
    try:
        async with connected(config, world, console) as transport:
            found = [await _probed(transport, config.namespace or "", world)]
            found += await _look_at_queues(transport, config, app, world)
    except (BrokerError, MissingExtra, ConfigError) as error:
        return [Finding("fault", "broker", str(error))]
    found.append(
        Finding("note", "policies", "not checked, AMQP does not tell of them:  rabbitmqctl list_policies")
    )
    return found


async def _probed(transport: Transport, namespace: str, world: World) -> Finding:
    from leveret.cli.broker import probe
    from leveret.cli.words import broker_words
    from leveret.core.errors import BrokerError, NotFound

    about = broker_words(transport)
    try:
        found = await probe(transport, namespace, world.new_id())
    except (BrokerError, NotFound) as error:
        return Finding("fault", "broker", f"{about}: {error}")
    if found.fault:
        return Finding("fault", "broker", f"{about}: {found.fault}")
    return Finding("ok", "broker", f"{about}, {found.away * 1000:.0f} ms away, publishes and consumes")


async def _look_at_queues(
    transport: Transport, config: RuntimeConfig, app: Declared | None, world: World
) -> list[Finding]:
    from leveret.cli.words import counted

    topology = app.topology if app is not None else _of_namespace(config, world)
    if topology is None or config.namespace is None:
        return [
            Finding(
                "note",
                "queue",
                "not checked, no namespace is named: leveret doctor MODULE:APP, or --namespace",
            )
        ]
    differences = await transport.inspect(topology)
    levels: dict[str, Literal["warn", "fault"]] = {
        "missing": "warn", "differs": "warn", "unsafe": "fault", "refused": "fault",
    }  # fmt: skip
    makes = ". Whoever starts first makes it, or leveret topology apply"
    found = [
        Finding(levels[each.state], each.kind, each.words + (makes if each.state == "missing" else ""))
        for each in differences
    ]
    right = (
        len(topology.exchanges) + len(topology.queues) - len({(each.kind, each.name) for each in differences})
    )
    if right:
        text = counted(right, "exchange or queue is", "exchanges and queues are")
        found.append(
            Finding("ok", "queue", f"{text} as declared; bindings not checked, AMQP does not tell of them")
        )
    if app is not None:
        found += _delivery_limits(app, differences)
    return found + await _consumed(transport, config.namespace)


def _of_namespace(config: RuntimeConfig, world: World) -> Topology | None:
    from leveret.core.topology import Names, RMQExchangeConfig, base_topology
    from leveret.runtime.wiring import make_store

    if config.namespace is None:
        return None
    names = Names(config.namespace)
    exchange = config.exchange or RMQExchangeConfig(names.events)
    return base_topology(
        names, exchange, config.queue_type, pinned=not make_store(config.store, world).shared
    )


def _delivery_limits(app: Declared, differences: Sequence[Difference]) -> list[Finding]:
    """Queues from which the broker takes a message away before leveret calls it a suspect."""
    from leveret.core.topology import Names

    limits = {queue.name: queue.arguments.get(_DELIVERY_LIMIT) for queue in app.topology.queues}
    limits |= {each.name: each.there for each in differences if each.argument == _DELIVERY_LIMIT}
    found = []
    for plan in app.plans:
        queue, most = Names(app.namespace).queue(plan.spec.name), plan.spec.max_deliveries
        limit = limits.get(queue)
        if isinstance(limit, int) and 0 <= limit < most:
            text = (
                f"{queue}: its delivery limit {limit} is below max_deliveries {most}; the broker would take a message "
                f"away first. Set x-delivery-limit to {most + 1} or more"
            )
            found.append(Finding("warn", "queue", text))
    return found


async def _consumed(transport: Transport, namespace: str) -> list[Finding]:
    from leveret.cli.broker import lying
    from leveret.cli.words import counted

    found = []
    retry, dead = await lying(transport, namespace)
    for queue, service in ((retry, "retry-worker"), (dead, "keeper")):
        if queue.ready is not None and not queue.consumers:
            text = (
                f"nobody consumes {queue.queue}, with {counted(queue.ready, 'message')} in it. Start one: leveret run, "
                f"or leveret {service}"
            )
            found.append(Finding("warn", "consumer", text))
    return found


async def _look_at_store(
    config: RuntimeConfig, store: Store, world: World, console: Console
) -> AsyncIterator[Finding]:
    from leveret.cli.looking import Look
    from leveret.cli.store import is_whole, schema_words
    from leveret.cli.words import size
    from leveret.core.errors import NotFound, StoreError

    if config.store.kind == "memory":
        yield Finding(
            "warn", "store", f"{config.store} lives inside one process, and keeps nothing beyond it"
        )
        return
    try:
        await store.open(create=False)
    except NotFound as error:
        yield Finding("warn", "store", str(error))
        return
    except StoreError as error:
        yield Finding("fault", "store", str(error))
        return
    try:
        found = await store.check()
        about = f"{store.display}: {schema_words(found)}, {size(found['bytes'])}, {found['dead']} dead"
        if not is_whole(found):
            yield Finding(
                "fault",
                "store",
                f"{about}, integrity {found['integrity']}. Stop, keep a copy, and restore a backup",
            )
        elif config.store.kind == "sqlite" and not _writable(config.store.path):
            yield Finding(
                "fault",
                "store",
                f"{about}, but this user may not write it and its folder: give it the right to",
            )
        elif not found.get("writable", True):
            yield Finding(
                "fault",
                "store",
                f"{about}, but it cannot be written: give this user the right to, or name a server that takes writes",
            )
        else:
            yield Finding("ok", "store", f"{about}, writable")
        look = Look(config=config, world=world, store=store, console=console)
        for namespace in await look.namespaces():
            yield await _look_at_retries(look, namespace)
    finally:
        await store.close()


def _writable(path: str) -> bool:
    file = Path.cwd() / path
    return os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)


async def _look_at_retries(look: Look, namespace: str) -> Finding:
    from leveret.cli.status import lease_words, standing

    found = await standing(look, namespace)
    if found.faults:
        return Finding("fault", "retry", "; ".join(found.faults))
    holds = lease_words(found.retry_worker)
    text = f"{namespace}: {found.waiting} waiting, {found.overdue} overdue; retry worker: {holds}"
    if found.waiting and found.retry_worker is None:
        return Finding("warn", "retry", f"{text}. What waits goes on when one starts: leveret run")
    return Finding("ok", "retry", text)
