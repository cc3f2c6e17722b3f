"""The page "Coming from warren": what it shows runs, what it names exists."""

from __future__ import annotations

import asyncio
import re
from importlib import import_module
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from-warren.md").read_text()


def test_its_code_runs_as_far_as_it_needs_no_server():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, object] = {}
        exec(block.replace("asyncio.run(main())", ""), names)
        assert asyncio.iscoroutinefunction(names.get("main") or names["parse"])


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(leveret(?:\.(?!toml)\w+)+)`", PAGE))))
def test_the_names_in_it_exist(name):
    home, _, last = name.rpartition(".")
    try:
        found = getattr(import_module(home), last, None)
    except ImportError:
        found = None
    assert found is not None or import_module(name)
