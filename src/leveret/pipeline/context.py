"""Context: what a handler may know of the message in its hands."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leveret.core import headers as h
from leveret.core.message import retry_id

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from datetime import datetime

    from leveret.core.message import Received
    from leveret.core.properties import Properties
    from leveret.ports import Clock

_log = logging.getLogger("leveret.worker")


class _MessageLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts worker, message id and attempt on each record of a handler's own."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """What a handler may know of the message in its hands. Ask for it by annotation, in any position.

    Example:
        >>> async def charge(order: dict, ctx: Context) -> None:
        ...     if ctx.last_attempt:
        ...         ctx.logger.warning("giving order %s its last try", order["id"])
    """

    __slots__ = ("_clock", "_deadline", "_logger", "_message", "max_attempts", "state", "worker")

    def __init__(
        self,
        message: Received,
        *,
        worker: str,
        max_attempts: int,
        deadline: float | None,
        state: Any,
        clock: Clock,
    ) -> None:
        self._message = message
        self._clock = clock
        self._deadline = deadline
        self._logger: _MessageLogger | None = None
        #: The worker's name.
        self.worker = worker
        #: How many runs it may have, the first included.
        self.max_attempts = max_attempts
        #: What the app's `lifespan` yielded.
        self.state = state

    def __repr__(self) -> str:
        attempt = f"attempt={self.attempt} of {self.max_attempts}"
        return f"Context({self.worker}, {self.type}, id={self.message_id}, {attempt})"

    @property
    def message_id(self) -> str | None:
        """The message's id; what makes two copies of it one message."""
        return self._message.properties.message_id

    @property
    def retry_id(self) -> str | None:
        """The same through all retries of this message in this queue; None before its first failure without an id."""
        return retry_id(self._message)

    @property
    def type(self) -> str:
        """The message type it was published with."""
        return self._message.type

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        return self._message.attempt

    @property
    def last_attempt(self) -> bool:
        """Whether a soft failure now would be the end of it."""
        return self._message.attempt >= self.max_attempts

    @property
    def first_failed_at(self) -> datetime | None:
        """When it failed for the first time (UTC), None where it has not failed."""
        from datetime import UTC, datetime

        at = self._message.first_failed_at
        return None if at is None else datetime.fromtimestamp(at, UTC)

    @property
    def redelivered(self) -> bool:
        """The broker handed it over before, and it was not settled: this may be a repeat."""
        return self._message.redelivered or self._message.starts > 0

    @property
    def deadline(self) -> float | None:
        """When the worker's timeout strikes, in seconds of the monotonic clock; None without a timeout."""
        return self._deadline

    def remaining(self) -> float | None:
        """Seconds until the worker's timeout strikes, at least 0; None without a timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())

    @property
    def properties(self) -> Properties:
        """The AMQP properties, decoded when asked for."""
        return self._message.properties

    @property
    def headers(self) -> Mapping[str, Any]:
        """The message's headers, without leveret's bookkeeping."""
        return h.for_handlers(self._message.properties.headers)

    @property
    def body(self) -> bytes:
        """The body as it came."""
        return self._message.body

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records bear worker, message id and attempt."""
        if self._logger is None:
            self._logger = _MessageLogger(
                _log.getChild(self.worker),
                {"worker": self.worker, "message_id": self.message_id, "attempt": self.attempt},
            )
        return self._logger
