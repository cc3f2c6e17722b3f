"""`leveret simulate` in a shell: its line, its story, its exit codes."""

from __future__ import annotations

import json
import re

import pytest

LINE = re.compile(
    r"(\d+) runs, (\d+) failed   accepted (\d+)   done (\d+)   dead (\d+)   waiting 0   duplicated \d+   late \d+   "
    r"unknown \d+   lost (\d+)"
)


def test_runs_that_pass_end_in_one_line_that_adds_up(leveret):
    ended = leveret("simulate", "--runs", "3", "--messages", "40", "--seed", "5", "--jobs", "1")
    assert ended.code == 0
    found = LINE.search(ended.out)
    assert found
    runs, failed, accepted, done, dead, lost = map(int, found.groups())
    assert (runs, failed, lost) == (3, 0, 0)
    assert accepted == done + dead > 3 * 40


def test_as_json_it_is_one_object(leveret):
    ended = leveret(
        "simulate", "--runs", "2", "--messages", "20", "--faults", "killed,cut", "--jobs", "1", "--json"
    )
    assert ended.code == 0
    told = json.loads(ended.out)
    assert told["command"] == "leveret simulate --seed 0 --runs 2 --messages 20 --faults killed,cut"
    assert told["seeds"] == "0–1"
    assert told["versions"].keys() == {"leveret", "Python"}
    assert (told["runs"], told["published"], told["lost"], told["faults"]) == (2, 40, 0, [])
    assert told["accepted"] == told["done"] + told["dead"]


def test_a_seed_that_fails_is_told_as_a_story_with_the_command_that_shows_it_again(
    leveret, monkeypatch: pytest.MonkeyPatch
):
    from tests.simulate.test_mutants import give_a_retry_to_everybody

    give_a_retry_to_everybody(monkeypatch)
    ended = leveret("simulate", "--seed", "1", "--messages", "60", "--faults", "none", "--jobs", "1")
    assert ended.code == 1
    assert "seed 1: " in ended.out
    assert "are enough:" in ended.out
    assert "Again: leveret simulate --seed 1 --messages 60 --faults none" in ended.out
    assert "1 runs, 1 failed" in ended.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--faults", "earthquake"), "there is no fault 'earthquake'"),
        (("--broker", "amqp://localhost"), "a simulation has a broker and a store of its own"),
    ],
)
def test_what_cannot_be_meant_is_refused(leveret, arguments: tuple[str, ...], words: str):
    ended = leveret("simulate", *arguments)
    assert ended.code == 2
    assert words in ended.err
