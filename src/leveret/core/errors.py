"""Every exception of leveret, and whose word it is.

```
LeveretError                          ours: something you did, or something we met
├─ ConfigError (ValueError)           a setting is missing or cannot be read; nothing was started
├─ WorkerDefinition (TypeError)       a worker's decorator or signature is wrong; told at import
├─ AppNotOpen                         publish or look before `async with app:`
├─ AppNotFound                        MODULE:APP names nothing
├─ MissingExtra (ImportError)         an optional package is not installed
├─ NotSupported                       this transport or store cannot do that, and says so
├─ BadPayload (ValueError)            a payload cannot be written as JSON; nothing was sent
├─ NotFound (LookupError)             no such message, worker or queue
├─ PublishError (.message)            a publish did not end in a confirm
│  ├─ Unroutable                      returned: no queue took it
│  ├─ PublishRefused                  the broker said no (nack, 403, 404, 406); it does not have the message
│  └─ PublishTimeout (TimeoutError)   unknown: it may have arrived, or not
├─ PublishFailures                    publish_many: some of the messages (.confirmed, .failed)
├─ BrokerError
│  ├─ BrokerUnreachable               nobody answers there
│  ├─ AccessRefused                   the broker does not let us in
│  └─ QueueMismatch                   a queue exists with other arguments
├─ TransportUnavailableError          the broker cannot be reached now: what was to be sent may have arrived, or not
│  ├─ RpcUnreachableError             a call: nobody serves that queue; nothing was sent to anybody
│  └─ RpcUnknownError                 a call: the connection went, and with it the answer; it may have been obeyed
├─ RpcTimeoutError (TimeoutError)     a call: no answer in time
├─ RpcRemoteError (.type, .message)   a call: it was answered, with the error of whoever served it
└─ StoreError
   ├─ StoreUnavailable                the store itself cannot be used now: wait and try again
   ├─ StoreRefused                    the store works, but not with this data: the data is the culprit
   └─ LeaseLost                       somebody else holds the lease by now
Failure                               yours: what a handler says of a message
├─ SoftFailure                        worth another try
└─ HardFailure                        not worth one
```

An error raised without words says the first paragraph of its docstring.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from leveret.core.seconds import Seconds, fraction, seconds, shown, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.core.message import Message


class LeveretError(Exception):
    """Something went wrong in leveret."""

    def __init__(self, message: str | None = None) -> None:
        if message is None:
            words = inspect.getdoc(type(self)) or type(self).__name__
            message = " ".join(words.partition("\n\n")[0].split())
        super().__init__(message)


class ConfigError(LeveretError, ValueError):
    """A setting is missing or cannot be read. Nothing was started."""


class WorkerDefinition(LeveretError, TypeError):
    """A worker is declared in a way that cannot work."""


class AppNotOpen(LeveretError):
    """The app is not open. Use `async with app:` or `await app.open()` first."""


class AppNotFound(LeveretError):
    """MODULE:APP names no Leveret app."""


class MissingExtra(LeveretError, ImportError):
    """An optional package is not installed."""


class NotSupported(LeveretError):
    """This transport or store cannot do that."""


class BadPayload(LeveretError, ValueError):
    """The payload cannot be written as JSON, or a property does not fit AMQP. Nothing was sent."""


class NotFound(LeveretError, LookupError):
    """There is no such message, worker or queue."""


class PublishError(LeveretError):
    """A publish did not end in a confirm.

    Attributes:
        message: what was to be published, with its id, ready for `await app.publish(error.message)`.
    """

    def __init__(self, text: str | None = None, *, message: Message | None = None) -> None:
        super().__init__(text)
        self.message = message


class Unroutable(PublishError):
    """The broker returned the message: no queue is bound for it (312 NO_ROUTE)."""


class PublishRefused(PublishError):
    """The broker refused the message.

    With a code, or where it goes to one queue, the broker does not have it. A nack (RabbitMQ docs, "Negative
    acknowledgments for publishes") of what an exchange routes to several queues says that at least one of them did not
    take it, for instance as it is full: the others may have it, and get one more copy, under the same id, at the next
    try.

    Attributes:
        code: the AMQP reply code (403, 404, 406 …), or None for a plain nack, which may pass at a later try.
    """

    def __init__(
        self, text: str | None = None, *, message: Message | None = None, code: int | None = None
    ) -> None:
        super().__init__(text, message=message)
        self.code = code


class PublishTimeout(PublishError, TimeoutError):
    """No answer in time: unknown whether the message arrived. Send it again under the same id."""


class PublishFailures(LeveretError):
    """Some messages of a `publish_many` were not confirmed.

    Attributes:
        confirmed: ids that the broker has.
        failed: `PublishError`s by position of the message in the input.
    """

    def __init__(self, confirmed: Sequence[str], failed: Mapping[int, PublishError | BadPayload]) -> None:
        first = failed[min(failed)]
        super().__init__(
            f"{len(failed)} of {len(confirmed) + len(failed)} messages were not confirmed; the first: {first}"
        )
        self.confirmed = confirmed
        self.failed = failed

    def __reduce__(self) -> tuple[type[PublishFailures], tuple[object, ...]]:
        # The inherited one would hand the finished text to __init__, and so could not be copied or pickled.
        return type(self), (self.confirmed, self.failed)


class BrokerError(LeveretError):
    """The broker cannot be used."""


class BrokerUnreachable(BrokerError):
    """Nobody answers at the broker's address."""


class AccessRefused(BrokerError):
    """The broker does not let us in."""


class QueueMismatch(BrokerError):
    """A queue exists with other arguments than the ones leveret needs."""


class TransportUnavailableError(LeveretError):
    """The broker cannot be reached now. Unless it says otherwise, what was to be sent may have arrived, or not."""


class RpcUnreachableError(TransportUnavailableError):
    """Nobody serves that queue: the broker returned the request at once, and nobody has it."""


class RpcUnknownError(TransportUnavailableError):
    """The connection went while the call was under way: unknown whether the request was obeyed."""


class RpcTimeoutError(LeveretError, TimeoutError):
    """No answer in time. Whoever serves the queue does not start the request any more, but may be at it already."""


class RpcRemoteError(LeveretError):
    """Whoever serves the queue answered with an error; the request lies in the dead letters over there.

    Attributes:
        type: the exception's type over there, such as `KeyError`.
        message: its words.
        traceback: the last lines of its traceback, as text; empty where none was sent.
    """

    def __init__(
        self, text: str | None = None, *, type: str = "", message: str = "", traceback: str = ""
    ) -> None:
        super().__init__(text)
        self.type = type
        self.message = message
        self.traceback = traceback


class StoreError(LeveretError):
    """The store cannot do that."""


class StoreUnavailable(StoreError):
    """The store cannot be used now. What was to be stored stays in hand."""


class StoreRefused(StoreError):
    """The store refused this data; other data would pass."""


class LeaseLost(StoreError):
    """The lease is no longer ours; nothing was changed."""


class Failure(Exception):
    """What a handler says of its message. Raise `SoftFailure` or `HardFailure`.

    Attributes:
        reason: in words, for whoever reads the dead letter. Anything but text (an exception, say) is taken as its text.
    """

    # Defaults stand in the class for those who derive from it without calling our __init__.
    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason if isinstance(reason, str) else str(reason)


class HardFailure(Failure):
    """Hopeless: to the dead letters, with this reason, without another try.

    Example:
        >>> raise HardFailure("cannot charge 0 cents")
        Traceback (most recent call last):
        leveret.core.errors.HardFailure: cannot charge 0 cents
    """


class SoftFailure(Failure):
    """Worth another try: the message comes back to this queue later.

    Args:
        reason: kept with the retry and, in the end, with the dead letter.
        retry_after: wait exactly so many seconds, never less (the policy's `max_retry_after` may bound it).
        retry_max: allow so many retries for this message; 0 is dead now. The policy's `attempts_cap` bounds it.
        factor: multiply `retry_after` by this for each attempt after the first; only together with `retry_after`.
        jitter: lengthen `retry_after` by up to this part, 0 to 1, at random; only together with `retry_after`.
        counted: False spends no attempt and no backoff (polling, a 429): the wait is then at least 1 s.

    Raises:
        ValueError: a number that is negative, not finite, text or a bool, or `factor` or `jitter` without a
            `retry_after`; told where it is given.

    Example:
        >>> raise SoftFailure("the service asked for a pause", retry_after=2, counted=False)
        Traceback (most recent call last):
        leveret.core.errors.SoftFailure: the service asked for a pause
    """

    retry_after: float | None = None
    retry_max: int | None = None
    factor: float | None = None
    jitter: float | None = None
    counted: bool = True

    def __init__(
        self,
        reason: str = "",
        *,
        retry_after: Seconds | None = None,
        retry_max: int | None = None,
        factor: float | None = None,
        jitter: float | None = None,
        counted: bool = True,
    ) -> None:
        super().__init__(reason)
        self.retry_after = None if retry_after is None else seconds(retry_after, "retry_after")
        self.retry_max = None if retry_max is None else whole(retry_max, "retry_max", least=0)
        self.factor = None if factor is None else fraction(factor, "factor", most=None)
        self.jitter = None if jitter is None else fraction(jitter, "jitter", most=1.0)
        for name, value in (("factor", factor), ("jitter", jitter)):
            if value is not None and retry_after is None:
                raise ValueError(
                    f"{name}={shown(value)}: it applies to retry_after, and there is none. Name retry_after too, "
                    f"or leave {name} to the worker's RetryPolicy"
                )
        if not isinstance(counted, bool):
            raise ValueError(
                f"counted={shown(counted)}: expected True or False, got {type(counted).__name__}"
            )
        self.counted = counted
