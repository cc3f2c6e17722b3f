"""Every example in a docstring that looks like a session is one: it is run, and says what it is said to say."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import leveret

MODULES = [
    found.name
    for found in pkgutil.walk_packages(leveret.__path__, "leveret.")
    # Importing it runs the command line.
    if not found.name.endswith(".__main__")
]


@pytest.mark.parametrize("name", ["leveret", *MODULES])
def test_the_examples_in_the_docstrings_are_true(name, tmp_path, monkeypatch):
    # An example may look for a settings file, and none of them may find one or leave one.
    monkeypatch.chdir(tmp_path)
    results = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS, report=False)
    assert results.failed == 0
    assert list(tmp_path.iterdir()) == []


def test_there_are_examples_to_run():
    """Nothing above would fail if the examples were no longer found."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = sum(len(test.examples) for name in MODULES for test in finder.find(import_module(name)))
    assert found > 80
