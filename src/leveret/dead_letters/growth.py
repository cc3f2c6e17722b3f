"""Growth: an alarm where many messages die within minutes (A2)."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from leveret.core.alarm import DEAD_LETTERS_GROWING, Alarm
from leveret.pipeline.parts import Parts

#: Seconds over which new dead letters are counted.
WINDOW: Final = 300.0
#: So many in that time are no accident: every third second one, for five minutes.
MANY: Final = 100
#: Seconds between looks whether it is over.
LOOK_EVERY: Final = 30.0


class Growth:
    """Counts new dead letters: more than 100 within five minutes is an alarm, until there are fewer again.

    Args:
        parts: of the app.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        #: When and how many, a second an entry.
        self._kept: deque[tuple[float, int]] = deque()
        self._total = 0
        self._growing = asyncio.Event()

    def count(self) -> None:
        """One more was kept."""
        now = self._parts.world.clock.monotonic()
        same_second = self._kept and now - self._kept[-1][0] < 1.0
        if same_second:
            since, before = self._kept.pop()
            self._kept.append((since, before + 1))
        else:
            self._kept.append((now, 1))
        self._total += 1
        # Once a second: nobody wants to know how many letters came in it.
        if self._recent(now) > MANY and not (same_second and self._growing.is_set()):
            self._growing.set()
            self._tell()

    async def watch(self) -> None:
        """See to it that its end is told."""
        clock, namespace = self._parts.world.clock, self._parts.names.namespace
        while True:
            await self._growing.wait()
            await clock.sleep(LOOK_EVERY)
            if self._recent(clock.monotonic()) <= MANY:
                self._growing.clear()
                self._parts.alarms.resolved(DEAD_LETTERS_GROWING, namespace)

    def _recent(self, now: float) -> int:
        while self._kept and now - self._kept[0][0] >= WINDOW:
            self._total -= self._kept.popleft()[1]
        return self._total

    def _tell(self) -> None:
        namespace = self._parts.names.namespace
        self._parts.alarms.emit(
            Alarm(
                code=DEAD_LETTERS_GROWING,
                title=f"{self._total} messages of {namespace} died within {WINDOW / 60:.0f} minutes. "
                f"What they died of: leveret dead groups --namespace {namespace}",
                about=namespace,
                fields={"letters": self._total, "seconds": WINDOW},
            )
        )
