"""The same seed is the same run, bit for bit, whatever else differs."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys

import msgspec

from leveret.simulate.loop import VirtualLoop
from leveret.simulate.process import Machine
from leveret.simulate.run import plan_of, simulate
from leveret.simulate.scene import shop_asks

SEEDS = "3 4 5 6 7 8"
PRINT_DIGESTS = f"""
from tests.simulate.test_same_seed import digest
for seed in {SEEDS.split()}:
    print(digest(int(seed)))
"""


def digest(seed: int) -> str:
    """Of all events of a run."""
    result = simulate(plan_of(seed, shop_asks(seed, 120)))
    return hashlib.sha256(msgspec.json.encode(result.events)).hexdigest()


def _digests(hash_seed: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip


def test_a_seed_is_the_same_run_in_another_process_and_under_another_hash_seed():
    first = _digests("0")
    assert len(set(first.split())) == len(SEEDS.split())
    assert _digests("4711") == first
    assert digest(5) == first.split()[2]


def test_a_run_leaves_nothing_of_itself_behind_however_many_were_killed():
    for seed in (2200, 2201):
        simulate(plan_of(seed, shop_asks(seed, 600)))
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, VirtualLoop | Machine)] == []
