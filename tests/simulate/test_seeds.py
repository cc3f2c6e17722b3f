"""A hundred nights: each seed is a run of a thousand messages through whatever its faults are."""

from __future__ import annotations

import pytest

from leveret.simulate.batch import run_many, story_of
from leveret.simulate.faults import FAULTS

RUNS = range(100)
MESSAGES = 1000


# It takes a minute of two processors; on a busy machine that is several.
@pytest.mark.timeout(600)
def test_a_hundred_seeds_of_a_thousand_messages_lose_nothing():
    faults = tuple(FAULTS)
    tally = run_many(RUNS, messages=MESSAGES, faults=faults, jobs=2)
    if tally.failed:
        seed, wrong = min(tally.failed.items())
        story = "\n".join(story_of(seed, messages=MESSAGES, faults=faults))
        raise AssertionError(f"seed {seed}: {wrong[0]}\n{story}")
    figures = tally.as_json()
    assert tally.runs == len(RUNS)
    # Two workers take most of the messages, and one of them returns another one.
    assert figures["accepted"] > 2.5 * MESSAGES * len(RUNS)
    assert figures["accepted"] == figures["done"] + figures["dead"]
    assert figures["waiting"] == figures["lost"] == 0
    # Faults strike: without them nothing would come twice or late.
    assert figures["duplicated"] > 0
    assert figures["late"] > 0
