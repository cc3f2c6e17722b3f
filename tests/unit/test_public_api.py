"""What leveret promises by name: whoever changes one of these breaks programs that others have written."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import pytest

import leveret
import leveret.testing
from leveret import (
    Context,
    DeadLetters,
    HardFailure,
    Leveret,
    LeveretError,
    Message,
    Retries,
    RetryPolicy,
    RMQExchangeConfig,
    SoftFailure,
)
from leveret.testing import TestLeveret

PUBLIC = {
    "Context", "Leveret", "Message", "Properties", "RMQExchangeConfig", "RuntimeConfig",
    "Failure", "GiveUp", "HardFailure", "RetryAt", "RetryPolicy", "SoftFailure",
    "ActReport", "Counts", "DeadLetter", "DeadLetters", "Page", "ReplayReport", "Retries", "RetryEntry",
    "AccessRefused", "AppNotFound", "AppNotOpen", "BadPayload", "BrokerError", "BrokerUnreachable", "ConfigError",
    "LeveretError", "MissingExtra", "NotFound", "NotSupported", "PublishError", "PublishFailures", "PublishRefused",
    "PublishTimeout", "QueueMismatch", "StoreError", "Unroutable", "WorkerDefinition",
    "TransportUnavailableError", "RpcUnreachableError", "RpcUnknownError", "RpcTimeoutError", "RpcRemoteError",
}  # fmt: skip

#: Name to its bases, as programs catch them.
ERRORS = {
    "ConfigError": ("LeveretError", ValueError),
    "WorkerDefinition": ("LeveretError", TypeError),
    "AppNotOpen": ("LeveretError",),
    "AppNotFound": ("LeveretError",),
    "MissingExtra": ("LeveretError", ImportError),
    "NotSupported": ("LeveretError",),
    "BadPayload": ("LeveretError", ValueError),
    "NotFound": ("LeveretError", LookupError),
    "PublishError": ("LeveretError",),
    "Unroutable": ("PublishError",),
    "PublishRefused": ("PublishError",),
    "PublishTimeout": ("PublishError", TimeoutError),
    "PublishFailures": ("LeveretError",),
    "BrokerError": ("LeveretError",),
    "BrokerUnreachable": ("BrokerError",),
    "AccessRefused": ("BrokerError",),
    "QueueMismatch": ("BrokerError",),
    "TransportUnavailableError": ("LeveretError",),
    "RpcUnreachableError": ("TransportUnavailableError",),
    "RpcUnknownError": ("TransportUnavailableError",),
    "RpcTimeoutError": ("LeveretError", TimeoutError),
    "RpcRemoteError": ("LeveretError",),
    "StoreError": ("LeveretError",),
}

MUST = inspect.Parameter.empty


def positional(function: Any) -> dict[str, Any]:
    """Names that are given by place, with their defaults."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.kind in kinds and each.name != "self"}


def by_name(function: Any) -> dict[str, Any]:
    """Names that are given by name alone, with their defaults."""
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.kind is inspect.Parameter.KEYWORD_ONLY}


# ── Names ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_public_names_are_these():
    assert set(leveret.__all__) == PUBLIC
    assert len(leveret.__all__) == len(PUBLIC)


@pytest.mark.parametrize("module", ["leveret", "leveret.testing", "leveret.retry"])
def test_every_public_name_leads_somewhere_and_is_shown_by_dir(module):
    found = sys.modules.get(module) or __import__(module, fromlist=["_"])
    for name in found.__all__:
        assert getattr(found, name) is not None
        assert name in dir(found)
    with pytest.raises(AttributeError, match="has no attribute 'nobody'"):
        _ = found.nobody


def test_a_public_name_says_where_it_is_from_and_what_it_does():
    for name in PUBLIC:
        value = getattr(leveret, name)
        assert value.__doc__, name
        assert value.__module__.startswith("leveret."), name


def test_the_version_is_that_of_the_installed_package():
    assert leveret.__version__[0].isdigit()


@pytest.mark.parametrize("name", ERRORS)
def test_errors_can_be_caught_by_what_they_are(name):
    error = getattr(leveret, name)
    for base in ERRORS[name]:
        assert issubclass(error, getattr(leveret, base) if isinstance(base, str) else base)


def test_a_failure_is_the_users_word_and_no_error_of_leverets():
    for failure in (SoftFailure, HardFailure):
        assert issubclass(failure, leveret.Failure)
        assert not issubclass(failure, LeveretError)


# ── What an import loads ──────────────────────────────────────────────────────────────────────────────────────────────

HEAVY = (
    "pydantic", "typer", "click", "rich", "pika", "aio_pika", "psycopg", "pymongo", "redis", "httpx", "sqlite3",
    "pytest", "hypothesis",
)  # fmt: skip


def loaded_by(code: str) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return {name.partition(".")[0] for name in told.stdout.split()}


def test_importing_leveret_loads_no_library_at_all():
    assert loaded_by("import leveret").isdisjoint((*HEAVY, "msgspec", "asyncio"))


def test_the_names_of_the_first_twenty_lines_load_neither_pydantic_nor_typer_nor_a_driver():
    names = "Context, HardFailure, Leveret, RetryPolicy, SoftFailure"
    assert loaded_by(f"from leveret import {names}").isdisjoint(HEAVY)


def test_leveret_testing_needs_no_pytest():
    assert loaded_by("from leveret.testing import TestLeveret").isdisjoint(
        {"pytest", "hypothesis", "typer", "rich"}
    )


