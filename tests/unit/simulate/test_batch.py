"""Many seeds: their sum, and the same whoever lives through them."""

from __future__ import annotations

import gc
from dataclasses import replace

from leveret.proof.histories import Hold
from leveret.proof.ledger import judge
from leveret.proof.verdict import Fault, Lateness
from leveret.simulate.batch import Tally, run_many
from leveret.simulate.run import UNHEARD, plan_of, simulate
from leveret.simulate.scene import shop_asks

NOTHING = judge((), takers={}, max_attempts=1)


def test_a_tally_adds_up_what_was_counted_and_keeps_the_worst_of_what_was_measured():
    tally = Tally()
    early, late = Lateness.of([0.1, 0.2]), Lateness.of([3.0])
    tally.add(4, replace(NOTHING, accepted=5, done=4, dead=1, outside=early, calls={"answered": 2}), ())
    tally.add(5, replace(NOTHING, accepted=2, done=2, outside=late, calls={"answered": 1, "failed": 1}), ())
    told = tally.as_json()
    assert (told["runs"], told["accepted"], told["done"], told["dead"], told["lost"]) == (2, 7, 6, 1, 0)
    assert told["lateness"]["outside"] == {"number": 3, "p50": 3.0, "p99": 3.0, "most": 3.0}
    assert told["calls"] == {"answered": 3, "failed": 1}
    assert told["faults"] == []
    assert tally.line().startswith("2 runs, 0 failed   accepted 7   done 6   dead 1   ")


def test_a_run_fails_by_a_fault_or_by_what_nobody_heard():
    tally = Tally()
    tally.add(8, NOTHING, ("Task exception was never retrieved",))
    tally.add(9, replace(NOTHING, faults=(Fault(rule="early", told="a came 2 s early", at=1.0),)), ())
    assert tally.failed == {8: ["Task exception was never retrieved"], 9: ["early: a came 2 s early"]}
    assert tally.as_json()["faults"] == [
        {"seed": 8, "told": "Task exception was never retrieved"},
        {"seed": 9, "told": "early: a came 2 s early"},
    ]


def test_it_does_not_matter_which_process_lives_through_a_seed():
    advanced: list[int] = []
    alone = run_many(range(3, 6), messages=40, faults=("killed", "cut"), jobs=1)
    shared = run_many(range(3, 6), messages=40, faults=("killed", "cut"), jobs=2, advanced=advanced.append)
    assert shared.as_json() == alone.as_json()
    assert sum(advanced) == 3


def test_the_memory_of_many_runs_is_that_of_one():
    left = []
    for _ in range(4):
        run_many(range(3, 4), messages=40, faults=())
        left.append(sum(type(each) is Hold for each in gc.get_objects()))
    assert left[-1] <= left[0]


def test_a_plan_is_the_same_for_the_same_seed_and_draws_only_what_may_strike():
    asks = shop_asks(3, 20)
    assert plan_of(3, asks) == plan_of(3, asks) != plan_of(4, asks)
    for seed in range(20):
        assert {fault.name for fault in plan_of(seed, asks, faults=("cut", "killed")).faults} <= {
            "cut",
            "killed",
        }
    assert not plan_of(3, asks, faults=()).faults


def test_what_a_process_leaves_to_nobody_fails_its_run():
    result = simulate(plan_of(3, shop_asks(3, 5), faults=()))
    assert result.passed
    assert replace(result, complaints=("a process ended with KeyError()",)).wrong == {UNHEARD}
