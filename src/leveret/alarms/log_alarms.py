"""Alarms into the log: one line a condition and window, with a count, and one when it ends."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from leveret.core.alarm import Alarm
from leveret.ports import Clock

log = logging.getLogger("leveret.alarms")

#: Seconds in which repeats of a condition are counted, not told again.
WINDOW = 300.0


@dataclass(slots=True)
class _Condition:
    told_at: float
    repeats: int = 0


class LogAlarms:
    """Writes alarms to the logger `leveret.alarms`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holding: dict[tuple[str, str], _Condition] = {}

    def emit(self, alarm: Alarm) -> None:
        """A condition holds. Repeats within its window are counted, not told again."""
        now = self._clock.monotonic()
        key = (alarm.code, alarm.about)
        known = self._holding.get(key)
        if known is not None and now - known.told_at < WINDOW:
            known.repeats += 1
            return
        again = (
            f" ({known.repeats} times since it was last told)" if known is not None and known.repeats else ""
        )
        self._holding[key] = _Condition(now)
        log.log(
            logging.CRITICAL if alarm.severity == "CRITICAL" else logging.WARNING,
            "alarm %s: %s%s",
            alarm.code,
            alarm.title,
            again,
            extra={"action": "alarm", "code": alarm.code, "fields": dict(alarm.fields)},
        )

    def resolved(self, code: str, about: str = "") -> None:
        """A condition has ended; told once, and only where it was told that it held."""
        if not self._holding:
            return
        known = self._holding.pop((code, about), None)
        if known is not None:
            log.info("resolved %s: %s", code, about, extra={"action": "resolved", "code": code})
