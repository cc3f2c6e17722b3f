"""`leveret doctor`: everything that can be looked at from here, and what to do about what is wrong."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from leveret.cli import exits
from leveret.cli.options import Common, Target, command

if TYPE_CHECKING:
    from leveret.cli.console import Console
    from leveret.cli.looking import Look
    from leveret.ports import Store, World
    from leveret.runtime.config import RuntimeConfig


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Literal["ok", "warn", "fault"]
    about: str
    text: str


def add_to(cli: typer.Typer) -> None:
    """Declare `doctor`."""
    command(cli, "doctor")(doctor)


async def doctor(target: Target = None, *, common: Common) -> int:
    """Look at everything, and say what to do about faults.

    At settings, app, broker, store and retry worker; every value that is set is shown with its origin. Ends with
    exit code 1 where there is a fault.
    """
    from leveret.cli.console import Console
    from leveret.runtime.wiring import make_store
    from leveret.runtime.world import system_world

    console = Console(common)
    config = common.settings()
    findings: list[Finding] = []
    if target or config.app:
        finding, config = _look_at_app(target, common)
        findings.append(finding)
    findings += _look_at_settings(config)
    findings.append(_look_at_broker(config))
    world = system_world()
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


def _look_at_app(target: str | None, common: Common) -> tuple[Finding, RuntimeConfig]:
    from leveret.cli.apps import declared, load
    from leveret.cli.words import counted, listed

    app = load(target, common, command="doctor")
    found = declared(app)
    names = [plan.spec.name for plan in found.plans]
    text = f"{found.namespace}: {counted(len(names), 'worker')}"
    if not names:
        return Finding("warn", "app", f"{text}. It only publishes"), found.config
    return Finding("ok", "app", f"{text}: {listed(names)}"), found.config


def _look_at_settings(config: RuntimeConfig) -> list[Finding]:
    from leveret.cli.settings import settings_of

    found = [Finding("ok", "setting", str(each)) for each in settings_of(config)]
    found += [Finding("warn", "setting", warning) for warning in config.warnings]
    return found or [Finding("ok", "setting", "nothing is set; every value is at its default")]


def _look_at_broker(config: RuntimeConfig) -> Finding:
    if config.broker is None:
        return Finding(
            "warn", "broker", "none is named here. An app may name its own: leveret doctor MODULE:APP"
        )
    if config.broker.scheme == "memory":
        return Finding(
            "ok", "broker", f"{config.broker} lives inside one process, there is nothing to look at from here"
        )
    return Finding(
        "fault",
        "broker",
        f"{config.broker}: this release of leveret speaks memory:// only; RabbitMQ comes with the next one",
    )


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
        elif not _writable(config.store.path):
            yield Finding(
                "fault",
                "store",
                f"{about}, but this user may not write it and its folder: give it the right to",
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
