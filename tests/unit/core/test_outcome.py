from __future__ import annotations

import copy
import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.errors import HardFailure, SoftFailure
from leveret.core.message import Message, Received
from leveret.core.outcome import (
    Bury,
    Done,
    NotDecoded,
    Raised,
    Result,
    Retry,
    Returned,
    WorkerDied,
    is_unexpected,
    settle,
)
from leveret.core.policy import GiveUp, RetryPolicy
from leveret.core.properties import Properties

POLICY = RetryPolicy(first_delay=10, factor=2, jitter=0.5, max_delay=100, max_attempts=4)
NOW = 1_750_000_000.0


def message(**more: Any) -> Received:
    values: dict[str, Any] = {
        "queue": "shop.charge", "exchange": "shop.events", "routing_key": "order.placed", "body": b"{}",
        "properties": Properties.build(message_id="m"),
    }  # fmt: skip
    return Received(**(values | more))


def decide(result: Result, failed: Received | None = None, **more: Any) -> Done | Retry | Bury:
    values: dict[str, Any] = {"worker": "charge", "policy": POLICY, "now": NOW}
    return settle(result, failed or message(), **(values | more))


def retry(result: Result, failed: Received | None = None, **more: Any) -> Retry:
    decision = decide(result, failed, **more)
    assert isinstance(decision, Retry)
    return decision


def bury(result: Result, failed: Received | None = None, **more: Any) -> Bury:
    decision = decide(result, failed, **more)
    assert isinstance(decision, Bury)
    return decision


# ── Over everything ───────────────────────────────────────────────────────────────────────────────────────────────────


