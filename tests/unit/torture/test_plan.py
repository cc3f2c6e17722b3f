from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pytest

from leveret.core import handover
from leveret.core.errors import ConfigError
from leveret.torture.faults import FAULTS
from leveret.torture.plan import BY_NAME, KINDS, STRIKES, available, plan
from leveret.torture.scene import FIRST, MEMBERS

PROCESSES = [name for name, _ in MEMBERS]
ONE_NODE = {"node", "classic", "sqlite"}
EVERYTHING = ONE_NODE | {"cluster", "namespaces", "server", "postgres"}


def lines(seed: int, minutes: float = 20) -> list[str]:
    faults = plan(
        seed, seconds=minutes * 60, every=(10, 10), kinds=available(EVERYTHING), processes=PROCESSES
    )
    return [str(fault) for fault in faults]


def test_one_seed_is_one_plan_in_another_process_with_other_hashes():
    told = "from tests.unit.torture.test_plan import lines\nprint('\\n'.join(lines(42)))"
    for hashes in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", told],
            env={"PYTHONHASHSEED": hashes, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ran.stdout.rstrip().splitlines() == lines(42)
    assert lines(42) != lines(43)


def test_every_kind_that_a_setting_has_comes_before_one_comes_too_often():
    faults = plan(7, seconds=3600, every=(10, 10), kinds=available(EVERYTHING), processes=PROCESSES)

    assert {fault.kind.name for fault in faults} == set(BY_NAME)


def test_a_plan_has_a_fault_for_every_so_many_seconds():
    faults = plan(3, seconds=600, every=(10, 10), kinds=available(ONE_NODE), processes=PROCESSES)

    assert len(faults) == 60
    assert all(round(later.at - earlier.at, 3) == 10 for earlier, later in pairwise(faults))


@pytest.mark.parametrize("seed", range(20))
def test_no_place_is_hit_while_it_is_hit(seed: int):
    faults = plan(seed, seconds=1200, every=(5, 5), kinds=available(EVERYTHING), processes=PROCESSES)

    for number, fault in enumerate(faults):
        for later in faults[number + 1 :]:
            if later.at < fault.ends:
                assert later.target != fault.target
                assert "all" not in (later.target, fault.target)


def test_a_setting_without_a_broker_of_its_own_leaves_the_broker_alone():
    kinds = available({"sqlite"})

    assert not {"broker killed", "memory alarm", "leader apart", "store killed"} & {
        kind.name for kind in kinds
    }
    assert {"cut", "black hole", "killed", "store locked"} <= {kind.name for kind in kinds}


def test_a_fault_that_is_none_is_refused_with_those_that_there_are():
    with pytest.raises(
        ConfigError, match=r"--faults cuts: there is no such fault. There are: .*cut in mid-frame"
    ):
        available(ONE_NODE, ["cuts"])


def test_a_fault_that_this_setting_does_not_have_is_refused_with_what_it_needs():
    with pytest.raises(ConfigError, match="--faults store killed: needs postgres"):
        available(ONE_NODE, ["store killed"])


def test_every_kind_can_be_struck():
    assert {kind.name for kind in KINDS} == set(FAULTS)


def test_processes_are_killed_at_each_of_the_hand_over_points():
    assert sorted(point for points in STRIKES.values() for point in points) == sorted(handover.ALL)


def test_faults_come_between_so_many_seconds_where_that_is_said():
    faults = plan(3, seconds=3600, every=(5, 40), kinds=available(ONE_NODE, ["cut"]), processes=PROCESSES)

    waits = [later.at - earlier.at for earlier, later in pairwise(faults)]
    assert 5 <= min(waits) < 8
    assert 37 < max(waits) <= 40


def test_what_lasts_a_minute_leaves_time_to_catch_up():
    kinds = available(ONE_NODE, ["memory alarm for a minute", "killed"])

    faults = plan(3, seconds=600, every=(10, 10), kinds=kinds, processes=PROCESSES)

    ends = [fault.ends for fault in faults if fault.seconds >= 30]
    assert ends
    assert max(ends) <= 400


@pytest.mark.parametrize("seed", range(5))
def test_who_is_spared_lives_on(seed: int):
    faults = plan(
        seed, seconds=3600, every=(10, 10), kinds=available(EVERYTHING), processes=PROCESSES, spared=FIRST
    )

    ended = {fault.target for fault in faults if fault.kind.ends}
    assert ended == {"workers-2", "retry-2"}
    assert not {"deadly message", "rolling restart"} & {fault.kind.name for fault in faults}
    # What does not end anybody hits them as well.
    assert set(FIRST) & {fault.target for fault in faults if fault.kind.name == "paused"}


def test_one_process_of_each_kind_is_among_the_first():
    assert {name.partition("-")[0] for name in FIRST} == {name.partition("-")[0] for name in PROCESSES}
