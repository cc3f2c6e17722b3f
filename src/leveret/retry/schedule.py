"""Schedule: what is due next, and when by the monotonic clock. Pure; bounded, whatever waits in the store (R3, R6)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from leveret.core.retry_entry import Due

#: Seconds that are looked ahead. What is within keeps its monotonic time, whatever the wall clock does.
HORIZON = 60.0
#: So many rows are loaded at most, and as many that were written since may be kept besides; the store has the rest.
CAPACITY = 10_000
#: Seconds between two refills at least: where thousands are due in one moment the load ends in that moment.
SHORTEST_REFILL = 0.05


class Schedule:
    """Rows that are due within the horizon, the next one first.

    Everything in the store that is due before `loaded_until` is in here (or under way). Of what is due later some is in
    here, as it was just written: it is not to wait until a burst before it has been loaded piece by piece. The rest is
    the store's business until the next refill.
    """

    def __init__(self, *, horizon: float = HORIZON, capacity: int = CAPACITY) -> None:
        self.horizon = horizon
        self.capacity = capacity
        self._heap: list[tuple[float, int, str]] = []
        #: Key to (when, order, row): the truth; heap items of another order are leftovers.
        self._rows: dict[str, tuple[float, int, Due]] = {}
        self._order = 0
        self.loaded_until = float("-inf")
        #: Where the next refill goes on, if the last one had no room for all within the horizon.
        self._ended_at: tuple[float, str] | None = None
        self._refill_at = float("-inf")
        #: The first that was left to the store since it was asked: its answer may be older than that.
        self._left_meanwhile = float("inf")

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def has(self, due: Due) -> bool:
        """Whether this failure of the row, or a later one, is in here."""
        row = self._rows.get(due.key)
        return row is not None and row[2].failure >= due.failure

    @property
    def room(self) -> int:
        """How many rows a refill may bring."""
        return self.capacity - sum(when <= self.loaded_until for when, _, _ in self._rows.values())

    def covers(self, due: Due, cursor: tuple[float, str], *, asked_at: float) -> bool:
        """Whether a row that the store has just named lies in the part that is loaded; the rest a refill brings."""
        loaded = asked_at + due.due_in <= self.loaded_until
        return loaded and (self._ended_at is None or cursor <= self._ended_at)

    def refilling(self) -> tuple[float, str] | None:
        """The store is asked now: for what comes after this cursor, or for the whole horizon where it is None."""
        self._left_meanwhile = float("inf")
        return self._ended_at

    def refilled(
        self,
        rows: Iterable[Due],
        *,
        now: float,
        asked_at: float | None = None,
        ended_at: tuple[float, str] | None = None,
    ) -> None:
        """Take what the store has for the horizon.

        Args:
            rows: the next due first.
            now: when the store has answered. What it counted while it was slow must not make a row go early.
            asked_at: when it was asked: what it may have left out is counted from there. None: it took no time.
            ended_at: the cursor of the last row, where others were left out for want of room.
        """
        asked_at = now if asked_at is None else asked_at
        # What was read after other rows goes after them, also where the store took longer to name those.
        earliest = float("-inf") if self._ended_at is None else self.loaded_until
        last = now
        for due in rows:
            last = max(earliest, now + due.due_in)
            if not self.has(due):
                self._add(due, last)
        self._ended_at = ended_at
        self.loaded_until = asked_at + self.horizon if ended_at is None else last
        if self._left_meanwhile < self.loaded_until:
            self._load_again_from(self._left_meanwhile)
        self.refill_later(now=now)

    def refill_later(self, *, now: float) -> None:
        """Refill when half of what is loaded lies ahead."""
        self._refill_at = now + max(SHORTEST_REFILL, (self.loaded_until - now) / 2)

    def add(self, due: Due, *, now: float) -> bool:
        """Take a row that was just written, or is to be tried again. False where the store will bring it in time."""
        row = self._rows.get(due.key)
        if row is not None and row[2].failure > due.failure:
            # It failed again before all was told of an earlier failure, as where the confirm of that one is late.
            return True
        when = now + due.due_in
        if due.due_in > self.horizon:
            # An older time of this key may be in here.
            self._rows.pop(due.key, None)
            return False
        self._add(due, when)
        if len(self._rows) > 2 * self.capacity:
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
        ranked = sorted(self._rows.items(), key=lambda item: item[1][:2])
        kept, left = ranked[: self.capacity * 3 // 2], ranked[self.capacity * 3 // 2 :]
        self._rows = dict(kept)
        self._heap = [(when, order, key) for key, (when, order, _) in kept]
        heapq.heapify(self._heap)
        first = left[0][1][0]
        self._left_meanwhile = min(self._left_meanwhile, first)
        if first < self.loaded_until:
            self._load_again_from(first)

    def _load_again_from(self, when: float) -> None:
        self.loaded_until = when
        self._ended_at = None
        self._refill_at = min(self._refill_at, when)
