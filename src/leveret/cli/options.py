"""Options that many commands share, and how a command is declared: groups of options are parameters of their own."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from leveret.cli.exits import DONE, INTERRUPTED, ReaderGone

if TYPE_CHECKING:
    from leveret.runtime.config import RuntimeConfig

F = TypeVar("F", bound=Callable[..., Any])

# A flag's variable is named in its help, and not given to typer: a value that typer took from the environment would
# look like a flag, and beat the code.


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What every command takes."""

    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Settings; default ./leveret.toml where there is one. [LEVERET_CONFIG]",
        ),
    ] = None
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker", metavar="URL", help="amqp://user:password@host, or memory://. [LEVERET_BROKER]"
        ),
    ] = None
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URL", help="Default sqlite:///leveret.db. [LEVERET_STORE]"),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", metavar="NAME", help="First part of every name on the broker. [LEVERET_NAMESPACE]"
        ),
    ] = None
    json: Annotated[
        bool, typer.Option("--json", help="Results as JSON, one object a line: full ids, times in UTC.")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Results, warnings and errors only: no heads, hints or progress.")
    ] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours. [NO_COLOR]")] = False

    def flags(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What was typed, by setting, with *more* of it."""
        return {"broker": self.broker, "store": self.store, "namespace": self.namespace, **(more or {})}

    def settings(self, more: Mapping[str, Any] | None = None) -> RuntimeConfig:
        """The configuration of a command that runs without an app.

        Raises:
            ConfigError: all that is wrong in it.
        """
        from leveret.runtime.config import load_config

        return load_config(flags=self.flags(more), file=self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Words that say which messages are meant."""

    worker: Annotated[str | None, typer.Option("--worker", metavar="NAME", help="Those of this worker.")] = (
        None
    )
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Those with this text in their reason.")
    ] = None
    type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Those of this message type.")
    ] = None
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Those with this text in their body.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Failed or died at this time or later: ISO 8601, or 14:02 of today.",
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Failed or died at this time or earlier.")
    ] = None
    attempts: Annotated[
        int | None, typer.Option("--attempts", metavar="N", help="Tried exactly so often.")
    ] = None

    def words(self) -> dict[str, Any]:
        """What was given, as the library takes it.

        Raises:
            ConfigError: a time that is none.
        """
        from leveret.cli.words import moment

        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("since", "until"):
            if given[name] is not None:
                given[name] = moment(given[name], f"--{name}")
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """How an act is done."""

    here: Annotated[
        bool,
        typer.Option(
            "--here", help="Claim the lease and do it in this process, where no other one holds it."
        ),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many; nothing is changed.")] = False
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before changing what a filter has chosen.")
    ] = False


#: MODULE:APP, where a command takes one.
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:APP",
        help="Where the app is, such as shop:app; default: app in leveret.toml. [LEVERET_APP]",
    ),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID", help="Message ids or ids of their own, or any ending of six characters or more."
    ),
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="So many rows at most.")]


def command(group: typer.Typer, name: str) -> Callable[[F], F]:
    """Declare a command. Its parameters may be groups of options; it may be async, and returns an exit code or None.

    Example:
        >>> cli = typer.Typer()
        >>> @command(cli, "hello")
        ... async def hello(common: Common) -> int:
        ...     return 0
    """

    def register(function: F) -> F:
        group.command(name)(_flat(function))
        return function

    return register


def _flat(function: Callable[..., Any]) -> Callable[..., None]:
    """*function* as typer reads it: each option a parameter of its own."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=kind))
            continue
        groups[name] = kind
        inner = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, parameter.KEYWORD_ONLY, default=field.default, annotation=inner[field.name]
            )
            for field in dataclasses.fields(kind)
        ]

    def flat(**given: Any) -> None:
        whole = {
            name: kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        try:
            code = function(**given, **whole)
            if inspect.iscoroutine(code):
                code = asyncio.run(code)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except ReaderGone:
            # What is left goes nowhere, also what Python flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(DONE) from None
        raise typer.Exit(DONE if code is None else code)

    flat.__name__, flat.__doc__, flat.__module__ = function.__name__, function.__doc__, function.__module__
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return flat
