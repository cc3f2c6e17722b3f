"""Shrinking: the smallest plan that still goes wrong in the same way, so that its record reads like a story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leveret.simulate.run import Plan, Result, simulate

#: Runs that a search may take; a small plan is lived through in a hundredth of a second.
MOST_RUNS = 400


def shrink(failed: Result, *, most: int = MOST_RUNS, live: Callable[[Plan], Result] = simulate) -> Result:
    """A run of a smaller plan that breaks a rule which the given one broke.

    Faults are left out first, then processes, then messages, by halves, quarters and so on (delta debugging, Zeller and
    Hildebrandt 2002), over and over until nothing more can go.

    Args:
        failed: a run that did not pass.
        most: runs that this may take.
        live: how a plan is lived through.
    """
    search = _Search(failed, most, live)
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
        if not self.left:
            return False
        self.left -= 1
        tried = self._live(replace(self.best.plan, **changes))
        if not tried.wrong & self._wrong:
            return False
        self.best = tried
        return True

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
