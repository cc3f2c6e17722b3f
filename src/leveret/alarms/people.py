"""People: who is told of alarms straight from the emitter while the broker is away, at a bounded rate."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.core.alarm import read_alert
from leveret.core.errors import LeveretError
from leveret.ports import Clock, Threads, World

if TYPE_CHECKING:
    from leveret.alarms.notify import Notifier

log = logging.getLogger("leveret.alarms")

#: Messages that one address gets in a minute: what Telegram takes for a group; nobody reads more.
MOST_A_MINUTE: Final = 20
MINUTE: Final = 60.0


class Rate:
    """So many in a minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent: deque[float] = deque(maxlen=MOST_A_MINUTE)

    @property
    def free_in(self) -> float:
        """Seconds until the next one may go; 0: now."""
        if len(self._sent) < MOST_A_MINUTE:
            return 0.0
        return max(0.0, self._sent[0] + MINUTE - self._clock.monotonic())

    def count(self) -> None:
        """One goes."""
        self._sent.append(self._clock.monotonic())


class StraightToPeople:
    """Tells people from the emitter, each address once and those that failed once more.

    Args:
        notifier: made when it is first needed, in a thread: Apprise takes its time to load.
        world: clock and threads.
    """

    def __init__(self, notifier: Callable[[], Notifier], *, world: World) -> None:
        self._make = notifier
        self._world = world
        self._rate = Rate(world.clock)
        self._notifier: Notifier | None = None
        self._threads: Threads | None = None
        self._told_why = ""

    @property
    def free_in(self) -> float:
        """Seconds until the rate lets another one through."""
        return self._rate.free_in

    async def tell(self, routing_key: str, body: bytes) -> bool:
        """Tell everybody; False where nobody could be told."""
        if self._threads is None:
            self._threads = self._world.threads(4, "leveret-notify")
        if self._notifier is None:
            try:
                self._notifier = await self._threads.run(self._make)
            except (LeveretError, OSError) as error:
                self._say(str(error))
                return False
        told = read_alert(routing_key, body)
        if not self._notifier.wants(told):
            return True
        self._rate.count()
        left = list(range(len(self._notifier.shown)))
        for _ in range(2):
            left = await self._tell(self._notifier, self._threads, left, told)
            if not left:
                break
        return len(left) < len(self._notifier.shown)

    async def _tell(
        self, notifier: Notifier, threads: Threads, numbers: list[int], told: Mapping[str, Any]
    ) -> list[int]:
        """Those of *numbers* that could not be told."""
        sendings = [
            asyncio.ensure_future(threads.run(partial(notifier.send, number, told))) for number in numbers
        ]
        answers = [await sending for sending in sendings]
        for sent in answers:
            if sent.why:
                self._say(str(sent))
            else:
                self._told_why = ""
        return [number for number, sent in zip(numbers, answers, strict=True) if sent.why]

    def _say(self, why: str) -> None:
        if why != self._told_why:
            log.warning("people cannot be told of alarms: %s", why)
            self._told_why = why

    def close(self) -> None:
        """Tell nobody any more."""
        if self._threads is not None:
            self._threads.close()
