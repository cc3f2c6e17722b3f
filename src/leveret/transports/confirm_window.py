"""Room in the confirm window: who may publish now, and who waits until answers have come."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any


class WindowAnswer(asyncio.Future[None]):
    """What a publish in the window comes to.

    A queue may withhold its confirms for hours, and its publishers give up in seconds: the place of whoever does is
    free at once, for publishes to other queues. A callback on each answer would tell of it too, and be called for every
    publish that is confirmed: that costs a tenth of it.

    Attributes:
        given_up: called when nobody waits for it any more.
    """

    given_up: Callable[[], object] = bool

    def cancel(self, msg: Any = None) -> bool:
        """Give up: as every future has it."""
        cancelled = super().cancel(msg)
        if cancelled:
            self.given_up()
        return cancelled


class ConfirmWindow:
    """Lets as many callers through as there is room for publishes without an answer; the others wait in line.

    Args:
        room: how many more publishes may go out now; 0 or less where none may, also for other reasons (blocked).
    """

    def __init__(self, room: Callable[[], int]) -> None:
        self._room = room
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Callers who were let through, and had no turn yet to publish.
        self._let_through = 0
        self._looking_again = False

    @property
    def open(self) -> bool:
        """Whether whoever publishes now overtakes nobody and finds room."""
        return not self._waiting and self._room() > self._let_through

    async def enter(self) -> None:
        """Return when the caller, who publishes without awaiting anything first, finds room."""
        if self.open:
            return
        while True:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            self.opened()
            try:
                await turn
            finally:
                if turn.cancelled():
                    # Whoever gave up leaves nothing behind: the broker may be away for days.
                    with contextlib.suppress(ValueError):
                        self._waiting.remove(turn)
                elif turn.done():
                    self._let_through -= 1
                # Whoever came through may publish nothing, or was cancelled: the place is offered again.
                self._look_again()
            if self._room() > 0:
                return

    def opened(self) -> None:
        """Let callers through, after answers came or a block was lifted."""
        room = self._room() - self._let_through
        while room > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._let_through += 1
                room -= 1

    def fail(self, error: Callable[[], Exception]) -> None:
        """Turn away everybody who waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error())
                self._let_through += 1

    def _look_again(self) -> None:
        if self._waiting and not self._looking_again:
            self._looking_again = True
            asyncio.get_running_loop().call_soon(self._looked)

    def _looked(self) -> None:
        self._looking_again = False
        self.opened()
