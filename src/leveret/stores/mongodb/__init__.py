"""The MongoDB store: a database that any number of hosts may use at once."""

from __future__ import annotations

from leveret.stores.mongodb.documents import MongoDBDocumentStore
from leveret.stores.mongodb.lease import LEASE_ID, MongoRetryLease
from leveret.stores.mongodb.store import MongoStore

__all__ = ["LEASE_ID", "MongoDBDocumentStore", "MongoRetryLease", "MongoStore"]
