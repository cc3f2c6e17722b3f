"""Shrinking: the smallest plan that still goes wrong in the same way, so that its record reads like a story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leveret.simulate.run import Plan, Result, simulate

#: Runs that a search may take; a small plan is lived through in a hundredth of a second.
MOST_RUNS = 1000
#: Messages that a small plan has at most, and seeds under which one is tried. Where few messages are left, it takes
#: luck that a fault meets the right one: whose turn it was, and how long the network took.
SMALL = 8
LUCK = 20


def shrink(failed: Result, *, most: int = MOST_RUNS, live: Callable[[Plan], Result] = simulate) -> Result:
    """A run of a smaller plan that breaks a rule which the given one broke.

    At first all messages are left out but those concerned. Then faults, processes and messages are, by halves, quarters
    and so on (delta debugging, Zeller and Hildebrandt 2002), over and over until nothing more can go.

    Args:
        failed: a run that did not pass.
        most: runs that this may take.
        live: how a plan is lived through.
    """
    search = _Search(failed, most, live)
    search.only_those_concerned()
    before: Plan | None = None
    while before != search.best.plan and search.left:
        before = search.best.plan
        search.reduce("faults")
        search.fewer_processes()
        search.reduce("asks")
    return search.best


class _Search:
    def __init__(self, failed: Result, most: int, live: Callable[[Plan], Result]) -> None:
        self.best = failed
        self.left = most
        self._wrong = failed.wrong
        self._live = live

    def _still_wrong(self, **changes: Any) -> bool:
        """Try the best plan with these changes; where it goes wrong likewise, it is the best now."""
        plan = replace(self.best.plan, **changes)
        for seed in range(plan.seed, plan.seed + (LUCK if len(plan.asks) <= SMALL else 1)):
            if not self.left:
                return False
            self.left -= 1
            tried = self._live(replace(plan, seed=seed))
            if tried.wrong & self._wrong:
                self.best = tried
                return True
        return False

    def only_those_concerned(self) -> None:
        """Leave out all messages about which nothing was wrong."""
        concerned = {fault.subject for fault in self.best.verdict.faults}
        self._still_wrong(asks=tuple(ask for ask in self.best.plan.asks if ask.subject in concerned))

    def reduce(self, what: str) -> None:
        """Leave out as many as can be of the plan's faults or messages."""
        size = len(getattr(self.best.plan, what))
        while size:
            position = 0
            while position < len(getattr(self.best.plan, what)):
                whole = getattr(self.best.plan, what)
                if not self._still_wrong(**{what: whole[:position] + whole[position + size :]}):
                    position += size
            size //= 2

    def fewer_processes(self) -> None:
        """Leave out as many processes as can be."""
        for what in ("workers", "retry_workers"):
            for number in range(1, getattr(self.best.plan, what)):
                if self._still_wrong(**{what: number}):
                    break
