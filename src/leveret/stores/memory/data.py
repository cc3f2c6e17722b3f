"""What a memory store holds, apart from the store, so that it outlives a simulated restart."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.stores.endings import names
from leveret.stores.intake import shown
from leveret.stores.leases import check_held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.core.dead_letter import DeadLetter
    from leveret.core.retry_entry import Filter, RetryEntry
    from leveret.ports import Act, Grant

#: When a held row may be tried: never. It sorts behind everything else.
NEVER = float("inf")


@dataclass(slots=True)
class LeaseRow:
    """A lease: who holds it (empty: nobody), under which term, and when it ends by the monotonic clock."""

    holder: str
    term: int
    expires: float


@dataclass(slots=True, kw_only=True)
class MemoryData:
    """The content of memory stores. Hand the same one to a new `MemoryStore` to simulate a restart."""

    #: By (namespace, key): the entry, and when it may be tried.
    retries: dict[tuple[str, str], tuple[RetryEntry, float]] = field(default_factory=dict)
    #: By namespace: (time to try, key), sorted.
    order: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    #: By (namespace, id).
    letters: dict[tuple[str, str], DeadLetter] = field(default_factory=dict)
    #: The replay that has claimed a letter, by (namespace, id).
    claims: dict[tuple[str, str], str] = field(default_factory=dict)
    leases: dict[str, LeaseRow] = field(default_factory=dict)
    acts: dict[str, Act] = field(default_factory=dict)
    #: When an act was finished, by its id.
    finished: dict[str, float] = field(default_factory=dict)
    #: By (namespace, queue, message).
    starts: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def place(self, entry: RetryEntry, try_at: float) -> None:
        """Write a retry, in place of the one with its key."""
        self.drop(entry.namespace, entry.key)
        self.retries[entry.namespace, entry.key] = (entry, try_at)
        insort(self.order.setdefault(entry.namespace, []), (try_at, entry.key))

    def drop(self, namespace: str, key: str) -> None:
        """Delete a retry, if it is there."""
        found = self.retries.pop((namespace, key), None)
        if found is not None:
            order = self.order[namespace]
            del order[bisect_left(order, (found[1], key))]

    def with_failure(self, namespace: str, key: str, failure: int) -> RetryEntry | None:
        """The retry of that key, if it still carries that failure."""
        found = self.retries.get((namespace, key))
        return found[0] if found is not None and found[0].failure == failure else None

    def in_order(self, namespace: str | None) -> Iterator[tuple[float, str, str]]:
        """(time to try, namespace, key) of all that waits in a namespace, or in all of them, the next due first."""
        if namespace is not None:
            return ((time, namespace, key) for time, key in self.order.get(namespace, ()))
        return iter(sorted((time, name, key) for name, order in self.order.items() for time, key in order))

    def check_grant(self, grant: Grant | None) -> None:
        """Make sure that the grant holds.

        Raises:
            LeaseLost: somebody else holds the lease by now, or it was released.
        """
        if grant is None:
            return
        row = self.leases.get(grant.lease)
        check_held(grant, None if row is None else (row.holder, row.term))


def entry_matches(entry: RetryEntry, wanted: Filter) -> bool:
    """Whether a retry is meant, its namespace aside."""
    return _matches(wanted, entry, own=entry.retry_id, attempts=entry.attempt, time=entry.failed_at)


def letter_matches(letter: DeadLetter, wanted: Filter) -> bool:
    """Whether a dead letter is meant, its namespace aside."""
    if wanted.rpc is not None and letter.rpc != wanted.rpc:
        return False
    return _matches(wanted, letter, own=letter.id, attempts=letter.attempts, time=letter.died_at)


def _matches(wanted: Filter, row: RetryEntry | DeadLetter, *, own: str, attempts: int, time: float) -> bool:
    return (
        (not wanted.ids or any(names(id, own=own, message_id=row.message_id) for id in wanted.ids))
        and (wanted.worker is None or row.worker == shown(wanted.worker))
        and (wanted.reason is None or shown(wanted.reason).casefold() in row.reason.casefold())
        and (wanted.type is None or row.type == shown(wanted.type))
        and (wanted.since is None or time >= wanted.since)
        and (wanted.until is None or time <= wanted.until)
        and (wanted.attempts is None or attempts == wanted.attempts)
        and (wanted.text is None or wanted.text.encode("utf-8", "surrogatepass") in (row.body or b""))
    )
