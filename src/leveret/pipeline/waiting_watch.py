"""Waiting watch: alarms where what failed lies in its queue and nobody takes it, or is overdue (A2)."""

from __future__ import annotations

from typing import Final

from leveret.core.alarm import NO_CONSUMER, RETRIES_LATE, Alarm
from leveret.core.errors import BrokerError, StoreError
from leveret.pipeline.parts import Parts, log
from leveret.pipeline.watch import Watch

#: Seconds between looks.
LOOK_EVERY: Final = 30.0
#: Seconds that the oldest due retry may be late.
LATE_AFTER: Final = 60.0
#: Seconds that a queue may be without a consumer: a deployment is over by then, and so is the lease of a holder that
#: was killed.
PATIENCE: Final = 120.0


class WaitingWatch(Watch):
    """Looks whether somebody takes what failed, and lets it go when it is due; tells whoever carries alarms.

    Every process that runs an app, a retry worker or a keeper looks, for whoever should do it may be the one that is
    not running.

    Args:
        parts: of the app.
    """

    task_name = "leveret waiting watch"

    def __init__(self, parts: Parts) -> None:
        self._parts: Final = parts
        #: Since when nobody takes what lies in a queue, by the monotonic clock.
        self._since: dict[str, float] = {}

    async def _look(self) -> None:
        names = self._parts.names
        while True:
            await self._look_at_store()
            await self._look_at(names.retry_queue, "retry-worker")
            await self._look_at(names.dead_letters, "keeper")
            await self._parts.world.clock.sleep(LOOK_EVERY)

    async def _look_at_store(self) -> None:
        namespace = self._parts.names.namespace
        try:
            due_in = await self._parts.store.next_due(namespace)
        except StoreError as error:
            # Whoever works with it tells that.
            log.debug("cannot look for what is due: %s", error, extra={"action": "look"})
            return
        if due_in is None or due_in >= -LATE_AFTER:
            self._parts.alarms.resolved(RETRIES_LATE, namespace)
            return
        self._parts.alarms.emit(
            Alarm(
                code=RETRIES_LATE,
                title=f"the oldest retry of {namespace} is {-due_in:.0f} s overdue",
                about=namespace,
                fields={"oldest_overdue_seconds": round(-due_in, 1)},
            )
        )

    async def _look_at(self, queue: str, service: str) -> None:
        try:
            state = await self._parts.transport.queue_state(queue)
        except BrokerError as error:
            # The broker watch tells that; what lies there is looked at when it is back.
            log.debug("cannot look at %s: %s", queue, error, extra={"action": "look"})
            return
        alone = state is not None and state.consumers == 0
        self._tell(queue, service, state.ready if state is not None and alone else 0)

    def _tell(self, queue: str, service: str, ready: int) -> None:
        alarms = self._parts.alarms
        if not ready:
            if self._since.pop(queue, None) is not None:
                alarms.resolved(NO_CONSUMER, queue)
            return
        now = self._parts.world.clock.monotonic()
        seconds = now - self._since.setdefault(queue, now)
        if seconds >= PATIENCE:
            alarms.emit(
                Alarm(
                    code=NO_CONSUMER,
                    title=f"{ready} messages lie in {queue}, and nobody consumes it. Start one: leveret {service}",
                    about=queue,
                    fields={"queue": queue, "ready": ready, "seconds": round(seconds)},
                )
            )
