"""Each example does what its README says: its expected.txt is found in what it writes."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.demo.endpoint import Endpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
#: The port that the sample names; the test's endpoint takes any free one.
NAMED = "http://127.0.0.1:8099"


@pytest.fixture(params=sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def example(request):
    return EXAMPLES / request.param


def test_every_example_has_a_readme_and_says_what_to_expect(example):
    assert (example / "README.md").is_file()
    assert (example / "expected.txt").is_file()


def assert_expected(folder: Path, written: bytes) -> None:
    """Each line of its expected.txt is found in a line of what it wrote."""
    lines = written.decode("utf-8").splitlines()
    for expected in (folder / "expected.txt").read_text("utf-8").splitlines():
        if not expected.startswith("#"):
            assert any(re.search(expected, line) for line in lines), (expected, lines)


async def test_webhooks_are_delivered_tried_again_or_dead_as_the_example_says(tmp_path):
    folder = EXAMPLES / "webhooks"
    sample = tmp_path / "webhooks.jsonl"
    env = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
    env["no_proxy"] = "127.0.0.1"
    async with Endpoint() as endpoint:
        sample.write_text(
            (folder / "webhooks.jsonl").read_text("utf-8").replace(NAMED, endpoint.url), "utf-8"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(folder / "webhooks.py"), str(sample),
            cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        written, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, written.decode()
    assert_expected(folder, written)
    assert sorted(endpoint.taken.values()) == [1, 1, 1, 1]


def test_the_daemon_tells_its_story_in_one_process_without_a_broker(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
    told = subprocess.run(
        [sys.executable, str(EXAMPLES / "daemon" / "story.py")],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout.decode()
    assert_expected(EXAMPLES / "daemon", told.stdout)
    assert list(tmp_path.iterdir()) == []
