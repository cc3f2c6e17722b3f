"""`leveret demo` as a newcomer types it: a process of its own, an endpoint, a SQLite file."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import pytest

from leveret.core.retry_entry import Filter
from leveret.core.urls import StoreUrl
from leveret.runtime import wiring
from leveret.runtime.world import system_world


def demo(*arguments, folder):
    # A proxy that nobody answers at, and settings that would stop any other run: the demo minds neither.
    env = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET_")}
    env |= {"HTTP_PROXY": "http://127.0.0.1:9", "LEVERET_BROKER": "amqp://nowhere", "TMPDIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "leveret.cli", "demo", *arguments],
        cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8", timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """One run of it, for all that has to be looked at."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo("--count", "60", "--plain", "--seed", "7", folder=folder)


def letters(path):
    async def read():
        store = wiring.make_store(StoreUrl(kind="sqlite", path=str(path)), system_world())
        await store.open(create=False)
        found, _ = await store.letters(Filter(), limit=100)
        await store.close()
        return found

    return asyncio.run(read())


def test_the_demo_accounts_for_every_message_and_ends_well(ended):
    _, done = ended
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    found = re.fullmatch(r"accounted: published=62 delivered=(\d+) dead=(\d+) waiting=0 lost=0", last)
    assert found, last
    assert int(found[1]) + int(found[2]) == 62


def test_the_demo_tells_what_happened_in_lines(ended):
    _, done = ended
    for told in (
        r"^leveret demo   memory:// · sqlite:////.*leveret-demo-.*/leveret\.db · seed 7$",
        r"^00:\d\d  retry worker dropped without clean-up, \d+ waiting$",
        r"^00:\d\d  started again",
        r"^00:\d\d  dead  deliver  \w{6}  attempt 6  retries exhausted: KeyError: 'url'$",
        r"^00:\d\d  settled \d+ of 62   published \d+   delivered \d+   waiting \d+",
    ):
        assert re.search(told, done.stderr, re.MULTILINE), (told, done.stderr)


def test_each_dead_letter_of_the_demo_has_its_reason(ended):
    folder, _ = ended
    [path] = folder.glob("leveret-demo-*/leveret.db")
    found = sorted((letter.ending, letter.reason) for letter in letters(path))
    endings = [ending for ending, _ in found]
    assert endings.count("retries exhausted") == 1
    assert endings.count("undecodable") == 1
    for ending, reason in found:
        wanted = {
            "hard failure": r"HardFailure: 410 Gone",
            "retries exhausted": r"retries exhausted: KeyError: 'url'",
            "undecodable": r"the body is not JSON",
        }[ending]
        assert re.match(wanted, reason)


def test_the_demo_shows_where_to_look_around(ended):
    folder, done = ended
    [path] = folder.glob("leveret-demo-*/leveret.db")
    assert f"Look around: leveret dead list --store sqlite:///{path}" in done.stdout


def test_a_broker_that_nobody_answers_for_is_exit_code_3_and_leaves_nothing_behind(tmp_path):
    done = demo("--broker", "amqp://shop:secret@127.0.0.1:1", folder=tmp_path)
    assert done.returncode == 3
    assert "BrokerUnreachable" in done.stderr
    assert "secret" not in done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []
