"""Schedule: what is due next, and when by the monotonic clock. Pure; bounded, whatever waits in the store (R3, R6)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from leveret.core.retry_entry import Due

#: Seconds that are looked ahead. What is within keeps its monotonic time, whatever the wall clock does.
HORIZON = 60.0
#: So many rows are kept at most; the store has the rest.
CAPACITY = 10_000
#: Seconds between two refills at least: where thousands are due in one moment the load ends in that moment.
SHORTEST_REFILL = 0.05


class Schedule:
    """Rows that are due within the horizon, the next one first.

    Everything in the store that is due before `loaded_until` is in here (or under way); what is due later is the
    store's business until the next refill.
    """

    def __init__(self, *, horizon: float = HORIZON, capacity: int = CAPACITY) -> None:
        self.horizon = horizon
        self.capacity = capacity
        self._heap: list[tuple[float, int, str]] = []
        #: Key to (when, order, row): the truth; heap items of another order are leftovers.
        self._rows: dict[str, tuple[float, int, Due]] = {}
        self._order = 0
        self.loaded_until = float("-inf")
        self._refill_at = float("-inf")
        #: Rows that were left to the store since it was asked: its answer may be older than they are.
        self._left_meanwhile: list[tuple[float, Due]] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def has(self, due: Due) -> bool:
        """Whether this failure of the row, or a later one, is in here."""
        row = self._rows.get(due.key)
        return row is not None and row[2].failure >= due.failure

    def refilling(self) -> None:
        """The store is asked for the horizon now; what is written from here on may be missing in its answer."""
        self._left_meanwhile = []

    def refilled(
        self, rows: Iterable[Due], *, now: float, all_of_them: bool, asked_at: float | None = None
    ) -> None:
        """Take what the store has for the horizon.

        Args:
            rows: the next due first.
            now: when the store has answered. What it counted while it was slow must not make a row go early.
            all_of_them: no row was left out for want of room.
            asked_at: when it was asked: what it may have left out is counted from there. None: it took no time.
        """
        asked_at = now if asked_at is None else asked_at
        last = asked_at
        for due in rows:
            last = asked_at + due.due_in
            if not self.has(due):
                self._add(due, now + due.due_in)
        self.loaded_until = asked_at + self.horizon if all_of_them else last
        meanwhile, self._left_meanwhile = self._left_meanwhile, None
        for when, due in meanwhile or ():
            if when <= self.loaded_until and not self.has(due):
                self._add(due, when)
        # Half of what is loaded lies ahead then.
        self._refill_at = now + max(SHORTEST_REFILL, (self.loaded_until - now) / 2)

    def add(self, due: Due, *, now: float) -> bool:
        """Take a row that was just written, or is to be tried again. False where the store will bring it in time."""
        when = now + due.due_in
        if when > self.loaded_until:
            # An older time of this key may be in here.
            self._rows.pop(due.key, None)
            if self._left_meanwhile is not None:
                self._left_meanwhile.append((when, due))
            return False
        self._add(due, when)
        if len(self._rows) > self.capacity:
            self._shed()
        return due.key in self._rows

    def forget(self, key: str) -> None:
        """This row is gone, or its time is no longer known."""
        self._rows.pop(key, None)

    def pop_due(self, now: float, limit: int) -> list[Due]:
        """Up to *limit* rows whose time has come, the longest due first."""
        due: list[Due] = []
        while self._heap and len(due) < limit and self._heap[0][0] <= now:
            when, order, key = heapq.heappop(self._heap)
            row = self._rows.get(key)
            if row is not None and row[1] == order:
                del self._rows[key]
                due.append(row[2]._replace(due_in=when - now))
        return due

    def next_in(self, now: float) -> float | None:
        """Seconds until the next row is due, 0 or less where one is, None where none is in here."""
        while self._heap:
            when, order, key = self._heap[0]
            row = self._rows.get(key)
            if row is not None and row[1] == order:
                return when - now
            heapq.heappop(self._heap)
        return None

    def refill_in(self, now: float) -> float:
        """Seconds until the store should be asked again."""
        return self._refill_at - now

    def overlooked(self, now: float) -> float:
        """How many seconds ago the last load ended: a refill goes back so far, so that rows follow without a gap."""
        return max(0.0, now - self.loaded_until) if self.loaded_until > float("-inf") else 0.0

    def _add(self, due: Due, when: float) -> None:
        self._order += 1
        self._rows[due.key] = (when, self._order, due)
        heapq.heappush(self._heap, (when, self._order, due.key))

    def _shed(self) -> None:
        """Leave the latest rows to the store again, and drop the heap's leftovers."""
        kept = sorted(self._rows.items(), key=lambda item: item[1][0])[: self.capacity * 9 // 10]
        self.loaded_until = min(self.loaded_until, kept[-1][1][0])
        self._refill_at = min(self._refill_at, self.loaded_until)
        self._rows = dict(kept)
        self._heap = [(when, order, key) for key, (when, order, _) in kept]
        heapq.heapify(self._heap)
