"""Long runs: handlers that come near the time in which the broker wants its ack (P1, B07)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from leveret.pipeline.parts import log
from leveret.pipeline.watch import Watch
from leveret.pipeline.worker import WorkerSpec
from leveret.ports import Clock

#: Seconds between looks. A run is told of by so much later than it could be.
LOOK_EVERY: Final = 60.0
#: The broker's consumer_timeout in milliseconds, where neither its configuration nor the queue says otherwise.
CONSUMER_TIMEOUT: Final = 1_800_000
#: The part of it after which a run is told of: 25 of 30 minutes.
_NEAR: Final = 5 / 6


class Declared(Protocol):
    """What a handler was declared as."""

    @property
    def name(self) -> str:
        """Its worker's or channel's."""

    @property
    def location(self) -> str:
        """file:line of it."""


class Runs(Protocol):
    """Where handlers of a worker or a channel run."""

    @property
    def spec(self) -> Declared:
        """What was declared."""

    @property
    def inside(self) -> Iterable[asyncio.Task[Any]]:
        """One for each run."""


class LongRuns(Watch):
    """Warns once of each run that comes near the broker's consumer_timeout.

    It looks now and then at what runs, so that a message that is done in a millisecond pays nothing for it.

    Args:
        hosts: of the workers, and of the channels that are answered.
        clock: the world's.
    """

    task_name = "leveret long runs"

    def __init__(self, hosts: Sequence[Runs], clock: Clock) -> None:
        self._hosts: Final = hosts
        self._clock: Final = clock
        #: When each run was seen first, by the monotonic clock; None: it has been told of.
        self._seen: dict[asyncio.Task[Any], float | None] = {}

    async def _look(self) -> None:
        while True:
            now = self._clock.monotonic()
            before, self._seen = self._seen, {}
            for host in self._hosts:
                limit = _limit(host.spec)
                for task in host.inside:
                    since = before.get(task, now)
                    if since is not None and now - since >= limit * _NEAR:
                        _tell(host.spec, now - since, limit)
                        since = None
                    self._seen[task] = since
            await self._clock.sleep(LOOK_EVERY)


def _limit(spec: Declared) -> float:
    """Seconds that the broker waits for an ack on this queue."""
    given = spec.queue_arguments.get("x-consumer-timeout") if isinstance(spec, WorkerSpec) else None
    return (given if isinstance(given, int) else CONSUMER_TIMEOUT) / 1000


def _tell(spec: Declared, seconds: float, limit: float) -> None:
    own = (
        ', or from RabbitMQ 3.12 on queue_arguments={"x-consumer-timeout": milliseconds}'
        if isinstance(spec, WorkerSpec)
        else ""
    )
    log.warning(
        "%s (%s) has been running for %.0f min. The broker waits %.0f min for an ack (its consumer_timeout, unless it "
        "is set otherwise); then it closes the channel, and hands out again all that is unacked there. Split the work, "
        "or have more time: consumer_timeout in rabbitmq.conf%s",
        spec.name, spec.location, seconds // 60, limit / 60, own,
        extra={"action": "long_run", "worker": spec.name},
    )  # fmt: skip
