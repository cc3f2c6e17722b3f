"""What waits, in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from leveret.core.retry_entry import Due
from leveret.ports import Placed
from leveret.stores import cursors
from leveret.stores.endings import names, the_one
from leveret.stores.intake import due_time, entry_body, shown
from leveret.stores.memory.data import NEVER, entry_matches
from leveret.stores.memory.letters import as_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.dead_letter import DeadLetter
    from leveret.core.retry_entry import Filter, RetryEntry
    from leveret.ports import Clock, Grant
    from leveret.stores.memory.data import MemoryData


class MemoryRetries:
    """The retry part of the memory store. No call awaits anything, so each is one transaction."""

    clock: Clock
    _open: Callable[[], MemoryData]

    async def put(self, entries: Sequence[RetryEntry]) -> list[Placed]:
        """Write entries; a key that waits already is replaced by a higher failure number only."""
        data, now = self._open(), self.clock.now()
        # Made whole first: one that is refused keeps the others out too.
        fresh = [_as_kept(entry, now) for entry in entries]
        placed = []
        for entry in fresh:
            old, try_at = data.retries.get((entry.namespace, entry.key), (None, 0.0))
            if old is not None and entry.failure <= old.failure:
                placed.append(Placed(False, (old.due_at if try_at == NEVER else try_at) - now))
                continue
            if old is not None and old.state == "held":
                # A person holds it, and a person releases it.
                entry = replace(entry, state="held", state_reason=old.state_reason)  # noqa: PLW2901
            data.place(entry, NEVER if entry.state == "held" else entry.due_at)
            placed.append(Placed(True, entry.due_at - now))
        return placed

    async def upcoming(
        self,
        namespace: str,
        *,
        within: float,
        limit: int,
        since: float | None = None,
        after: tuple[float, str] | None = None,
    ) -> list[tuple[Due, tuple[float, str]]]:
        """Rows that are due within so many seconds, the longest due first, each with a cursor for *after*."""
        data, now = self._open(), self.clock.now()
        order = data.order.get(namespace, [])
        start = 0 if since is None else bisect_left(order, (now - since, ""))
        if after is not None:
            start = max(start, bisect_right(order, after))
        found: list[tuple[Due, tuple[float, str]]] = []
        for index in range(start, len(order)):
            try_at, key = order[index]
            if len(found) >= limit or try_at > now + within or try_at == NEVER:
                break
            entry = data.retries[namespace, key][0]
            found.append((Due(key, entry.failure, try_at - now, entry.queue, entry.size), (try_at, key)))
        return found

    async def next_due(self, namespace: str) -> float | None:
        """Seconds until the next row may be tried, negative where one is overdue, None where nothing waits."""
        order = self._open().order.get(namespace)
        return order[0][0] - self.clock.now() if order and order[0][0] != NEVER else None

    async def take(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        grant: Grant | None = None,
        held: bool = False,
    ) -> list[RetryEntry]:
        """The whole entries of these (key, failure) rows that still carry that failure; held ones only with *held*."""
        data, now = self._open(), self.clock.now()
        data.check_grant(grant)
        found = (data.with_failure(namespace, key, failure) for key, failure in rows)
        return [
            _as_read(entry, now) for entry in found if entry is not None and (held or entry.state != "held")
        ]

    async def remove(
        self, namespace: str, rows: Sequence[tuple[str, int]], *, grant: Grant | None = None
    ) -> int:
        """Delete these (key, failure) rows, those that still carry that failure. Returns how many."""
        data = self._open()
        data.check_grant(grant)
        removed = 0
        for key, failure in rows:
            if data.with_failure(namespace, key, failure) is not None:
                data.drop(namespace, key)
                removed += 1
        return removed

    async def postpone(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        seconds: float,
        blocked: str | None = None,
        grant: Grant | None = None,
    ) -> None:
        """Try these rows again after so many seconds; `due_at` stays. *blocked*: the reason that listings show."""
        data = self._open()
        data.check_grant(grant)
        try_at = self.clock.now() + seconds
        for key, failure in rows:
            entry = data.with_failure(namespace, key, failure)
            if entry is None or entry.state == "held":
                continue
            if blocked is None:
                data.place(replace(entry, state="waiting", state_reason=""), try_at)
            else:
                data.place(replace(entry, state="blocked", state_reason=shown(blocked)), try_at)

    async def unblock(self, namespace: str, queue: str, *, grant: Grant | None = None) -> int:
        """Let every blocked row of that queue be tried at once. Returns how many."""
        data = self._open()
        data.check_grant(grant)
        found = [
            entry
            for (name, _), (entry, _) in data.retries.items()
            if name == namespace and entry.queue == queue and entry.state == "blocked"
        ]
        for entry in found:
            data.place(replace(entry, state="waiting", state_reason=""), entry.due_at)
        return len(found)

    async def reschedule(
        self, rows: Sequence[tuple[str, str]], *, due_at: float | None = None, wait: float | None = None
    ) -> int:
        """Set when these (namespace, key) rows are due: at a time, or so many seconds from now. Also unblocks them."""
        time = due_time(self.clock.now(), due_at=due_at, wait=wait)
        return self._change(
            rows,
            lambda entry, try_at: (
                (replace(entry, due_at=time), try_at)
                if entry.state == "held"
                else (replace(entry, due_at=time, state="waiting", state_reason=""), time)
            ),
        )

    async def hold(self, rows: Sequence[tuple[str, str]], *, held: bool, reason: str = "") -> int:
        """Hold these (namespace, key) rows, or release them. Held rows are never due. Returns how many changed."""
        if held:
            return self._change(
                rows,
                lambda entry, _: (
                    None
                    if entry.state == "held"
                    else (replace(entry, state="held", state_reason=shown(reason)), NEVER)
                ),
            )
        return self._change(
            rows,
            lambda entry, _: (
                (replace(entry, state="waiting", state_reason=""), entry.due_at)
                if entry.state == "held"
                else None
            ),
        )

    async def move(self, rows: Sequence[tuple[str, str]], *, queue: str) -> int:
        """Let these (namespace, key) rows go to another queue; keys and retry ids stay. Also unblocks them."""

        def moved(entry: RetryEntry, try_at: float) -> tuple[RetryEntry, float]:
            entry = replace(entry, queue=queue, through_exchange=False)
            if entry.state == "blocked":
                return replace(entry, state="waiting", state_reason=""), entry.due_at
            return entry, try_at

        return self._change(rows, moved)

    async def bury(
        self, rows: Sequence[tuple[str, int]], letters: Sequence[DeadLetter], *, grant: Grant | None = None
    ) -> list[bool]:
        """Turn each (key, failure) row, of its letter's namespace, into that dead letter, in one transaction."""
        data = self._open()
        data.check_grant(grant)
        pairs = [
            (key, failure, as_kept(letter)) for (key, failure), letter in zip(rows, letters, strict=True)
        ]
        there = []
        for key, failure, letter in pairs:
            found = data.with_failure(letter.namespace, key, failure) is not None
            if found:
                data.drop(letter.namespace, key)
                data.letters.setdefault((letter.namespace, letter.id), letter)
            there.append(found)
        return there

    async def entries(
        self, wanted: Filter, *, limit: int, after: str | None = None
    ) -> tuple[list[RetryEntry], str | None]:
        """A page of what waits, the next due first, without bodies; and a cursor for the next page, or None."""
        data, now = self._open(), self.clock.now()
        start = (-NEVER, "", "") if after is None else cursors.read(after)
        found = (
            place
            for place in data.in_order(wanted.namespace)
            if place > start and entry_matches(data.retries[place[1:]][0], wanted)
        )
        page = list(islice(found, limit + 1))
        more = cursors.written(*page[limit - 1]) if len(page) > limit else None
        return [replace(_as_read(data.retries[place[1:]][0], now), body=None) for place in page[:limit]], more

    async def count_entries(self, wanted: Filter, *, overdue: bool = False) -> int:
        """How many wait; *overdue*: only those whose time has come."""
        data, now = self._open(), self.clock.now()
        return sum(
            wanted.namespace in (None, entry.namespace)
            and (not overdue or try_at <= now)
            and entry_matches(entry, wanted)
            for entry, try_at in data.retries.values()
        )

    async def entry(self, namespace: str | None, id: str) -> RetryEntry | None:
        """One entry, with its body, by retry id or message id, or a unique ending of six characters or more."""
        found = [
            (entry, entry.retry_id, entry.key)
            for entry, _ in self._open().retries.values()
            if namespace in (None, entry.namespace)
            and names(id, own=entry.retry_id, message_id=entry.message_id)
        ]
        meant = the_one("retries", id, found)
        return None if meant is None else _as_read(meant, self.clock.now())

    def _change(
        self,
        rows: Sequence[tuple[str, str]],
        changed: Callable[[RetryEntry, float], tuple[RetryEntry, float] | None],
    ) -> int:
        data = self._open()
        count = 0
        for row in rows:
            old = data.retries.get(row)
            new = None if old is None else changed(*old)
            if new is not None:
                data.place(*new)
                count += 1
        return count


def _as_kept(entry: RetryEntry, now: float) -> RetryEntry:
    body = entry_body(entry)
    return replace(
        entry,
        due_at=entry.due_at if entry.wait is None else now + entry.wait,
        wait=None,
        due_in=0.0,
        size=len(body),
        worker=shown(entry.worker),
        type=shown(entry.type),
        reason=shown(entry.reason),
        error=shown(entry.error),
        traceback=shown(entry.traceback),
        host=shown(entry.host),
        state_reason=shown(entry.state_reason),
    )


def _as_read(entry: RetryEntry, now: float) -> RetryEntry:
    return replace(entry, due_in=entry.due_at - now)
