"""Conditions: which alarms hold, how often they were met, and when each is told (A2)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from leveret.core.alarm import Alarm, Alert, State, alert
from leveret.ports import Clock

#: Seconds in which a condition is told once; what comes meanwhile is counted, and told at the window's end.
WINDOW: Final = 300.0
#: Conditions that are remembered. Past that the oldest is forgotten, so that a storm takes no memory.
MOST_CONDITIONS: Final = 1000
#: Seconds without a word after which the count of a condition starts anew.
FORGOTTEN_AFTER: Final = 2 * WINDOW


@dataclass(slots=True)
class _Condition:
    """One code about one thing."""

    alarm: Alarm
    first: float
    last: float
    #: By the monotonic clock: when it was met last, and when its window ends.
    met_at: float
    window_ends: float = 0.0
    holds: bool = True
    told: State = "holds"
    count: int = 0
    #: How often it was met since it was told.
    untold: int = 0


class Conditions:
    """Folds what happens into what is told: one alert a condition and window with a count, and one when it ends.

    A condition is a code about a thing. Not safe for threads: its user has a lock.

    Args:
        clock: the world's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Those whose window runs, in the order in which the windows end.
        self._running: OrderedDict[tuple[str, str], _Condition] = OrderedDict()
        #: Those that hold, though they were not met in their last window.
        self._quiet: dict[tuple[str, str], _Condition] = {}
        #: Times that conditions were met, and forgotten before anybody was told.
        self.forgotten = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is remembered: then nothing can end."""
        return not self._running and not self._quiet

    def holds(self, alarm: Alarm) -> Alert | None:
        """It was met; the alert where somebody is to be told now."""
        now = self._clock.monotonic()
        key = (alarm.code, alarm.about)
        condition = self._running.get(key)
        if condition is not None and now < condition.window_ends:
            condition.alarm = alarm
            condition.holds = True
            condition.count += 1
            condition.untold += 1
            condition.last = self._clock.now()
            condition.met_at = now
            return None
        if condition is None:
            condition = self._quiet.pop(key, None)
        wall = self._clock.now()
        if condition is None or now - condition.met_at > FORGOTTEN_AFTER:
            condition = _Condition(alarm, wall, wall, now)
        condition.alarm = alarm
        condition.holds = True
        condition.count += 1
        condition.last, condition.met_at = wall, now
        return self._tell(key, condition, now)

    def over(self, code: str, about: str) -> Alert | None:
        """It has ended; the alert where somebody was told that it holds."""
        key = (code, about)
        condition = self._quiet.pop(key, None) or self._running.get(key)
        if condition is None or not condition.holds:
            return None
        condition.holds = False
        if condition.told == "resolved":
            # It came back within its window, untold, and is over again: the window's end tells how often.
            return None
        condition.told = "resolved"
        condition.untold = 0
        return self._alert(condition)

    def due(self) -> list[Alert]:
        """What the ends of windows bring: conditions that were met again meanwhile."""
        now = self._clock.monotonic()
        told: list[Alert] = []
        while self._running:
            key, condition = next(iter(self._running.items()))
            if now < condition.window_ends:
                break
            if condition.untold:
                told.append(self._tell(key, condition, now))
                continue
            del self._running[key]
            if condition.holds:
                self._quiet[key] = condition
        return told

    @property
    def next_due(self) -> float | None:
        """Seconds until the first window ends; None: none runs."""
        if not self._running:
            return None
        first = next(iter(self._running.values()))
        return max(0.0, first.window_ends - self._clock.monotonic())

    def _tell(self, key: tuple[str, str], condition: _Condition, now: float) -> Alert:
        condition.told = "holds" if condition.holds else "resolved"
        condition.untold = 0
        condition.window_ends = now + WINDOW
        self._running[key] = condition
        self._running.move_to_end(key)
        while len(self._running) + len(self._quiet) > MOST_CONDITIONS:
            if self._quiet:
                del self._quiet[next(iter(self._quiet))]
            else:
                self.forgotten += self._running.popitem(last=False)[1].untold
        return self._alert(condition)

    def _alert(self, condition: _Condition) -> Alert:
        return alert(
            condition.alarm,
            state="holds" if condition.holds else "resolved",
            count=condition.count,
            first=condition.first,
            last=condition.last,
        )
