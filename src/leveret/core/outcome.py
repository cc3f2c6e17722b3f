"""What follows from a run: `settle` decides, and touches nothing. The pipeline obeys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from leveret.core.dead_letter import Ending
from leveret.core.envelope import Cause
from leveret.core.errors import HardFailure, SoftFailure
from leveret.core.message import Message, Received
from leveret.core.policy import GiveUp, RandomSource, RetryAt, RetryPolicy, describe

Unexpected = Literal["retry", "dead"]


# ── What a run ended in ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned; these are to be published. A result that is no Message is kept as it came, to be told."""

    results: tuple[Message | object, ...] = ()


#: What nearly all runs end in.
RETURNED_NOTHING: Final = Returned()


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler failed, or its time was up."""

    error: BaseException
    traceback: str = ""
    #: The worker's timeout ended it: a soft failure, which says nothing of a fault in the handler.
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class NotDecoded:
    """The body does not decode, or does not fit the declared type; the handler was not called."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """It was started so often without being settled that it is taken for what kills the process."""

    starts: int


Result = Returned | Raised | NotDecoded | WorkerDied


# ── What is to be done ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Done:
    """Publish the results, all confirmed, then ack."""

    results: tuple[Message | object, ...] = ()


#: What follows from `RETURNED_NOTHING`.
ONLY_ACK: Final = Done()


@dataclass(frozen=True, slots=True)
class Retry:
    """Envelope to the retry queue, confirmed, then ack."""

    plan: RetryAt
    cause: Cause
    #: The policy's numbers as they travel.
    policy: str
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Bury:
    """Dead letter to the dead-letter queue, confirmed, then ack."""

    ending: Ending
    cause: Cause
    #: Runs that were counted.
    attempts: int


Decision = Done | Retry | Bury


def settle(
    result: Result,
    message: Received,
    *,
    worker: str,
    policy: RetryPolicy,
    now: float,
    unexpected: Unexpected = "retry",
    random: RandomSource | None = None,
) -> Decision:
    """What is to be done with *message* after a run that ended in *result*. Pure.

    Args:
        policy: the deployed one. Where the message has failed before, the numbers that travel with it govern, and
            *policy* gives its `retry_on` alone.
        now: epoch seconds.
        unexpected: `dead` makes any exception that is neither a Failure nor named in `retry_on` a hard failure.
        random: spreads the delays; None: no jitter.
    """
    if isinstance(result, Returned):
        return Done(result.results) if result.results else ONLY_ACK
    if isinstance(result, NotDecoded):
        cause = Cause(reason=result.reason, worker=worker, at=now, error="Undecodable")
        return Bury("undecodable", cause, message.attempt - 1)
    if isinstance(result, WorkerDied):
        reason = (
            f"worker died: started {result.starts} times, and each time the process or its connection ended before it "
            "was settled"
        )
        return Bury("worker died", Cause(reason=reason, worker=worker, at=now), message.attempt)
    error = result.error
    travelling = RetryPolicy.from_header(message.policy, retry_on=policy.retry_on) if message.policy else None
    governing = travelling or policy
    cause = Cause(
        reason=describe(error), worker=worker, at=now, error=type(error).__name__, traceback=result.traceback
    )
    if unexpected == "dead" and is_unexpected(result, policy):
        return Bury("hard failure", cause, message.attempt)
    decision = governing.decide(
        message.attempt,
        error,
        now,
        first_failed_at=message.first_failed_at,
        attempts_allowed=message.attempts_allowed,
        random=random,
    )
    if isinstance(decision, GiveUp):
        told = Cause(
            reason=decision.reason or cause.reason,
            worker=worker,
            at=now,
            error=cause.error,
            traceback=cause.traceback,
        )
        return Bury("retries exhausted" if decision.exhausted else "hard failure", told, message.attempt)
    return Retry(
        decision,
        cause,
        # What no longer reads as a policy does not travel on.
        governing.to_header() if travelling is None else message.policy or "",
        decision.attempts_allowed or governing.max_attempts,
    )


def is_unexpected(result: Result, policy: RetryPolicy) -> bool:
    """Whether a handler raised what nobody foresaw: no Failure, no timeout, not named in the policy's `retry_on`."""
    return (
        isinstance(result, Raised)
        and not result.timed_out
        and not isinstance(result.error, (SoftFailure, HardFailure, *policy.retry_on))
    )
