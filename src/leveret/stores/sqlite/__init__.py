"""The embedded store: one SQLite file, shared by worker, dashboard and shell."""

from __future__ import annotations

from leveret.stores.sqlite.documents import SqliteDocumentStore
from leveret.stores.sqlite.lease import SqliteRetryLease
from leveret.stores.sqlite.store import SqliteStore

__all__ = ["SqliteDocumentStore", "SqliteRetryLease", "SqliteStore"]
