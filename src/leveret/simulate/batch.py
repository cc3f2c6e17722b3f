"""Many seeds, shared among the processors: a line for all, and for what failed a story."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from leveret.proof.story import pick, tell
from leveret.proof.verdict import LINE
from leveret.simulate.run import Result, plan_of, simulate
from leveret.simulate.scene import shop_asks
from leveret.simulate.shrink import shrink

#: Failed seeds whose stories are told; one is shrunk in some seconds.
STORIES = 3
#: Subjects of a failed run that a story follows.
FOLLOWED = 3


@dataclass(slots=True)
class Tally:
    """What many runs came to.

    Attributes:
        figures: as in the ledger's line, added up.
        failed: what was wrong, by seed.
    """

    runs: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)

    def add(self, seed: int, figures: Counter[str], wrong: list[str]) -> None:
        """Count a run."""
        self.runs += 1
        # Not +=, which would drop what is 0.
        self.figures.update(figures)
        if wrong:
            self.failed[seed] = wrong

    def line(self) -> str:
        """The ledger of all in one line."""
        figures = (f"{name} {number}" for name, number in self.as_json().items())
        return "   ".join((f"{self.runs} runs, {len(self.failed)} failed", *figures))

    def as_json(self) -> dict[str, int]:
        """The ledger's figures by name, in its order."""
        return {name: self.figures[name] for name in LINE}


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
        advanced: told after each run how many there were.
    """
    tally = Tally()
    number = min(jobs or os.cpu_count() or 1, len(seeds))
    if number <= 1:
        for seed in seeds:
            tally.add(seed, *_one(seed, messages, faults))
            advanced(tally.runs)
        return tally
    with ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: dict[Future[tuple[Counter[str], list[str]]], int] = {}
        left = iter(seeds)
        for seed in left:
            waiting[pool.submit(_one, seed, messages, tuple(faults))] = seed
            if len(waiting) < 2 * number:
                continue
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                tally.add(waiting.pop(done), *done.result())
            advanced(tally.runs)
        for done in wait(waiting).done:
            tally.add(waiting.pop(done), *done.result())
        advanced(tally.runs)
    return tally


def _one(seed: int, messages: int, faults: Sequence[str]) -> tuple[Counter[str], list[str]]:
    result = simulate(plan_of(seed, shop_asks(seed, messages), faults=faults))
    figures = Counter({name: getattr(result.verdict, name) for name in LINE})
    return figures, [*map(str, result.verdict.faults), *result.complaints]


def story_of(seed: int, *, messages: int, faults: Sequence[str]) -> list[str]:
    """The shortest run that goes wrong as that seed's does, as a person reads it."""
    return list(told(shrink(simulate(plan_of(seed, shop_asks(seed, messages), faults=faults)))))


def told(result: Result) -> Iterator[str]:
    """A run that went wrong: what was wrong, and what happened to the messages concerned."""
    yield f"{len(result.plan.asks)} messages, {len(result.plan.faults)} faults are enough:"
    for fault in result.verdict.faults[:FOLLOWED]:
        yield f"  {fault}"
    for complaint in result.complaints[:FOLLOWED]:
        yield f"  nobody heard of it: {complaint}"
    concerned = dict.fromkeys(fault.subject for fault in result.verdict.faults if fault.subject is not None)
    subjects = list(concerned)[:FOLLOWED] or [ask.subject for ask in result.plan.asks[:1]]
    for subject, events in pick(result.events, subjects).items():
        yield f"{subject}:"
        yield from (f"  {line}" for line in tell(events, since=0.0))
