"""The README's first block of Python is pasted into a file, run, and does what is said beside it."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
CHARGED = re.compile(r"order (\d+) charged at attempt (\d+)")


def first_block(text: str) -> str:
    found = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder it ran in, and what it printed."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(first_block(README.read_text(encoding="utf-8")), encoding="utf-8")
    return folder, subprocess.run(
        [sys.executable, "shop.py"],
        cwd=folder,
        env=plain(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def plain() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}


def test_it_ends_by_itself_and_without_a_complaint(run):
    _, done = run
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_every_order_but_the_hopeless_one_is_charged_or_dead(run):
    folder, done = run
    charged = [CHARGED.fullmatch(line) for line in done.stdout.splitlines()]
    assert None not in charged, done.stdout
    numbers = [int(each[1]) for each in charged]
    with closing(sqlite3.connect(folder / "leveret.db")) as store:
        dead = [
            int(re.search(rb'"id":(\d+)', body)[1])
            for (body,) in store.execute("SELECT body FROM dead_letter")
        ]
        assert store.execute("SELECT count(*) FROM retry").fetchone() == (0,)
    # An order may have met the busy card service five times in a row.
    assert sorted(numbers + dead) == list(range(10))
    assert 0 in dead
    assert numbers
    assert all(1 <= int(each[2]) <= 5 for each in charged)


def test_order_0_lies_among_the_dead_with_its_reason_after_the_process_is_gone(run):
    folder, _ = run
    listed = subprocess.run(
        [sys.executable, "-m", "leveret.cli", "dead", "list"],
        cwd=folder, env=plain(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert listed.returncode == 0, listed.stderr
    assert "cannot charge 0 cents" in listed.stdout


def test_the_handler_of_the_block_can_be_called_as_the_plain_function_it_is(run):
    folder, _ = run
    code = (
        "import asyncio, shop\n"
        "try: asyncio.run(shop.charge(shop.Order(id=0, cents=0), None))\n"
        "except shop.HardFailure as error: print(error)"
    )
    called = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder, env=plain(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert called.stdout == "cannot charge 0 cents\n", called.stderr
