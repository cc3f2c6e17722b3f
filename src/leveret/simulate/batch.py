"""Many seeds, shared among the processors: a line for all, and for what failed a story."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from leveret.proof.story import pick, tell
from leveret.proof.verdict import LINE, Lateness, Verdict
from leveret.simulate.run import Result, plan_of, simulate
from leveret.simulate.scene import shop_asks
from leveret.simulate.shrink import shrink

#: Failed seeds whose stories are told; one is shrunk in some seconds.
STORIES = 3
#: Faults and complaints of a failed run that a story names, and subjects that it follows.
NAMED = 10
FOLLOWED = 3


@dataclass(slots=True)
class Tally:
    """What many runs came to.

    Attributes:
        figures: as in a verdict, added up.
        calls: how many ended how.
        outside: lateness of what came while nothing was struck; each figure is that of the run where it was highest.
        inside: likewise of what came during a fault.
        failed: what was wrong, by seed.
    """

    runs: int = 0
    seconds: float = 0.0
    figures: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    outside: Lateness = field(default_factory=Lateness)
    inside: Lateness = field(default_factory=Lateness)
    failed: dict[int, list[str]] = field(default_factory=dict)

    def add(self, seed: int, verdict: Verdict, complaints: Sequence[str]) -> None:
        """Count a run."""
        self.runs += 1
        self.seconds += verdict.seconds
        # Not +=, which would drop what is 0.
        self.figures.update({name: getattr(verdict, name) for name in ("published", *LINE, "strikes")})
        self.calls.update(verdict.calls)
        self.outside = _highest(self.outside, verdict.outside)
        self.inside = _highest(self.inside, verdict.inside)
        if verdict.faults or complaints:
            self.failed[seed] = [*map(str, verdict.faults), *complaints]

    def line(self) -> str:
        """The ledger of all in one line."""
        figures = (f"{name} {self.figures[name]}" for name in LINE)
        return "   ".join((f"{self.runs} runs, {len(self.failed)} failed", *figures))

    def as_json(self) -> dict[str, Any]:
        """As that of a verdict; each fault with its seed."""
        return {
            "runs": self.runs,
            **self.figures,
            "seconds": round(self.seconds, 3),
            "lateness": {"outside": self.outside.as_json(), "inside": self.inside.as_json()},
            "calls": dict(sorted(self.calls.items())),
            "faults": [{"seed": seed, "told": told} for seed, wrong in sorted(self.failed.items()) for told in wrong],
        }  # fmt: skip


def _highest(one: Lateness, other: Lateness) -> Lateness:
    return Lateness(
        number=one.number + other.number,
        p50=max(one.p50, other.p50),
        p99=max(one.p99, other.p99),
        most=max(one.most, other.most),
    )


def run_many(
    seeds: range,
    *,
    messages: int,
    faults: Sequence[str],
    jobs: int | None = None,
    advanced: Callable[[int], object] = lambda _: None,
) -> Tally:
    """Live through a plan for each seed.

    Args:
        messages: that each publishes.
        faults: the names of those that may strike.
        jobs: processes that share the seeds; default: one a processor.
        advanced: told how many more are done.
    """
    tally = Tally()
    one = partial(_one, messages=messages, faults=tuple(faults))
    number = min(jobs or os.cpu_count() or 1, len(seeds))
    with contextlib.ExitStack() as stack:
        lived: Iterable[tuple[Verdict, tuple[str, ...]]] = map(one, seeds)
        if number > 1:
            # Spawned, not forked: the threads of whoever asks have no place in them.
            pool = ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn"))
            lived = stack.enter_context(pool).map(one, seeds)
        for seed, (verdict, complaints) in zip(seeds, lived, strict=True):
            tally.add(seed, verdict, complaints)
            advanced(1)
    return tally


def _one(seed: int, *, messages: int, faults: Sequence[str]) -> tuple[Verdict, tuple[str, ...]]:
    result = simulate(plan_of(seed, shop_asks(seed, messages), faults=faults))
    return result.verdict, result.complaints


def story_of(seed: int, *, messages: int, faults: Sequence[str]) -> list[str]:
    """The shortest run that goes wrong as that seed's does, as a person reads it."""
    return list(told(shrink(simulate(plan_of(seed, shop_asks(seed, messages), faults=faults)))))


def told(result: Result) -> Iterator[str]:
    """A run that went wrong: what was wrong, and what happened to the messages concerned."""
    yield f"{len(result.plan.asks)} messages, {len(result.plan.faults)} faults are enough:"
    for fault in result.verdict.faults[:NAMED]:
        yield f"  {fault}"
    for complaint in result.complaints[:NAMED]:
        yield f"  nobody heard of it: {complaint}"
    concerned = dict.fromkeys(fault.subject for fault in result.verdict.faults if fault.subject is not None)
    subjects = list(concerned)[:FOLLOWED] or [ask.subject for ask in result.plan.asks[:1]]
    for subject, events in pick(result.events, subjects).items():
        yield f"{subject}:"
        yield from (f"  {line}" for line in tell(events, since=0.0))
