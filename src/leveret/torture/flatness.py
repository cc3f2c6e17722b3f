"""Flatness: whether what processes use stays what it is, however long they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from leveret.proof.record import AnyEvent, Sampled

MIB: Final = 1024.0 * 1024.0
#: What each figure may grow by in an hour, over the second half of a run: as absolute numbers, and as shares of what it
#: is on average. The larger one of the two counts. Memory first fills caches that are bounded (10 000 outcomes, 10 000
#: latenesses), and an allocator never gives all back; numbers of tasks and timers go up and down with the load.
LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "memory": (16 * MIB, 0.10),
    "files": (4, 0.0),
    "threads": (2, 0.0),
    "tasks": (40, 0.25),
    "timers": (100, 0.25),
    "objects": (20_000, 0.15),
    "channels": (4, 0.05),
    "connections": (4, 0.05),
}
#: Samples of a process's second half without which nothing is said of it.
LEAST: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How a figure of a process went over the second half of its life.

    Attributes:
        by: the process.
        figure: such as `memory`.
        mean: of it.
        rise: along the line that fits its samples best, from the first to the last of them.
        limit: that a rise may reach in that time.
    """

    by: str
    figure: str
    mean: float
    rise: float
    limit: float

    @property
    def is_flat(self) -> bool:
        """Whether the rise is within its limit."""
        return self.rise <= self.limit

    def __str__(self) -> str:
        unit, name = (MIB, " MiB") if self.figure == "memory" else (1.0, "")
        return (
            f"{self.by}: {self.figure} {self.mean / unit:,.1f}{name} on average, "
            f"{self.rise / unit:+,.1f}{name} over the second half (limit {self.limit / unit:,.1f}{name})"
        )


def growths(events: Iterable[AnyEvent]) -> list[Growth]:
    """How every figure of every process went that was sampled often enough.

    The limits are those of an hour, and at least a fifth of them however short the run was.
    """
    samples: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if isinstance(event, Sampled):
            for figure, value in event.figures.items():
                samples[event.by, figure].append((event.at, value))
    found: list[Growth] = []
    for (by, figure), taken in sorted(samples.items()):
        half = (taken[0][0] + taken[-1][0]) / 2
        second = [(at, value) for at, value in taken if at >= half]
        if figure not in LIMITS or len(second) < LEAST:
            continue
        mean = sum(value for _, value in second) / len(second)
        absolute, share = LIMITS[figure]
        lasted = second[-1][0] - second[0][0]
        limit = max(absolute, share * mean) * max(0.2, lasted / 3600)
        found.append(Growth(by=by, figure=figure, mean=mean, rise=slope(second) * lasted, limit=limit))
    return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line that fits these points best, by least squares; 0 where they share one moment.

    Example:
        >>> slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)])
        2.0
    """
    number = len(points)
    middle = sum(x for x, _ in points) / number
    height = sum(y for _, y in points) / number
    spread = sum((x - middle) ** 2 for x, _ in points)
    return sum((x - middle) * (y - height) for x, y in points) / spread if spread else 0.0
