"""`python -m leveret.cli.reference`: the page about the command line, from the commands themselves."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from leveret.cli import exits
from leveret.cli.options import Common

_OPENING: Final = """\
# Command line

*Written by `make docs` from the commands themselves.*

Results go to standard output, progress and logs to standard error. A short id is any ending of six characters or more.
A command that reads looks at all that the store holds where no namespace is named, and never creates a store.

What wins: a flag, then the code, then the environment, then `leveret.toml`, then the default. A flag's variable stands
in brackets behind it.
"""

#: Names of the options that every command takes, described once.
_EVERYWHERE: Final = {field.name for field in fields(Common)}


def page() -> str:
    """The whole page, in Markdown."""
    from typer.main import get_command

    from leveret.cli.commands import cli

    root: Any = get_command(cli)
    commands = list(_commands(root, "leveret"))
    parts = [_OPENING, _exit_codes()]
    usual = [each for each in commands[0][1].params if each.name in _EVERYWHERE]
    parts.append("## Options of every command\n\n" + _table(usual))
    parts.append("## Commands\n")
    parts += [_section(name, command) for name, command in commands]
    return "\n".join(parts)


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for each, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {each}")
        else:
            yield f"{name} {each}", command


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [
        each
        for each in command.params
        if each.param_type_name == "option" and each.name not in _EVERYWHERE and "--help" not in each.opts
    ]
    usage = " ".join([name, *map(_usage, arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"### {name}\n", f"```\n{usage}\n```\n", _prose(command.help or "")]
    if arguments or options:
        parts.append(_table([*arguments, *options]))
    return "\n".join(parts)


def _usage(argument: Any) -> str:
    shown = f"{argument.metavar}…" if argument.nargs == -1 else argument.metavar
    return shown if argument.required else f"[{shown}]"


def _table(parameters: list[Any]) -> str:
    lines = ["| | |", "|---|---|"]
    for each in parameters:
        name = each.metavar
        if each.param_type_name == "option":
            flag = each.opts[0]
            name = f"{flag} {each.metavar}" if each.metavar else flag
        default = each.default
        shown = "" if default in (None, False, ()) or callable(default) else f" Default: {default}."
        lines.append(f"| `{name}` | {_cell(each.help or '')}{shown} |")
    return "\n".join(lines) + "\n"


def _prose(text: str) -> str:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(each.split()) for each in paragraphs) + "\n"


def _cell(text: str) -> str:
    # A variable in brackets would look like a link.
    return re.sub(r"\[([A-Z][^\]]*)\]$", r"(`\1`)", " ".join(text.split())).replace("|", "\\|")


def _exit_codes() -> str:
    lines = ["## Exit codes\n", "| code | means |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in exits.MEANINGS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
