"""`leveret demo`: a flaky pipeline that loses nothing, to be watched."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli.exits import DONE, WRONG
from leveret.cli.options import Common, command
from leveret.core.errors import BrokerError, ConfigError, MissingExtra, NotSupported

if TYPE_CHECKING:
    from leveret.core.urls import BrokerUrl, StoreUrl
    from leveret.demo.ledger import Ledger


def add_to(cli: typer.Typer) -> None:
    """Declare `demo`."""
    command(cli, "demo")(demo)


async def demo(
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", help="The same webhooks and answers again; default: new ones each time."
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count", metavar="N", min=1, help="So many webhooks, and two that nobody can deliver."
        ),
    ] = 1000,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")] = False,
    *,
    common: Common,
) -> int:
    """Deliver webhooks to an endpoint that fails the way endpoints fail, and account for every one.

    Half-way the retry worker is dropped without clean-up. All of it runs in this process, with a namespace of its own
    and a store in a temporary folder; no settings file and no variable changes it. Exit code 1 if a message is lost.
    """
    from leveret.cli.console import Console
    from leveret.cli.demo_view import watching
    from leveret.demo.run import Demo

    if common.config is not None:
        raise ConfigError(f"--config {common.config}: the demo reads no settings. Leave it out")
    namespace = common.namespace or f"demo-{secrets.token_hex(3)}"
    seed = secrets.randbelow(10_000) if seed is None else seed
    broker, shown = _broker(common.broker or "memory://", namespace)
    store, own_folder = _store(common.store)
    console = Console(common)
    # The webhooks stay on this machine, also where others have to go through a proxy.
    os.environ["no_proxy"] = ",".join(filter(None, (os.environ.get("no_proxy"), "127.0.0.1")))
    try:
        with watching(console, f"{shown} · {store} · seed {seed}", plain=plain) as view:
            run = Demo(namespace, broker=broker, store=store, seed=seed, count=count, view=view)
            ledger = await run.run()
    except (ConfigError, NotSupported, BrokerError, MissingExtra):
        # A run that could not even begin leaves nothing behind.
        if own_folder is not None:
            shutil.rmtree(own_folder)
        raise
    if common.json:
        console.record(_record(ledger, namespace=namespace, store=str(store), seed=seed))
    else:
        console.result(_twice(ledger) + f".  Look around: leveret dead list --store {store}")
        console.result(str(ledger), "ok" if ledger.lost == 0 else "fault")
    return WRONG if ledger.lost or ledger.waiting else DONE


def _broker(url: str, namespace: str) -> tuple[BrokerUrl, str]:
    """The broker, and its name for people. Two connections have to share it, so that it needs a name of its own."""
    from leveret.core.urls import parse_broker

    broker = parse_broker(url, "--broker")
    if broker.scheme == "memory" and not broker.name:
        return parse_broker(f"memory://{namespace}", "--broker"), "memory://"
    return broker, str(broker)


def _store(url: str | None) -> tuple[StoreUrl, Path | None]:
    """The store, and the folder that was made for it."""
    import tempfile

    from leveret.core.urls import StoreUrl, parse_store

    if url is None:
        folder = Path(tempfile.mkdtemp(prefix="leveret-demo-"))
        return StoreUrl(kind="sqlite", path=str(folder / "leveret.db")), folder
    store = parse_store(url, "--store")
    if store.kind == "memory":
        raise ConfigError(
            "--store memory://: when the demo's retry worker dies, such a store dies with it. Name a file, "
            "sqlite:///demo.db, or leave it out for one in a temporary folder"
        )
    return store, None


def _twice(ledger: Ledger) -> str:
    why = (
        " (cut off between publish and delete, or before an answer came; same message id)"
        if ledger.twice
        else ""
    )
    return f"delivered twice: {ledger.twice}{why}"


def _record(ledger: Ledger, **more: object) -> dict[str, object]:
    import dataclasses

    return {**dataclasses.asdict(ledger), **more}
