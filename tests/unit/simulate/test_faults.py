"""The faults of a simulation: each of them strikes, heals, and is survived."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leveret.core import handover
from leveret.core.message import Message
from leveret.proof.record import Healed, Struck
from leveret.simulate.faults import FAULTS, names_of
from leveret.simulate.run import Planned, Result, plan_of, simulate
from leveret.simulate.scene import Ask, shop_asks

MESSAGES = 60
#: A seed under which the first arrival at a point is drawn.
FIRST_ARRIVAL = "4"


def struck_by(name: str, chance_seed: str, *, at: float = 4.0, more: tuple[Ask, ...] = ()) -> Result:
    """A run in which that fault strikes, and nothing else."""
    asks = sorted((*shop_asks(1, MESSAGES), *more), key=lambda ask: ask.at)
    plan = plan_of(1, asks, faults=())
    planned = (Planned(name=name, at=at, seed=chance_seed),)
    return simulate(replace(plan, faults=planned, shared_store=True, workers=2, retry_workers=2))


@pytest.mark.parametrize("name", [name for name in FAULTS if " at H" not in name])
def test_each_fault_strikes_and_heals_and_loses_nothing(name: str):
    result = struck_by(name, "1")
    struck = {event.fault for event in result.events if isinstance(event, Struck)}
    healed = {event.fault for event in result.events if isinstance(event, Healed)}
    assert struck
    assert struck == healed
    assert result.passed, (result.verdict.faults, result.complaints)


@pytest.mark.parametrize("what", ["killed", "stopped"])
@pytest.mark.parametrize("point", handover.ALL)
def test_each_hand_over_is_struck_and_loses_nothing(point: str, what: str):
    # What ends its process makes a suspect of itself and of what was in hand beside it; hard failures are replayed.
    deadly = {"subject": "deadly", "fate": {"charge": ["deadly"]}}
    hard = {"subject": "hard", "fate": {"audit": ["hard", "done"]}}
    more = tuple(
        Ask(subject=order["subject"], message=Message("order.placed", order, id=order["subject"]), at=6.0)
        for order in (deadly, hard)
    )
    result = struck_by(f"{what} at {point}", FIRST_ARRIVAL, more=more)
    kinds = [event.kind for event in result.events if isinstance(event, Struck) and event.fault == "0"]
    assert kinds == ["kill" if what == "killed" else "stopped"]
    assert result.passed, (result.verdict.faults, result.complaints)


def test_a_blow_says_whether_it_hit_a_process():
    processes = {"killed", "stopped", "clock jumped", "rolling restart"}
    for name in (*processes, "cut", "store down"):
        struck = [event for event in struck_by(name, "1").events if isinstance(event, Struck)]
        assert {event.process for event in struck} == {name in processes}, name


def test_names_are_all_none_or_a_list():
    assert names_of("all") == tuple(FAULTS)
    assert names_of("none") == ()
    assert names_of("cut, killed") == names_of(["cut", "killed"]) == ("cut", "killed")


def test_a_name_that_is_none_is_told_with_all_that_are():
    with pytest.raises(
        ValueError, match=r"there is no fault 'flood'. There are: all, none, .*rolling restart"
    ):
        names_of("cut,flood")
