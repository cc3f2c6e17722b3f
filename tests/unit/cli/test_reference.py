from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from leveret.cli import reference
from leveret.cli.commands import cli


def every_command():
    return list(reference._commands(get_command(cli), "leveret"))


def test_the_page_about_the_command_line_is_what_the_commands_say():
    written = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference.page(), "docs/cli.md is not of these commands: make docs"


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in every_command()])
def test_every_command_has_help_and_so_has_each_of_its_options(name, command):
    assert command.help.strip()
    for parameter in command.params:
        assert (parameter.help or "").strip(), f"{name}: {parameter.name} has no help"


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in every_command()])
def test_every_command_takes_the_options_that_all_take(name, command):
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert flags >= {"--config", "--broker", "--store", "--namespace", "--json", "--quiet", "--no-color"}


def test_flags_that_a_variable_can_give_name_it_in_their_help():
    parameters = {each.name: each.help for _, command in every_command() for each in command.params}
    for name, variable in {
        "config": "LEVERET_CONFIG",
        "broker": "LEVERET_BROKER",
        "store": "LEVERET_STORE",
        "namespace": "LEVERET_NAMESPACE",
        "no_color": "NO_COLOR",
        "target": "LEVERET_APP",
    }.items():
        assert f"[{variable}]" in parameters[name]


def test_help_loads_nothing_that_is_slow():
    code = (
        "import sys; from leveret.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print({'pydantic', 'rich', 'leveret.app', 'sqlite3'} & set(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Run an app" in ended.stdout
    assert ended.stderr == "set()\n"
