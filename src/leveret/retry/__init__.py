"""Retries: taken in, stored, due, published again, and only then removed.

The names that other programs use, each loaded when first asked for: no driver has to be there for what is not used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leveret.core.json_form import RETRY_WORKER_TYPE
    from leveret.ports import RetryLeaseInterface, RetryLeaseTerm
    from leveret.retry.worker import RetryWorker
    from leveret.runtime.retry_runner import RetryWorkerRunner
    from leveret.stores.memory.lease import MemoryRetryLease
    from leveret.stores.mongodb import MongoRetryLease
    from leveret.stores.postgres.lease import PostgresRetryLease
    from leveret.stores.sqlite.lease import SqliteRetryLease

#: Public name to its home.
_HOMES = {
    "RETRY_WORKER_TYPE": "leveret.core.json_form",
    "RetryWorker": "leveret.retry.worker",
    "RetryWorkerRunner": "leveret.runtime.retry_runner",
    "RetryLeaseInterface": "leveret.ports",
    "RetryLeaseTerm": "leveret.ports",
    "MemoryRetryLease": "leveret.stores.memory.lease",
    "MongoRetryLease": "leveret.stores.mongodb",
    "PostgresRetryLease": "leveret.stores.postgres.lease",
    "SqliteRetryLease": "leveret.stores.sqlite.lease",
}

__all__ = [
    # Workers
    "RETRY_WORKER_TYPE",
    "RetryWorker",
    "RetryWorkerRunner",
    # Leases
    "RetryLeaseInterface",
    "RetryLeaseTerm",
    "MemoryRetryLease",
    "MongoRetryLease",
    "PostgresRetryLease",
    "SqliteRetryLease",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'leveret.retry' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
