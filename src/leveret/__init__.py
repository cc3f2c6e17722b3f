"""Leveret: reliable messaging for Python services. A message that it has accepted is never gone.

`import leveret` loads no driver, and pydantic only once an app is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leveret.app import Counts, Leveret
    from leveret.core.dead_letter import DeadLetter
    from leveret.core.errors import (
        AccessRefused,
        AppNotFound,
        AppNotOpen,
        BadPayload,
        BrokerError,
        BrokerUnreachable,
        ConfigError,
        Failure,
        HardFailure,
        LeveretError,
        MissingExtra,
        NotFound,
        NotSupported,
        PublishError,
        PublishFailures,
        PublishRefused,
        PublishTimeout,
        QueueMismatch,
        RpcRemoteError,
        RpcTimeoutError,
        RpcUnknownError,
        RpcUnreachableError,
        SoftFailure,
        StoreError,
        TransportUnavailableError,
        Unroutable,
        WorkerDefinition,
    )
    from leveret.core.message import Message
    from leveret.core.page import Page
    from leveret.core.policy import GiveUp, RetryAt, RetryPolicy
    from leveret.core.properties import Properties
    from leveret.core.retry_entry import RetryEntry
    from leveret.core.topology import RMQExchangeConfig
    from leveret.dead_letters.browse import DeadLetters, ReplayReport
    from leveret.pipeline.context import Context
    from leveret.retry.asking import ActReport
    from leveret.retry.browse import Retries
    from leveret.runtime.config import RuntimeConfig

#: Public name to its home, by what one looks for.
_HOMES = {
    # App
    "Leveret": "leveret.app",
    "Context": "leveret.pipeline.context",
    "Message": "leveret.core.message",
    "Properties": "leveret.core.properties",
    "RMQExchangeConfig": "leveret.core.topology",
    "RuntimeConfig": "leveret.runtime.config",
    # Failing
    "RetryPolicy": "leveret.core.policy",
    "SoftFailure": "leveret.core.errors",
    "HardFailure": "leveret.core.errors",
    "Failure": "leveret.core.errors",
    "RetryAt": "leveret.core.policy",
    "GiveUp": "leveret.core.policy",
    # Looking
    "Counts": "leveret.app",
    "Retries": "leveret.retry.browse",
    "RetryEntry": "leveret.core.retry_entry",
    "DeadLetters": "leveret.dead_letters.browse",
    "DeadLetter": "leveret.core.dead_letter",
    "ActReport": "leveret.retry.asking",
    "ReplayReport": "leveret.dead_letters.browse",
    "Page": "leveret.core.page",
    # Errors
    "LeveretError": "leveret.core.errors",
    "ConfigError": "leveret.core.errors",
    "WorkerDefinition": "leveret.core.errors",
    "AppNotOpen": "leveret.core.errors",
    "AppNotFound": "leveret.core.errors",
    "MissingExtra": "leveret.core.errors",
    "NotSupported": "leveret.core.errors",
    "BadPayload": "leveret.core.errors",
    "NotFound": "leveret.core.errors",
    "PublishError": "leveret.core.errors",
    "PublishFailures": "leveret.core.errors",
    "Unroutable": "leveret.core.errors",
    "PublishRefused": "leveret.core.errors",
    "PublishTimeout": "leveret.core.errors",
    "BrokerError": "leveret.core.errors",
    "BrokerUnreachable": "leveret.core.errors",
    "AccessRefused": "leveret.core.errors",
    "QueueMismatch": "leveret.core.errors",
    "TransportUnavailableError": "leveret.core.errors",
    "RpcUnreachableError": "leveret.core.errors",
    "RpcUnknownError": "leveret.core.errors",
    "RpcTimeoutError": "leveret.core.errors",
    "RpcRemoteError": "leveret.core.errors",
    "StoreError": "leveret.core.errors",
}

__all__ = [
    # App
    "Context",
    "Leveret",
    "Message",
    "Properties",
    "RMQExchangeConfig",
    "RuntimeConfig",
    # Failing
    "Failure",
    "GiveUp",
    "HardFailure",
    "RetryAt",
    "RetryPolicy",
    "SoftFailure",
    # Looking
    "ActReport",
    "Counts",
    "DeadLetter",
    "DeadLetters",
    "Page",
    "ReplayReport",
    "Retries",
    "RetryEntry",
    # Errors
    "AccessRefused",
    "AppNotFound",
    "AppNotOpen",
    "BadPayload",
    "BrokerError",
    "BrokerUnreachable",
    "ConfigError",
    "LeveretError",
    "MissingExtra",
    "NotFound",
    "NotSupported",
    "PublishError",
    "PublishFailures",
    "PublishRefused",
    "PublishTimeout",
    "QueueMismatch",
    "RpcRemoteError",
    "RpcTimeoutError",
    "RpcUnknownError",
    "RpcUnreachableError",
    "StoreError",
    "TransportUnavailableError",
    "Unroutable",
    "WorkerDefinition",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("leveret")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'leveret' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
