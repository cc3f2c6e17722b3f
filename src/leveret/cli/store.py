"""`leveret store`: is the store whole, and is its schema of this release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from leveret.cli import exits
from leveret.cli.options import Common, command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from leveret.cli.looking import Look


def add_to(cli: typer.Typer) -> None:
    """Declare the group."""
    group = typer.Typer(help="Where waiting and dead messages are kept.", no_args_is_help=True)
    command(group, "check")(check)
    command(group, "migrate")(migrate)
    cli.add_typer(group, name="store")


async def check(*, common: Common) -> int:
    """Check that the store is whole, and say what it holds.

    Ends with exit code 1 where it is not.
    """
    from leveret.cli.looking import looking

    async with looking(common) as look:
        found = await look.store.check()
        _tell(look, found)
        return exits.DONE if is_whole(found) else exits.WRONG


async def migrate(*, common: Common) -> int:
    """Bring the store's schema forward to this release.

    Opening a store does the same. A store of a newer release is refused, and stays as it is.
    """
    from leveret.cli.looking import looking

    async with looking(common) as look:
        found = await look.store.check()
        _tell(look, found)
        return exits.DONE if found["schema"] == found["newest_schema"] else exits.WRONG


def is_whole(found: Mapping[str, Any]) -> bool:
    """Whether a store's own check finds no fault in it."""
    return bool(found["integrity"] == "ok" and found["schema"] == found["newest_schema"])


def schema_words(found: Mapping[str, Any]) -> str:
    """Its schema, and whether that is the newest."""
    if found["schema"] == found["newest_schema"]:
        return f"schema {found['schema']}, up to date"
    return f"schema {found['schema']}, this release has {found['newest_schema']}"


def _tell(look: Look, found: Mapping[str, Any]) -> None:
    if look.console.json:
        look.console.record({"store": look.store.display, **found})
        return
    look.console.result(
        f"{look.store.display}: {schema_words(found)}; {found['waiting']} waiting, {found['dead']} dead, "
        f"integrity {found['integrity']}"
    )
