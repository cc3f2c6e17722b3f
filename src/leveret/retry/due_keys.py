"""DueKeys: which stored messages are due when, by key alone. Pure, and as large as what waits."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple


class DueKey(NamedTuple):
    """A stored message that waits."""

    key: str
    #: Which of its failures is stored; whatever the store's row says.
    generation: Any
    #: When it is due, by the monotonic clock.
    at: float


class DueKeys:
    """Keys in the order in which they are due.

    Example:
        >>> due = DueKeys()
        >>> due.add(DueKey("b", 1, 7.0)); due.add(DueKey("a", 1, 5.0)); due.add(DueKey("a", 2, 6.0))
        >>> [row.key for row in due.pop(now=6.5)], due.next_in(6.5)
        (['a'], 0.5)
    """

    def __init__(self) -> None:
        #: The truth; items of the heap that are not in here are leftovers.
        self._rows: dict[str, DueKey] = {}
        self._heap: list[tuple[float, int, DueKey]] = []
        self._order = 0

    def get(self, key: str) -> DueKey | None:
        """What waits under that key."""
        return self._rows.get(key)

    def add(self, row: DueKey) -> None:
        """Let it wait, in place of what waits under its key."""
        self._order += 1
        self._rows[row.key] = row
        heapq.heappush(self._heap, (row.at, self._order, row))

    def discard(self, key: str) -> None:
        """Let it wait no more."""
        self._rows.pop(key, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._rows.clear()
        self._heap.clear()

    def pop(self, now: float) -> Iterator[DueKey]:
        """Take out what is due, the longest due first, as far as it is asked for."""
        while self.next_in(now) <= 0:
            row = heapq.heappop(self._heap)[2]
            del self._rows[row.key]
            yield row

    def next_in(self, now: float) -> float:
        """Seconds until the next one is due, infinity where none waits."""
        while self._heap:
            at, _, row = self._heap[0]
            if self._rows.get(row.key) is row:
                return at - now
            heapq.heappop(self._heap)
        return float("inf")
