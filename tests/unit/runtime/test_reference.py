"""docs/configuration.md is what the settings say, and what it shows can be written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from leveret.core.errors import ConfigError
from leveret.runtime import reference
from leveret.runtime.config import load_config
from leveret.runtime.schema import WORKER_SHAPE, leaves
from leveret.runtime.sources import variable


def every_setting() -> list[tuple[tuple[str, ...], reference.Words]]:
    """Each setting with its words, those of a worker named `charge` among them."""
    found = [(path, reference.WORDS[".".join(path)]) for path in leaves()]
    return found + [
        (("workers", "charge", *path), reference.WORKER_WORDS[".".join(path)])
        for path in leaves(WORKER_SHAPE)
    ]


settings = pytest.mark.parametrize(
    ("path", "words"), [pytest.param(*each, id=".".join(each[0])) for each in every_setting()]
)


def test_the_page_about_the_configuration_is_what_the_settings_say():
    written = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == reference.page(), "docs/configuration.md is not of these settings: make docs"


def test_no_words_are_left_of_settings_that_are_gone():
    assert {".".join(path) for path in leaves()} == set(reference.WORDS)
    assert {".".join(path) for path in leaves(WORKER_SHAPE)} == set(reference.WORKER_WORDS)


@settings
def test_each_setting_stands_on_the_page_with_its_variable(path, words):
    shown = ("workers", "NAME", *path[2:]) if path[0] == "workers" else path
    (row,) = [line for line in reference.page().splitlines() if f"`{variable(shown)}`" in line]
    assert row.startswith(f"| `{path[-1]}` |")
    assert f"| {words.does} | `{path[-1]} = {words.example}` |" in row


@settings
def test_each_example_is_good_toml_and_differs_from_the_default(path, words, tmp_path):
    file = tmp_path / "leveret.toml"
    table = f"[{'.'.join(path[:-1])}]\n" if len(path) > 1 else ""
    file.write_text(f"{table}{path[-1]} = {words.example}\n")
    config = load_config(environ={}, file=file)
    assert config.origin(".".join(path)) == str(file)
    assert value(config, path) != value(load_config(environ={}, file="/dev/null"), path)


@settings
def test_each_variable_is_read(path, words):
    example = tomllib.loads(f"it = {words.example}")["it"]
    text = ",".join(example) if isinstance(example, list) else str(example)
    text = text.lower() if isinstance(example, bool) else text
    config = load_config(environ={variable(path): text}, file="/dev/null")
    assert config.warnings == ()
    assert value(config, path) != value(load_config(environ={}, file="/dev/null"), path)


def value(config, path):
    """What is set there, None where nothing is."""
    found = config
    for name in path:
        found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
    return found


@pytest.mark.parametrize("given", ["yes", "true", 1, [True]])
def test_a_switch_is_true_or_false_and_nothing_else(given):
    with pytest.raises(ConfigError, match=r"scoping=.*: expected true or false"):
        load_config(code={"retry_worker": {"scoping": given}}, environ={}, file="/dev/null")


@pytest.mark.parametrize(("text", "switched"), [("true", True), ("False", False), (" TRUE ", True)])
def test_a_switch_is_read_from_a_variable(text, switched):
    config = load_config(environ={"LEVERET_RETRY_WORKER__SCOPING": text}, file="/dev/null")
    assert config.retry_worker.scoping is switched
