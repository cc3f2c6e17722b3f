"""Lines: which rows are under way, and which wait for room in their queue. Pure; the dispatcher asks (R2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from leveret.core.retry_entry import Due, Lane

#: Rows in one transaction and one confirm wait.
BATCH = 400
#: Rows of one queue without an answer at most. A queue that withholds its confirms (a quorum queue in a minority) must
#: not fill the confirm window that all others share.
MOST_OF_ONE_QUEUE = 2 * BATCH
#: So much less has a queue for each row of other queues without an answer. Some room is left beside a queue that
#: withholds its confirms, beside two less, and however many do, they fill the window no further than 915 of 1000.
LESS_FOR_EACH_OTHER = 7 / 8
#: This part of what a queue has is kept from each lane for those before it, which are not to wait behind a backlog.
KEPT_FOR_EARLIER = 1 / 8
#: Rows of a lane that wait in memory for room in their queue, before no more of it are taken.
MOST_WAITING = 10_000
#: Seconds until a row is looked at again whose earlier failure is still under way.
ONCE_MORE = 0.02


class Line(NamedTuple):
    """Rows of one queue that go in the order of their time."""

    lane: Lane
    queue: str


class Lines:
    """Rows under way and rows that wait, by queue and lane.

    No queue has more than `MOST_OF_ONE_QUEUE` rows without an answer, and less where others have some. Where it has no
    room for all, the rows of a lane wait behind none of a later one, and within a line the oldest goes first.
    """

    def __init__(self) -> None:
        #: Keys being republished right now.
        self.under_way: set[str] = set()
        #: Rows under way by line, and rows that went out and have no answer yet by queue.
        self._going: Counter[Line] = Counter()
        self._silent: Counter[str] = Counter()
        #: How many rows these two hold in all.
        self._going_in_all = self._silent_in_all = 0
        #: Rows that are due, and wait for room in their queue: by line, then by key, the first one first.
        self._waiting: dict[Line, dict[str, Due]] = {}

    # ── What there is ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def still(self) -> bool:
        """Whether nothing is under way, waits for room, or is without an answer."""
        return not self.under_way and not self._waiting and not any(self._silent.values())

    def waiting(self, lane: Lane) -> int:
        """How many rows of that lane wait for room."""
        return sum(len(rows) for line, rows in self._waiting.items() if line.lane is lane)

    def crowded(self, lane: Lane) -> bool:
        """Whether so many rows of that lane wait that no more should be taken."""
        return self.waiting(lane) >= MOST_WAITING

    def has(self, due: Due) -> bool:
        """Whether this row is being republished, or waits for room, whichever failure of it."""
        return due.key in self.under_way or any(
            due.key in self._waiting.get(line, ()) for line in _lines_of(due.queue)
        )

    def keeps(self, due: Due) -> bool:
        """Whether this failure of a row, or a later one, waits for room."""
        lines = (self._waiting.get(line, {}) for line in _lines_of(due.queue))
        return any(rows[due.key].failure >= due.failure for rows in lines if due.key in rows)

    # ── A row ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def probed(self) -> set[str]:
        """Queues that withhold their answers and have a batch under way.

        The next one waits for its end: each lasts until it is given up, and would take the place of another queue's.
        """
        return {line.queue for line, going in self._going.items() if going and self._silent[line.queue]}

    def full(self, due: Due, *, probed: Collection[str]) -> bool:
        """Whether there is no room for this row now: nothing passes what waits in the same line."""
        line = _line_of(due)
        return line in self._waiting or line.queue in probed or self._room_of(line) <= 0

    def may_wait(self, due: Due) -> bool:
        """Whether this row may wait here for room.

        Those of a silent queue may not, nor any where all that went out is silent, as no end of a batch lets them go.
        Nor may too many of those that were just written: nobody asks whether there is room before writing.
        """
        if self._silent[due.queue] or not (self._going_in_all or self._room_of(_line_of(due)) > 0):
            return False
        return not (due.lane is Lane.WRITTEN and self.crowded(due.lane))

    def wait(self, due: Due) -> None:
        """Keep this row until there is room. A batch is under way, whose end makes some."""
        self._waiting.setdefault(_line_of(due), {})[due.key] = due

    def start(self, due: Due) -> None:
        """This row is under way from here on, until `ended`."""
        self.under_way.add(due.key)
        self._going[_line_of(due)] += 1
        self._going_in_all += 1

    def ended(self, rows: Sequence[Due]) -> None:
        """These rows are under way no more."""
        self.under_way.difference_update(due.key for due in rows)
        self._going.subtract(map(_line_of, rows))
        self._going_in_all -= len(rows)

    def unseen(self, queue: str) -> None:
        """A row went out to that queue, and no answer has come in time; `answered` where it comes after all."""
        self._silent[queue] += 1
        self._silent_in_all += 1

    def answered(self, queue: str) -> None:
        """An answer that was overdue has come, or will never come."""
        self._silent[queue] -= 1
        self._silent_in_all -= 1

    def forget(self, key: str) -> None:
        """This row is gone, or its time is no longer known."""
        for line, rows in list(self._waiting.items()):
            rows.pop(key, None)
            if not rows:
                del self._waiting[line]

    def let_go(self) -> tuple[list[Due], list[Due]]:
        """As many waiting rows as there is room for; all of them each time would take longer than their publishes.

        Returns:
            Those that are under way from here on; and those that wait elsewhere, for as long as they say.
        """
        going: list[Due] = []
        again: list[Due] = []
        probed = self.probed()
        for line in sorted(self._waiting):
            rows = self._waiting[line]
            room = 0 if line.queue in probed else self._room_of(line)
            silent = (
                room <= 0
                and not self._going_to(line.queue)
                and (self._silent[line.queue] > 0 or not self._going_in_all)
            )
            for _ in range(min(len(rows) if silent else room, len(rows))):
                due = rows.pop(next(iter(rows)))
                if silent:
                    # No batch is left whose end would let them go: each waits for an answer by itself.
                    again.append(due._replace(due_in=0.0))
                elif due.key in self.under_way:
                    again.append(due._replace(due_in=ONCE_MORE))
                else:
                    self.start(due)
                    going.append(due)
            if not rows:
                del self._waiting[line]
        return going, again

    # ── Room ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _room_of(self, line: Line) -> int:
        """How many more rows of that line may be under way; where later lanes wait, it leaves some room to them."""
        lines = _lines_of(line.queue)
        unanswered = self._going_to(line.queue) + self._silent[line.queue]
        others = self._going_in_all + self._silent_in_all - unanswered
        most = max(0, MOST_OF_ONE_QUEUE - int(others * LESS_FOR_EACH_OTHER))
        kept = line.lane * int(most * KEPT_FOR_EARLIER)
        room = most - kept - unanswered
        if any(each > line and each in self._waiting for each in lines):
            before = sum(self._going[each] for each in lines if each <= line)
            return min(room, (most + 1) // 2 + kept - before)
        return room

    def _going_to(self, queue: str) -> int:
        return sum(self._going[line] for line in _lines_of(queue))


def _line_of(due: Due) -> Line:
    return Line(due.lane, due.queue)


def _lines_of(queue: str) -> list[Line]:
    return [Line(lane, queue) for lane in Lane]
