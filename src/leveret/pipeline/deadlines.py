"""Deadlines: every publish ends in time, and a timer serves all that were given as long (P9)."""

from __future__ import annotations

import asyncio
from typing import Any

from leveret.ports import Clock, Timer


class Deadlines:
    """Awaits answers that must come in time.

    A timer each would be made and cancelled with every publish, for nothing, and took a tenth of its time. Answers that
    are given the same number of seconds end in the order in which they were asked for, so one timer, set for the first
    of them, is enough.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: By their seconds.
        self._lines: dict[float, _Line] = {}

    def bound(self, answer: asyncio.Future[Any], limit: float) -> None:
        """Have *answer* cancelled where *limit* seconds pass before `release` is called with the same."""
        self._line(limit).add(answer)

    async def met(self, answer: asyncio.Future[Any], limit: float) -> bool:
        """Await *answer*, False where *limit* seconds pass first; then it is cancelled.

        Raises:
            Exception: what the answer raises.
        """
        if answer.done():
            answer.result()
            return True
        line = self._line(limit)
        line.add(answer)
        # A task that is being cancelled already may still publish while it cleans up.
        before = _cancellations()
        try:
            await answer
        except asyncio.CancelledError:
            if answer in line.waiting or _cancellations() > before:
                raise
            return False
        finally:
            self.release(answer, limit)
        return True

    def release(self, answer: asyncio.Future[Any], limit: float) -> None:
        """Nobody waits for *answer* any more; nothing happens where it is bound no longer."""
        line = self._lines.get(limit)
        if line is not None:
            line.leave(answer)
            if not line.waiting:
                del self._lines[limit]

    def _line(self, limit: float) -> _Line:
        line = self._lines.get(limit)
        if line is None:
            line = self._lines[limit] = _Line(self._clock, limit)
        return line


class _Line:
    """Answers that were given equally long, the longest awaited first."""

    def __init__(self, clock: Clock, limit: float) -> None:
        self._clock = clock
        self._limit = limit
        #: When each is late, by the monotonic clock.
        self.waiting: dict[asyncio.Future[Any], float] = {}
        self._timer: Timer | None = None

    def add(self, answer: asyncio.Future[Any]) -> None:
        self.waiting[answer] = self._clock.monotonic() + self._limit
        if self._timer is None:
            self._timer = self._clock.call_later(self._limit, self._look)

    def leave(self, answer: asyncio.Future[Any]) -> None:
        self.waiting.pop(answer, None)
        if not self.waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        for answer, late_at in list(self.waiting.items()):
            if late_at > now:
                # The timer was set for one that has been answered since.
                self._timer = self._clock.call_later(late_at - now, self._look)
                return
            # Out of the line: this is how it is told from an answer that its caller cancels.
            del self.waiting[answer]
            answer.cancel()


def _cancellations() -> int:
    """How often the running task itself was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
