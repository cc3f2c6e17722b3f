"""The store that lives in this process: for tests, demos and simulations."""

from __future__ import annotations

from leveret.stores.memory.data import MemoryData
from leveret.stores.memory.lease import MemoryRetryLease
from leveret.stores.memory.store import MemoryStore

__all__ = ["MemoryData", "MemoryRetryLease", "MemoryStore"]