# ── Signatures ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_app_is_made_with_these():
    assert positional(Leveret) == {"namespace": None}
    assert inspect.signature(Leveret).parameters["namespace"].kind is inspect.Parameter.POSITIONAL_ONLY
    assert by_name(Leveret) == {
        "broker": None, "store": None, "exchange": None, "retry": RetryPolicy(), "queue_type": "classic",
        "publish_timeout": 10, "shutdown_grace": 30, "lifespan": None, "config": None,
    }  # fmt: skip


def test_a_message_is_published_with_these():
    assert positional(Leveret.publish) == {"type": MUST, "payload": None}
    assert by_name(Leveret.publish) == {
        "id": None, "headers": None, "correlation_id": None, "priority": None, "expiration": None, "delay": None,
        "at": None, "mandatory": True, "timeout": None,
    }  # fmt: skip
    assert positional(Leveret.publish_many) == {"messages": MUST}
    assert by_name(Leveret.publish_many) == {"timeout": None}


def test_a_call_is_made_and_answered_with_these():
    assert positional(Leveret.call) == {"channel": MUST, "payload": None}
    assert by_name(Leveret.call) == {"correlation_id": None, "timeout": None}
    assert positional(Leveret.rpc) == {"channel": MUST}
    assert by_name(Leveret.rpc) == {"prefetch": None, "single": None, "queue_type": None}


def test_an_app_is_run_with_these():
    assert positional(Leveret.run) == {}
    assert by_name(Leveret.run) == {
        "workers": None, "retry_worker": True, "keeper": True, "until_idle": False, "signals": True,
    }  # fmt: skip
    assert {"workers": None, "retry_worker": True, "keeper": True}.items() <= by_name(Leveret.running).items()


@pytest.mark.parametrize("name", ["publish", "publish_many", "run", "open", "close", "counts"])
def test_what_talks_to_broker_or_store_is_awaited(name):
    assert inspect.iscoroutinefunction(getattr(Leveret, name))


def test_a_worker_is_declared_with_these():
    app = Leveret("shop")
    options = {
        "name": "bill", "retry": RetryPolicy(), "timeout": 5, "prefetch": 10, "concurrency": None,
        "unexpected": "retry", "max_deliveries": 5, "replay": "queue", "queue_type": None, "queue_arguments": None,
    }  # fmt: skip

    async def handler() -> None: ...

    assert app.worker("order.placed", "order.changed", **options)(handler) is handler
    assert app.worker(handler) is handler


def test_a_policy_has_these():
    assert positional(RetryPolicy) == {}
    assert by_name(RetryPolicy) == {
        "first_delay": 30.0, "factor": 2.0, "jitter": 0.5, "max_delay": 300.0, "max_attempts": 6, "attempts_cap": None,
        "max_retry_after": None, "max_age": None, "retry_on": {},
    }  # fmt: skip
    assert RetryPolicy().schedule() == [30.0, 60.0, 120.0, 240.0, 300.0]
    assert str(RetryPolicy()) == "6 tries: 30 s, 60 s, 120 s, 240 s, 300 s ± 50 %"
    with pytest.raises(dataclasses.FrozenInstanceError):
        RetryPolicy().factor = 3.0


def test_a_failure_says_these():
    assert positional(SoftFailure) == {"reason": ""}
    assert by_name(SoftFailure) == {
        "retry_after": None, "retry_max": None, "factor": None, "jitter": None, "counted": True,
    }  # fmt: skip
    assert positional(HardFailure) == {"reason": ""}
    assert by_name(HardFailure) == {}


def test_a_message_has_these():
    assert positional(Message) == {"type": MUST, "payload": None}
    found = by_name(Message)
    # Each message has headers of its own.
    assert found.pop("headers") is not MUST
    assert found == {
        "id": None, "correlation_id": None, "reply_to": None, "priority": None, "expiration": None,
        "content_type": "application/json", "persistent": True, "mandatory": True,
    }  # fmt: skip
    assert Message("order.placed").headers == {}


def test_an_exchange_is_named_with_these():
    assert positional(RMQExchangeConfig) == {"name": MUST, "type": "topic", "durable": True}


def test_a_handlers_context_shows_these():
    shown = {name for name in dir(Context) if not name.startswith("_")}
    assert shown >= {
        "message_id", "retry_id", "type", "worker", "attempt", "max_attempts", "last_attempt", "first_failed_at",
        "redelivered", "deadline", "remaining", "properties", "headers", "body", "state", "logger",
    }  # fmt: skip


def test_looking_and_acting_goes_by_these():
    assert {name for name in dir(Retries) if not name.startswith("_")} >= {
        "list", "count", "get", "now", "cancel", "reschedule", "hold", "release",
    }  # fmt: skip
    assert {name for name in dir(DeadLetters) if not name.startswith("_")} >= {
        "list", "count", "groups", "get", "replay", "edit", "discard", "restore", "export", "import_",
    }  # fmt: skip
    replay = by_name(DeadLetters.replay)
    assert {
        "rate": None,
        "reset_attempts": True,
        "dry_run": False,
        "stop_after": None,
    }.items() <= replay.items()
    assert {"at": None, "after": None}.items() <= by_name(Retries.reschedule).items()
    assert leveret.Counts._fields == ("queued", "running", "waiting", "dead")


def test_the_harness_has_these():
    assert positional(TestLeveret) == {"app": MUST}
    assert by_name(TestLeveret) == {"start": None, "seed": 0, "jitter": False, "fail_fast": True}
    assert TestLeveret.__test__ is False
    shown = {name for name in dir(TestLeveret) if not name.startswith("_")}
    assert shown >= {"publish", "waiting", "advance", "run_until_idle", "runs", "dead", "published", "crash"}
    assert {"seconds", "minutes", "hours", "days"} <= by_name(TestLeveret.advance).keys()
