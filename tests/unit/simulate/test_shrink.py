"""Shrinking: what is left of a plan that goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from leveret.proof.ledger import judge
from leveret.proof.verdict import Fault
from leveret.simulate.run import Plan, Result, plan_of
from leveret.simulate.scene import shop_asks
from leveret.simulate.shrink import shrink


@dataclass
class Lives:
    """Lives that go wrong where *wrong* says so, and how many there were."""

    wrong: Callable[[Plan], bool]
    rule: str = "accounted for"
    subject: str | None = None
    lived: int = 0

    def __call__(self, plan: Plan) -> Result:
        self.lived += 1
        verdict = judge((), takers={}, max_attempts=1)
        if self.wrong(plan):
            fault = Fault(rule=self.rule, told="it is nowhere", at=1.0, subject=self.subject)
            verdict = replace(verdict, faults=(fault,))
        return Result(plan=plan, verdict=verdict, events=[])


PLAN = replace(plan_of(3, shop_asks(3, 100)), workers=3, retry_workers=3)


def has(plan: Plan, *positions: int) -> bool:
    return all(PLAN.asks[position] in plan.asks for position in positions)


def test_what_it_does_not_take_is_left_out():
    struck = PLAN.faults[2]
    lives = Lives(lambda plan: has(plan, 17, 80) and struck in plan.faults and plan.workers >= 2)
    small = shrink(lives(PLAN), live=lives).plan
    assert small.asks == (PLAN.asks[17], PLAN.asks[80])
    assert small.faults == (struck,)
    assert (small.workers, small.retry_workers) == (2, 1)


def test_messages_about_which_nothing_was_wrong_go_first():
    lives = Lives(lambda plan: has(plan, 40), subject=PLAN.asks[40].subject)
    small = shrink(lives(PLAN), live=lives).plan
    assert small.asks == (PLAN.asks[40],)
    assert not small.faults
    assert lives.lived < 60


def test_another_rule_that_breaks_is_another_story():
    whole = Lives(lambda _: True)(PLAN)
    lives = Lives(lambda plan: len(plan.asks) < 100, rule="early")
    assert shrink(whole, live=lives).plan == PLAN


def test_the_search_ends_where_it_was_told_to():
    lives = Lives(lambda plan: len(plan.asks) > 60)
    whole = lives(PLAN)
    shrink(whole, most=25, live=lives)
    assert lives.lived == 1 + 25


def test_a_small_plan_is_tried_with_some_luck():
    lives = Lives(lambda plan: len(plan.asks) > 1 or plan.seed == PLAN.seed + 7)
    small = shrink(lives(PLAN), live=lives).plan
    assert len(small.asks) <= 1
    assert small.seed == PLAN.seed + 7
