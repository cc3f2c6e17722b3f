"""All commands in one tree. Importing this loads typer, and nothing that is slow."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from leveret.cli import (
    bench,
    dead,
    demo,
    doctor,
    exits,
    notify,
    publish,
    retries,
    rpc,
    run,
    services,
    simulate,
    status,
    store,
    tail,
    topology,
    torture,
)

#: Below the help, and in the reference.
_EPILOG: Final = "Exit codes: " + " · ".join(f"{code} {meaning}" for code, meaning in exits.MEANINGS.items())

cli = typer.Typer(
    help="Reliable messaging: what leveret has accepted is processed, waiting, or in the dead letters.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    # Plain help is there in a tenth of the time.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"leveret {version('leveret')}")
        raise typer.Exit


@cli.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    pass


for group in (
    demo,
    run,
    services,
    publish,
    rpc,
    tail,
    notify,
    status,
    retries,
    dead,
    topology,
    store,
    doctor,
    bench,
    simulate,
    torture,
):
    group.add_to(cli)