class Rude(Exception):
    """Raises when anybody looks at it."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


SECONDS = st.floats(0, 1e10, allow_nan=False)
PARTS = st.floats(0, 1)
SOFT = st.builds(
    SoftFailure,
    st.text(max_size=20),
    retry_after=SECONDS,
    retry_max=st.none() | st.integers(0, 20_000),
    factor=st.none() | st.floats(0, 1e300),
    jitter=st.none() | PARTS,
    counted=st.booleans(),
) | st.builds(
    SoftFailure, st.text(max_size=20), retry_max=st.none() | st.integers(0, 20_000), counted=st.booleans()
)
ERRORS = st.one_of(
    SOFT,
    st.builds(HardFailure, st.text(max_size=20)),
    st.sampled_from([
        ValueError("\ud800"), KeyError("url"), TimeoutError(), Rude(), SystemExit(3), RecursionError(),
        KeyboardInterrupt(), ExceptionGroup("several", [ValueError("one")]), MemoryError("x" * 10_000),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
    ]),
)  # fmt: skip
RESULTS = st.one_of(
    st.just(Returned()),
    st.builds(
        Returned, st.lists(st.builds(Message, st.text(max_size=5)) | st.integers(), max_size=3).map(tuple)
    ),
    st.builds(Raised, ERRORS, st.text(max_size=50), timed_out=st.booleans()),
    st.builds(NotDecoded, st.text(max_size=20)),
    st.builds(WorkerDied, st.integers(1, 100)),
)
POLICIES = st.builds(
    lambda first, more, **rest: RetryPolicy(first_delay=first, max_delay=first + more, **rest),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
    factor=st.floats(0, 1e300),
    jitter=PARTS,
    max_attempts=st.integers(1, 20_000),
    attempts_cap=st.none() | st.integers(1, 20_000),
    max_retry_after=st.none() | SECONDS,
    max_age=st.none() | SECONDS,
    retry_on=st.sampled_from([
        {}, {ValueError: GiveUp}, {LookupError: RetryPolicy(max_attempts=2), KeyError: GiveUp("no url")},
        {Exception: RetryPolicy(first_delay=0, max_attempts=9999)}, {BaseException: GiveUp(exhausted=True)},
    ]),
)  # fmt: skip
HEADERS = st.none() | st.text(max_size=20) | POLICIES.map(lambda policy: policy.to_header())
MESSAGES = st.builds(
    message,
    attempt=st.integers(1, 10_000),
    failure=st.integers(0, 2**31),
    first_failed_at=st.none() | st.floats(0, 4e9),
    policy=HEADERS,
    attempts_allowed=st.none() | st.integers(1, 20_000),
)


@given(
    RESULTS,
    MESSAGES,
    POLICIES,
    st.floats(0, 4e9),
    st.sampled_from(["retry", "dead"]),
    st.none() | st.integers(),
)
def test_every_outcome_has_a_decision_and_the_same_one_each_time(
    result: Result, failed: Received, policy: RetryPolicy, now: float, unexpected: Any, seed: int | None
):
    def once() -> Done | Retry | Bury:
        spread = None if seed is None else random.Random(seed)
        return settle(
            result, failed, worker="charge", policy=policy, now=now, unexpected=unexpected, random=spread
        )

    before = copy.copy(failed)
    decision = once()
    assert decision == once()
    assert failed == before
    if isinstance(result, Returned):
        assert decision == Done(result.results)
    elif isinstance(result, NotDecoded):
        assert isinstance(decision, Bury)
        assert (decision.ending, decision.attempts) == ("undecodable", failed.attempt - 1)
    elif isinstance(result, WorkerDied):
        assert isinstance(decision, Bury)
        assert decision.ending == "worker died"
    elif isinstance(decision, Retry):
        assert isinstance(result, Raised)
        assert not isinstance(result.error, HardFailure)
        assert 0 <= decision.plan.delay < math.inf
        counted = not isinstance(result.error, SoftFailure) or result.error.counted
        assert decision.plan.counted == counted
        assert decision.plan.attempt == failed.attempt + counted
        assert counted or decision.plan.delay >= 1
        assert RetryPolicy.from_header(decision.policy) is not None
    else:
        assert isinstance(decision, Bury)
        assert decision.ending in {"hard failure", "retries exhausted"}
        assert decision.attempts == failed.attempt
        assert decision.cause.reason
        assert decision.cause.reason.encode()


@given(st.integers(1, 10_000), POLICIES)
def test_no_attempt_goes_beyond_what_the_policy_allows(attempt: int, policy: RetryPolicy):
    decision = decide(Raised(OSError("down")), message(attempt=attempt), policy=policy)
    rules = policy.retry_on.get(Exception) or policy.retry_on.get(BaseException)
    allowed = rules.max_attempts if isinstance(rules, RetryPolicy) else policy.max_attempts
    if isinstance(decision, Retry):
        assert attempt < allowed


# ── One by one ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_results_are_to_be_published_in_their_order_before_the_ack():
    results = (Message("a"), Message("b"), "no message")
    assert decide(Returned(results)) == Done(results)


def test_a_soft_failure_waits_as_the_policy_says_and_tells_why():
    decision = retry(Raised(SoftFailure("503"), "Traceback …"), message(attempt=2))
    assert (decision.plan.delay, decision.plan.attempt, decision.max_attempts) == (20.0, 3, 4)
    cause = decision.cause
    assert (cause.reason, cause.worker, cause.at, cause.error, cause.traceback) == (
        "503", "charge", NOW, "SoftFailure", "Traceback …",
    )  # fmt: skip


def test_the_last_attempt_that_fails_softly_is_the_end_and_says_that_tries_are_used_up():
    decision = bury(Raised(SoftFailure("503")), message(attempt=4))
    assert (decision.ending, decision.attempts) == ("retries exhausted", 4)
    assert decision.cause.reason == "retries exhausted: 503"


def test_a_hard_failure_is_the_end_at_once_and_keeps_its_words():
    decision = bury(Raised(HardFailure("410 gone"), "Traceback …"))
    assert (decision.ending, decision.attempts, decision.cause.reason) == (
        "hard failure",
        1,
        "HardFailure: 410 gone",
    )
    assert decision.cause.traceback == "Traceback …"


def test_a_body_that_does_not_decode_was_never_run_so_no_attempt_is_counted():
    decision = bury(NotDecoded("the body is not JSON"), message(attempt=3))
    assert (decision.ending, decision.attempts, decision.cause.error) == ("undecodable", 2, "Undecodable")


def test_what_kills_its_process_is_said_to():
    decision = bury(WorkerDied(5))
    assert (decision.ending, decision.attempts) == ("worker died", 1)
    assert "started 5 times" in decision.cause.reason


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), RecursionError()], ids=repr)
def test_any_other_exception_is_worth_another_try_unless_the_worker_says_otherwise(error: BaseException):
    retry(Raised(error))
    assert bury(Raised(error), unexpected="dead").ending == "hard failure"


def test_what_is_foreseen_is_retried_also_by_a_worker_that_buries_the_unexpected():
    foreseen = RetryPolicy(retry_on={OSError: RetryPolicy(first_delay=7)})
    assert retry(Raised(ConnectionError()), policy=foreseen, unexpected="dead").plan.delay == 7.0
    retry(Raised(SoftFailure("503")), unexpected="dead")
    retry(Raised(TimeoutError("too long"), timed_out=True), unexpected="dead")
    assert bury(Raised(TimeoutError("of the handler's own")), unexpected="dead").ending == "hard failure"


def test_unexpected_is_what_is_neither_a_failure_nor_a_timeout_nor_named():
    named = RetryPolicy(retry_on={KeyError: GiveUp})
    assert is_unexpected(Raised(ValueError()), named)
    assert not is_unexpected(Raised(KeyError()), named)
    assert not is_unexpected(Raised(SoftFailure()), named)
    assert not is_unexpected(Raised(HardFailure()), named)
    assert not is_unexpected(Raised(TimeoutError(), timed_out=True), named)
    assert not is_unexpected(Returned(), named)


def test_the_numbers_of_the_first_failure_govern_and_travel_on_and_retry_on_is_the_deployed_codes():
    first = RetryPolicy(first_delay=1, factor=1, jitter=0, max_attempts=9)
    failed = message(attempt=5, policy=first.to_header())
    decision = retry(Raised(OSError()), failed)
    assert (decision.plan.delay, decision.max_attempts, decision.policy) == (1.0, 9, first.to_header())
    deployed = RetryPolicy(max_attempts=2, retry_on={OSError: GiveUp})
    assert bury(Raised(OSError()), failed, policy=deployed).ending == "hard failure"


def test_the_deployed_policy_travels_from_the_first_failure_on():
    assert RetryPolicy.from_header(retry(Raised(OSError())).policy) == POLICY


@pytest.mark.parametrize(
    "header", ["", "{", "null", "[]", '{"max_attempts": 3}', "x" * 100_000], ids=lambda text: text[:20]
)
def test_a_policy_that_cannot_be_read_neither_governs_nor_travels_on(header: str):
    decision = retry(Raised(OSError()), message(policy=header))
    assert RetryPolicy.from_header(decision.policy) == POLICY
    assert decision.plan.delay == 10.0


def test_what_a_later_leveret_wrote_into_a_policy_travels_on_unharmed():
    header = POLICY.to_header()[:-1] + ',"later":1}'
    assert retry(Raised(OSError()), message(policy=header)).policy == header


def test_a_failure_may_allow_more_runs_and_that_is_remembered():
    asked = retry(Raised(SoftFailure(retry_max=8)), message(attempt=4))
    assert (asked.max_attempts, asked.plan.attempts_allowed) == (9, 9)
    later = retry(Raised(OSError()), message(attempt=8, attempts_allowed=9))
    assert (later.max_attempts, later.plan.attempts_allowed) == (9, 9)
    assert bury(Raised(OSError()), message(attempt=9, attempts_allowed=9)).ending == "retries exhausted"


def test_a_message_that_would_be_too_old_at_its_next_run_is_dead():
    policy = RetryPolicy(first_delay=10, jitter=0, max_age=60)
    retry(Raised(OSError()), message(attempt=2, first_failed_at=NOW - 30), policy=policy)
    decision = bury(Raised(OSError()), message(attempt=2, first_failed_at=NOW - 50), policy=policy)
    assert decision.ending == "retries exhausted"
    assert "max_age" in decision.cause.reason
