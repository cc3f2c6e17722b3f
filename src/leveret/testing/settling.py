"""Settling: how a test knows that nothing goes on any more but what waits for time to pass."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from leveret.core import handover
from leveret.pipeline.delivery import Road
from leveret.runtime.runner import Runner
from leveret.testing.fake_clock import FakeClock, idle
from leveret.transports.memory_broker import MemoryBroker

#: Real seconds that handlers get which wait for something real: a socket, a thread, a sleep of asyncio's.
PATIENCE: Final = 30.0
#: Real seconds that a handler gets before time moves past its timeout.
OVERTAKEN_AFTER: Final = 1.0
#: Real seconds between looks at handlers that wait for something real; most ends are told at once.
LOOK_AGAIN: Final = 0.01

#: The task in which the current handler runs, so that what sleeps on the clock for it can be told.
_RUN: contextvars.ContextVar[asyncio.Task[Any] | None] = contextvars.ContextVar("leveret_run", default=None)


class _Handler(NamedTuple):
    """One run of a handler: its task, and when its timeout strikes, by the monotonic clock."""

    task: asyncio.Task[Any]
    deadline: float | None


class Settling:
    """Waits until an app has settled, and moves its clock from one such moment to the next.

    All of leveret goes on in turns of the event loop, so it has settled when the loop is at rest. Only handlers may
    wait for something real meanwhile, and are waited for in real time, unless they sleep on the clock.

    Args:
        clock: the app's.
        broker: the app's.
        runner: what works for the app now, if anything.
    """

    def __init__(self, clock: FakeClock, broker: MemoryBroker, runner: Callable[[], Runner | None]) -> None:
        self._clock = clock
        self._broker = broker
        self._runner = runner
        #: Set when a handler has ended.
        self._stirred = asyncio.Event()
        #: Where time is on its way to, by the monotonic clock; None while it stands.
        self._moving_to: float | None = None
        self._overtaken: set[_Handler] = set()

    def reached(self, point: str) -> None:
        """The current task has come to a hand-over point."""
        if point == handover.DELIVERED:
            _RUN.set(asyncio.current_task())
        elif point == handover.HANDLER_DONE:
            self._stirred.set()

    async def move(self, seconds: float) -> None:
        """Let time pass; what it sets off has settled before it goes on."""
        self._moving_to = self._clock.monotonic() + seconds
        try:
            await self._clock.advance(seconds)
        finally:
            self._moving_to = None

    async def settled(self) -> None:
        """Return when nothing goes on but what waits for time to pass.

        Raises:
            TimeoutError: a handler still runs after 30 s of real time, or the loop never rests.
        """
        began = time.monotonic()
        while True:
            calm = await idle()
            running = self._running()
            if not running and (calm or self.quiet()):
                return
            waited = time.monotonic() - began
            if running and self._overtakes(running, waited):
                return
            if waited > PATIENCE:
                raise TimeoutError(_still_running(running))
            self._stirred.clear()
            try:
                async with asyncio.timeout(LOOK_AGAIN):
                    await self._stirred.wait()
            except TimeoutError:
                # Not every end is told: a handler may also begin to sleep on the clock.
                continue

    def quiet(self) -> bool:
        """Whether nothing is in anybody's hand, and nothing lies in a queue that is worked on."""
        runner = self._runner()
        if runner is None or runner.in_hand:
            return False
        services = (runner.retry_service, runner.keeper)
        if any(service is not None and not service.quiet for service in services):
            return False
        queues = self._broker.snapshot().values()
        return not any(queue.unsettled or (queue.ready and queue.consumers) for queue in queues)

    def _running(self) -> Mapping[_Handler, Road]:
        """Handlers that run and do not sleep on the clock."""
        runner = self._runner()
        roads = [] if runner is None else [consumer.road for consumer in runner.consumers]
        inside = {_Handler(*one): road for road in roads for one in road.inside.items()}
        if not inside:
            return {}
        asleep = {context.get(_RUN) for context in self._clock.asleep()}
        return {handler: road for handler, road in inside.items() if handler.task not in asleep}

    def _overtakes(self, running: Mapping[_Handler, Road], waited: float) -> bool:
        """Whether time, which is under way, may pass these: it will reach their timeouts, and they had their second."""
        target = self._moving_to
        if target is None or any(one.deadline is None or one.deadline > target for one in running):
            return False
        if waited < OVERTAKEN_AFTER and not running.keys() <= self._overtaken:
            return False
        self._overtaken.update(running)
        return True


def _still_running(running: Mapping[_Handler, Road]) -> str:
    if not running:
        return f"the event loop has not come to rest in {PATIENCE:g} s of real time: some task never waits for anything"
    roads = dict.fromkeys(f"{road.spec.name} ({road.spec.location})" for road in running.values())
    return (
        f"{', '.join(roads)} still runs after {PATIENCE:g} s of real time. The fake clock stands meanwhile, so no "
        "timeout strikes. A handler that should take long sleeps on the test's clock: await t.clock.sleep(60). To look "
        "at a handler while it runs, publish with app.publish(...), which does not wait for handlers."
    )
