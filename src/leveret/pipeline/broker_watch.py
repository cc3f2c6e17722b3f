"""Broker watch: alarms where the broker is away, lets nobody publish, or has lost a consumer of ours (A2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from leveret.core.alarm import CONNECTION_BLOCKED, CONSUMER_LOST, Alarm
from leveret.pipeline.parts import Parts
from leveret.pipeline.watch import Watch

#: Seconds between looks.
LOOK_EVERY: Final = 1.0
#: Seconds that a connection or consumer may be away untold: a broker that restarts is back by then.
PATIENCE: Final = 10.0
#: Seconds after which a condition that goes on is told of again; whoever carries alarms counts them.
REMINDED_EVERY: Final = 300.0

#: Code, and what it is about.
_Condition = tuple[str, str]


class Consuming(Protocol):
    """Who consumes a queue."""

    @property
    def queue(self) -> str:
        """Which one."""

    @property
    def consuming(self) -> bool:
        """Whether the broker has our consumer."""


class BrokerWatch(Watch):
    """Looks whether we can publish and consume, and tells whoever carries alarms.

    `connection_blocked` is told at once, `consumer_lost` when it has lasted a while: once for the whole connection, or
    once for each queue that is not consumed on a connection that is up.

    Args:
        consumers: of the workers; looked at anew each time.
        parts: of the app.
    """

    task_name = "leveret broker watch"

    def __init__(self, consumers: Sequence[Consuming], parts: Parts) -> None:
        self._consumers: Final = consumers
        self._parts: Final = parts
        #: When each condition began, and when it was told of last, by the monotonic clock; None: not yet.
        self._holding: dict[_Condition, tuple[float, float | None]] = {}

    async def _look(self) -> None:
        while True:
            self._tell(self._found())
            await self._parts.world.clock.sleep(LOOK_EVERY)

    def _found(self) -> Mapping[_Condition, str]:
        """What is wrong now, in words."""
        transport = self._parts.transport
        found: dict[_Condition, str] = {}
        if transport.state == "blocked":
            found[CONNECTION_BLOCKED, transport.display] = (
                f"{transport.display} takes no messages: it is short of memory or disk. Publishes wait, and end at "
                "their deadlines; acks go on"
            )
        if transport.state in {"connecting", "disconnected"}:
            found[CONSUMER_LOST, transport.display] = (
                f"no connection to {transport.display}: nothing is published or consumed. It is tried again and again; "
                "the log says why it fails"
            )
        else:
            for consumer in self._consumers:
                if not consumer.consuming:
                    found[CONSUMER_LOST, consumer.queue] = (
                        f"{consumer.queue} is not consumed, though {transport.display} is connected. It is tried "
                        "again and again; the log says why it fails"
                    )
        return found

    def _tell(self, found: Mapping[_Condition, str]) -> None:
        now = self._parts.world.clock.monotonic()
        for condition in [each for each in self._holding if each not in found]:
            _, told = self._holding.pop(condition)
            if told is not None:
                self._parts.alarms.resolved(*condition)
        for condition, title in found.items():
            code, about = condition
            since, told = self._holding.get(condition, (now, None))
            due = (
                since + (PATIENCE if code == CONSUMER_LOST else 0.0)
                if told is None
                else told + REMINDED_EVERY
            )
            if now >= due:
                told = now
                fields = {"broker": self._parts.transport.display, "seconds": round(now - since)}
                self._parts.alarms.emit(Alarm(code=code, title=title, about=about, fields=fields))
            self._holding[condition] = since, told
