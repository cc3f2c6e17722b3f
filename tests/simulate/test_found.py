"""The faults of `docs/record.md` that a simulation can show, each a short run with what struck. Undo a mend: it fails.

Alarms, and what versions of RabbitMQ make of a queue's arguments, it cannot show; they have tests of their own there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from leveret import HardFailure, Leveret, Message
from leveret.core.topology import QueueType
from leveret.proof.record import Served
from leveret.simulate.process import Process
from leveret.simulate.run import Planned, Result, plan_of, simulate
from leveret.simulate.scene import SHOP, Ask, Scene, shop_asks

#: Seeds of each scenario: whose turn it was, and how long the network took, differ among them.
SEEDS = range(4)


def struck(
    seed: int, asks: Sequence[Ask], *faults: Planned, shared_store: bool = True, scene: Scene = SHOP
) -> Result:
    """A run of two workers and two retry workers in which these faults strike, and nothing else."""
    plan = plan_of(seed, asks, faults=())
    return simulate(
        replace(plan, faults=faults, shared_store=shared_store, workers=2, retry_workers=2), scene
    )


def fault(name: str, at: float, *, seed: str = "1") -> Planned:
    return Planned(name=name, at=at, seed=seed)


def failing(number: int, at: float) -> list[Ask]:
    """So many orders within a second, each of which fails once."""
    return [
        Ask(
            subject=f"o{n}",
            message=Message(
                "order.placed", {"subject": f"o{n}", "fate": {"charge": ["soft:0.2", "done"]}}, id=f"id{n}"
            ),
            at=at + n / number,
        )
        for n in range(number)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_holder_was_storing_when_it_lost_its_lease_does_not_come_twice(seed: int):
    # The fault's seed draws 0.3 s, between two polls of the standby: so that one is quick to take the lease of a holder
    # that is stopped in the middle of a write.
    result = struck(
        seed, failing(60, at=3.5), fault("store slow", 4.1), fault("holder stopped", 4.6), shared_store=False
    )
    assert result.passed, (result.verdict.faults, result.complaints)
    # The promise would allow a copy for each; there is no need of it.
    assert result.verdict.duplicated == 0


def test_a_caller_is_not_told_that_nothing_was_sent_where_its_request_is_obeyed():
    unknown = 0
    for seed in SEEDS:
        closed = (fault("channel closed", 2.0 + n, seed=f"{seed}/{n}") for n in range(6))
        result = struck(seed, shop_asks(seed, 10), *closed)
        assert result.passed, (result.verdict.faults, result.complaints)
        unknown += result.verdict.calls.get("unknown", 0)
    assert unknown


@pytest.mark.parametrize("seed", SEEDS)
def test_an_ordered_channel_that_stops_has_no_request_served_beside_its_own(seed: int):
    inside: list[str] = []
    beside: list[tuple[str, ...]] = []

    def app(process: Process, works: bool, queue_type: QueueType | None) -> Leveret:
        app = SHOP.app(process, works, queue_type)
        if works:

            @app.rpc("move", prefetch=1, single=True, queue_type=queue_type)
            async def move(request: dict[str, Any]) -> dict[str, Any]:
                process.record.write(Served(at=process.record.now(), by=process.by, call=request["call"]))
                inside.append(process.by)
                beside.append(tuple(inside))
                # Longer than its caller waits, so that the next request is in the queue when it stops.
                await process.clock.sleep(3.0)
                inside.remove(process.by)
                if request["fails"]:
                    raise HardFailure(f"cannot move for {request['call']}")
                return {"call": request["call"]}

        return app

    scene = replace(SHOP, app=app, channel="move")
    result = struck(seed, shop_asks(seed, 5), fault("rolling restart", 5.0), scene=scene)
    assert result.passed, (result.verdict.faults, result.complaints)
    assert len(beside) > 3
    assert {len(each) for each in beside} == {1}
