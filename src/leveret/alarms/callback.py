"""Alarm callback: a function of the user's that is called for each alarm, on a thread that nothing else waits for."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from leveret.alarms.carrying import carrying
from leveret.core.alarm import Alert
from leveret.ports import Threads, World

log = logging.getLogger("leveret.alarms")

#: Called with code, title and fields.
Callback: TypeAlias = Callable[[str, str, dict[str, Any]], object]

#: Calls that wait while one runs. Past that the oldest goes.
MOST_WAITING: Final = 1000


class AlarmCallback:
    """Calls one after another in a thread of its own, which starts with the first call.

    Args:
        world: makes the thread.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: deque[tuple[Callback, Alert]] = deque(maxlen=MOST_WAITING)
        self._threads: Threads | None = None
        self._calling: asyncio.Task[None] | None = None

    def put(self, callback: Callback, alert: Alert) -> None:
        """Call *callback* when those before are done."""
        self._waiting.append((callback, alert))
        if self._calling is None or self._calling.done():
            # What it emits is ignored, in its thread as well.
            with carrying():
                self._calling = asyncio.create_task(self._call(), name="leveret alarm callback")

    async def _call(self) -> None:
        if self._threads is None:
            self._threads = self._world.threads(1, "leveret-alarm-callback")
        while self._waiting:
            callback, alert = self._waiting.popleft()
            raised = await self._threads.run(partial(_told, callback, alert))
            if raised is not None:
                log.error("the alarm callback raised on %s", alert.code, exc_info=raised)

    def close(self) -> None:
        """Call no more; a call that runs is not waited for."""
        self._waiting.clear()
        if self._calling is not None:
            self._calling.cancel()
        if self._threads is not None:
            self._threads.close()


def _told(callback: Callback, alert: Alert) -> BaseException | None:
    """What *callback* raises is handed on: a SystemExit that is raised in a task ends the loop that it runs in."""
    try:
        callback(alert.code, alert.title, dict(alert.fields))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the callback's own, and logged
        return error
    return None
