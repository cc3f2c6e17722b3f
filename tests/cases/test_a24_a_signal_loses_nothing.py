"""A24: told to stop, leveret takes no more, returns what has not started, lets handlers finish, acks, and closes.

1,000 messages, a prefetch of 50, and SIGTERM at a random moment, to a real process: what is done and what is still
queued make 1,000, nothing is done and queued, nothing is dead, and the process ends within its grace. A handler takes
50 ms where a patient reader would take a second: what counts is that at any moment 20 run and 30 more are in hand.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("stopped_app.py")
EVERYTHING = list(range(1_000))


@contextlib.contextmanager
def an_app(kind: str, *, seconds: float, grace: float) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), kind, str(seconds), str(grace)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def read_until(child: subprocess.Popen[str], word: str, number: int) -> None:
    """Return when the app has said *word* so many times."""
    for line in child.stdout:
        number -= line.startswith(word)
        if number <= 0:
            return
    raise AssertionError(f"the app ended with {child.wait()} before it said {word!r} often enough")


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a24_what_is_done_and_what_is_queued_make_all_of_it(kind, seed):
    moment = random.Random(f"{kind} {seed}").randrange(1, 900)
    with an_app(kind, seconds=0.05, grace=20) as child:
        read_until(child, "started", moment)
        child.send_signal(signal.SIGTERM)
        told = json.loads(child.stdout.read().splitlines()[-1])
        assert child.wait(timeout=20) == 0
    assert moment <= len(told["done"]) < 1_000
    assert sorted(told["done"] + told["left"]) == EVERYTHING
    assert (told["dead"], told["elsewhere"]) == (0, 0)


def test_a24_what_outlives_the_grace_goes_back_to_its_queue():
    with an_app("async", seconds=600, grace=0.3) as child:
        read_until(child, "started", 20)
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        told = json.loads(child.stdout.read().splitlines()[-1])
        assert child.wait(timeout=20) == 0
        assert 0.3 <= time.monotonic() - began < 10
    assert told["done"] == []
    assert sorted(told["left"]) == EVERYTHING
    assert (told["dead"], told["elsewhere"]) == (0, 0)


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGINT, 130),
    ],
)
def test_a24_a_second_signal_ends_it_at_once(first, second, code):
    with an_app("async", seconds=600, grace=600) as child:
        read_until(child, "started", 20)
        child.send_signal(first)
        # Two signals of one kind that come at once may be one: the second one is sent until it is heard.
        while child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0.2)
                break
            child.send_signal(second)
        assert child.returncode == code
        assert "done" not in child.stdout.read()
