"""Flatness: whether what processes use stays what it is, however long they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from leveret.pipeline.recall import REMEMBERED_SECONDS
from leveret.proof.record import AnyEvent, Sampled

MIB: Final = 1024.0 * 1024.0
#: Seconds of a life that are not looked at. What leveret remembers of outcomes grows for so long, and then no more.
WARM: Final = REMEMBERED_SECONDS
#: Seconds after these without which nobody can tell a growth from chance.
JUDGED: Final = 300.0
#: Seconds of load that hold such a life, and what passes before the first sample and after the last one.
SHORTEST: Final = WARM + JUDGED + 60.0
#: By how much each figure may be higher at the end than at the beginning, however long that takes: what keeps growing
#: comes to it. It has to hold what comes once. A daemon's first alarm opens a thread, a loop and a connection; a retry
#: worker that gets the lease has some tasks more; and of what piled up in an outage of a minute, the allocator keeps
#: the memory.
LIMITS: Final[Mapping[str, float]] = {
    "memory": 10 * MIB,
    "objects": 1_500,
    "files": 6,
    "threads": 2,
    "tasks": 10,
    "timers": 20,
    "channels": 4,
    "connections": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a figure went over that part of a life which is judged.

    Attributes:
        figure: such as `memory`.
        first: its median in the first third.
        last: its median in the last third.
    """

    figure: str
    first: float
    last: float

    @property
    def is_flat(self) -> bool:
        """Whether it has risen by no more than its limit."""
        return self.last - self.first <= LIMITS[self.figure]

    def __str__(self) -> str:
        return f"{self.figure} {self._told(self.first)} → {self._told(self.last)}"

    def why(self) -> str:
        """The same with its limit."""
        return f"{self} (limit +{self._told(LIMITS[self.figure])})"

    def _told(self, value: float) -> str:
        return f"{value / MIB:,.1f} MiB" if self.figure == "memory" else f"{value:,.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What one life of a process says of flatness.

    Attributes:
        by: the process, in that life.
        seconds: that it was watched.
        growths: of its figures; none where it was too short to tell.
    """

    by: str
    seconds: float
    growths: Sequence[Growth]

    @property
    def kind(self) -> str:
        """What it shares with every life of every process that does the same: `workers`, of `workers-1 3`."""
        return self.by.partition("-")[0]

    def __str__(self) -> str:
        told = ", ".join(map(str, self.growths)) or "too short to tell"
        return f"{self.by}, {self.seconds:.0f} s: {told}"


def lives(events: Iterable[AnyEvent]) -> list[Life]:
    """What each life says that was sampled, by name."""
    samples: dict[str, list[Sampled]] = defaultdict(list)
    for event in events:
        if isinstance(event, Sampled) and event.figures:
            samples[event.by].append(event)
    return [_life(by, taken) for by, taken in sorted(samples.items())]


def _life(by: str, samples: Sequence[Sampled]) -> Life:
    begins, ends = samples[0].at + WARM, samples[-1].at
    third = (ends - begins) / 3
    first = [sample.figures for sample in samples if begins <= sample.at <= begins + third]
    last = [sample.figures for sample in samples if sample.at >= ends - third]
    growths: list[Growth] = []
    if ends - begins >= JUDGED and first:
        growths = [
            Growth(figure=figure, first=_middle(first, figure), last=_middle(last, figure))
            for figure in LIMITS
            if figure in samples[0].figures
        ]
    return Life(by=by, seconds=ends - samples[0].at, growths=growths)


def _middle(samples: Collection[Mapping[str, float]], figure: str) -> float:
    """The median: a blow is over within less than half of a third, and does not show in it."""
    return median(figures[figure] for figures in samples)


def troubles(watched: Collection[Life], kinds: Collection[str]) -> list[str]:
    """What keeps growing, and of which of these kinds nobody can tell, in sentences."""
    found = [
        f"not flat: {life.by}: {growth.why()}"
        for life in watched
        for growth in life.growths
        if not growth.is_flat
    ]
    told = {life.kind for life in watched if life.growths}
    for kind in sorted(set(kinds) - told):
        longest = max((life.seconds for life in watched if life.kind == kind), default=0.0)
        found.append(
            f"too short to tell whether {kind} stays flat: the longest life was watched for {longest:.0f} s, "
            f"and it takes {WARM + JUDGED:.0f} s"
        )
    return found
