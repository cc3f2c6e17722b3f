"""The store in a PostgreSQL database, which several hosts may use at once."""

from __future__ import annotations

from leveret.core.errors import MissingExtra

try:
    import psycopg  # noqa: F401 - asked for before what needs it
except ImportError as error:
    raise MissingExtra(
        "PostgreSQL needs psycopg, which is not installed: pip install 'leveret[postgres]'"
    ) from error

from leveret.stores.postgres.documents import PostgresDocumentStore
from leveret.stores.postgres.lease import PostgresRetryLease
from leveret.stores.postgres.store import PostgresStore

__all__ = ["PostgresDocumentStore", "PostgresRetryLease", "PostgresStore"]
