"""Timeline: how a run went, second by second, for the report to draw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Final

from leveret.proof.record import (
    Answered,
    AnyEvent,
    Asked,
    Began,
    Ended,
    Healed,
    Sampled,
    Struck,
)

#: A chart has no more points than that: a screen shows no more.
MOST_POINTS: Final = 300
#: Seconds of the shortest step, where the run was short enough.
SHORTEST: Final = 0.5

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A fault that somebody caused, in seconds from the start.

    Attributes:
        begin: when it struck.
        end: when it had healed, or the run ended.
        struck: which it was.
    """

    begin: float
    end: float
    struck: Struck


@dataclass(slots=True, kw_only=True)
class Timeline:
    """What happened when: points of (seconds from the start, value).

    Attributes:
        seconds: how long the run took.
        accepted: publishes whose callers were told so, a second.
        done: handlers that were done, a second.
        queued: messages that no handler had begun on yet, each once for each worker that takes it.
        waiting: messages that had failed, and waited for their next try.
        late: by how many seconds the latest one came that was due at a time.
        bands: the faults.
        figures: of what processes used: by name of the figure and of the process.
    """

    seconds: float = 0.0
    accepted: Points = field(default_factory=list)
    done: Points = field(default_factory=list)
    queued: Points = field(default_factory=list)
    waiting: Points = field(default_factory=list)
    late: Points = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    figures: dict[str, dict[str, Points]] = field(default_factory=dict)


def timeline(
    events: Iterable[AnyEvent],
    *,
    start: float,
    seconds: float,
    takers: Mapping[str, tuple[str, ...]],
    max_attempts: int,
) -> Timeline:
    """Draw up the timeline of a record.

    Args:
        events: of it, in about the order in which they happened; read once.
        start: the moment that is 0 s.
        seconds: how long the run took from there; what was found after it is left out.
        takers: the workers that take a type.
        max_attempts: runs that a message may have.
    """
    steps = max(1, min(MOST_POINTS, ceil(seconds / SHORTEST)))
    drawing = _Drawing(start, seconds / steps or SHORTEST, takers, max_attempts)
    for event in events:
        if event.at <= start + seconds:
            drawing.add(event)
    return drawing.finish(seconds)


class _Drawing:
    """A timeline that is being drawn."""

    def __init__(
        self, start: float, width: float, takers: Mapping[str, tuple[str, ...]], max_attempts: int
    ) -> None:
        self._start: Final = start
        self._width: Final = width
        self._takers: Final = takers
        self._max_attempts: Final = max_attempts
        self._step = 0
        self._accepted: Final[Counter[int]] = Counter()
        self._done: Final[Counter[int]] = Counter()
        self._late: Final[dict[int, float]] = {}
        self._asked: Final[dict[str, Asked]] = {}
        #: By message and worker; of what waits: when it is due, infinite where nobody said.
        self._queued: Final[set[tuple[str, str]]] = set()
        self._waiting: Final[dict[tuple[str, str], float]] = {}
        self._running: Final[dict[str, Began]] = {}
        self._struck: Final[dict[str, Struck]] = {}
        self._healed: Final[dict[str, float]] = {}
        self._timeline: Final = Timeline()

    def add(self, event: AnyEvent) -> None:
        at = event.at - self._start
        step = int(at / self._width)
        while self._step < step:
            self._sample()
        match event:
            case Asked():
                self._asked[event.subject] = event
                self._send(event.type, event.subject, at + event.wait if event.wait else None)
            case Answered():
                self._answer(event, step)
            case Began():
                self._begin(event, at, step)
            case Ended():
                self._end(event, at, step)
            case Struck():
                self._struck[event.fault] = event
            case Healed():
                self._healed[event.fault] = at
            case Sampled():
                for name, value in event.figures.items():
                    self._timeline.figures.setdefault(name, {}).setdefault(event.by, []).append((at, value))

    def finish(self, seconds: float) -> Timeline:
        """The whole of it."""
        self._sample()
        drawn = self._timeline
        drawn.seconds = seconds
        steps = range(self._step)
        drawn.accepted = [(step * self._width, self._accepted[step] / self._width) for step in steps]
        drawn.done = [(step * self._width, self._done[step] / self._width) for step in steps]
        drawn.late = [(step * self._width, self._late.get(step, 0.0)) for step in steps]
        for fault, struck in self._struck.items():
            begin = struck.at - self._start
            drawn.bands.append(Band(begin=begin, end=self._healed.get(fault, seconds), struck=struck))
        drawn.bands.sort(key=lambda band: band.begin)
        return drawn

    def _sample(self) -> None:
        """Note how much there is at the end of a step."""
        at = self._step * self._width
        self._timeline.queued.append((at, len(self._queued)))
        self._timeline.waiting.append((at, len(self._waiting)))
        self._step += 1

    def _send(self, type: str, subject: str, due: float | None = None) -> None:
        for worker in self._takers.get(type, ()):
            if due is None:
                self._queued.add((subject, worker))
            else:
                self._waiting[subject, worker] = due

    def _answer(self, event: Answered, step: int) -> None:
        asked = self._asked.pop(event.subject, None)
        if event.answer == "accepted":
            self._accepted[step] += 1
        elif asked is not None:
            # What is unknown and arrives all the same is seen when its handler begins.
            for worker in self._takers.get(asked.type, ()):
                self._queued.discard((event.subject, worker))
                self._waiting.pop((event.subject, worker), None)

    def _begin(self, event: Began, at: float, step: int) -> None:
        self._running[event.run] = event
        whose = (event.subject, event.worker)
        self._queued.discard(whose)
        late = at - self._waiting.pop(whose, inf)
        if late > self._late.get(step, 0.0):
            self._late[step] = late

    def _end(self, event: Ended, at: float, step: int) -> None:
        began = self._running.pop(event.run, None)
        if began is None:
            return
        if event.outcome == "done":
            self._done[step] += 1
            for type, subject in event.results:
                self._send(type, subject)
        elif event.outcome == "soft" and (not event.counted or began.attempt < self._max_attempts):
            due = inf if event.again_in is None else at + event.again_in
            self._waiting[began.subject, began.worker] = due
