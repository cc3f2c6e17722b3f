"""The tutorial's files, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files that the tutorial has its reader save."""
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TUTORIAL.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_shop_prints_what_the_tutorial_shows_and_keeps_the_hopeless_order(folder: Path) -> None:
    assert "receipt for order 1, charged at attempt 3\n" in run(folder, "shop.py")
    assert "HardFailure: cannot charge 0 cents" in run(
        folder, "-m", "leveret.cli", "dead", "list", "--namespace", "shop"
    )


def test_the_tests_of_the_tutorial_pass(folder: Path) -> None:
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")
