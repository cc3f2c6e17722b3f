"""Retries: what waits, and what people may do about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from leveret.core.errors import NotFound
from leveret.core.page import Page
from leveret.core.retry_entry import Filter, RetryEntry
from leveret.core.seconds import Seconds, due_moment, moment, seconds
from leveret.ports import Store, World
from leveret.retry.asking import ActReport, ask

Ids = str | Collection[str]


class Retries:
    """What waits for its next try. Looks read the store; acts are obeyed by the running holder of the lease.

    An act takes an id, ids, or filter words, never nothing.

    Example:
        >>> async def push(app):
        ...     for entry in await app.retries.list(worker="charge"):
        ...         print(entry.due_in, entry.reason)
        ...     await app.retries.now(worker="charge", reason="503")
    """

    def __init__(self, store: Store, world: World, namespace: str, *, nudge: Callable[[], object]) -> None:
        self._store = store
        self._world = world
        self._namespace = namespace
        self._nudge = nudge

    async def list(self, *, limit: int = 50, after: str | None = None, **words: Any) -> Page[RetryEntry]:
        """A page of what waits, the next due first, without bodies.

        Args:
            limit: so many at most.
            after: `.after` of the page before.
            words: worker, reason, type, text, since, until (aware datetimes or epoch seconds), attempts.
        """
        entries, following = await self._store.entries(
            filter_by(self._namespace, (), words), limit=limit, after=after
        )
        return Page(tuple(entries), following)

    async def count(self, **words: Any) -> int:
        """How many wait; the same words as `list`."""
        return await self._store.count_entries(filter_by(self._namespace, (), words))

    async def get(self, id: str) -> RetryEntry:
        """One, with its body, by retry id or message id, or any ending of six characters or more.

        Raises:
            NotFound: none waits under that id, or several do.
        """
        found = await self._store.entry(self._namespace, id)
        if found is None:
            raise NotFound(f"no retry of {self._namespace} waits under {id!r}")
        return found

    async def now(self, ids: Ids = (), /, **words: Any) -> ActReport:
        """Let these be published at once."""
        return await self._ask("now", ids, words)

    async def cancel(self, ids: Ids = (), /, *, why: str = "", **words: Any) -> ActReport:
        """Let these end in the dead letters, with the reason `cancelled`; the report says which were too late."""
        return await self._ask("cancel", ids, words, {"why": why} if why else {})

    async def reschedule(
        self, ids: Ids = (), /, *, at: datetime | None = None, after: Seconds | None = None, **words: Any
    ) -> ActReport:
        """Let these be due at a time (aware), or so many seconds from now.

        Raises:
            ValueError: neither or both given, *at* without a time zone, or beyond the calendar.
        """
        if (at is None) == (after is None):
            raise ValueError("reschedule needs at= or after=, one of them")
        more = {"due_at": due_moment(at, "at")} if at is not None else {"wait": seconds(after, "after")}
        return await self._ask("reschedule", ids, words, more)

    async def hold(self, ids: Ids = (), /, *, why: str = "by hand", **words: Any) -> ActReport:
        """Keep these from being due until they are released."""
        return await self._ask("hold", ids, words, {"why": why})

    async def release(self, ids: Ids = (), /, **words: Any) -> ActReport:
        """Let held ones go again, each at its time."""
        return await self._ask("release", ids, words)

    async def move(self, ids: Ids = (), /, *, to: str, **words: Any) -> ActReport:
        """Let these go to another queue, by its name."""
        return await self._ask("move", ids, words, {"queue": to})

    async def _ask(
        self, verb: str, ids: Ids, words: Mapping[str, Any], more: Mapping[str, Any] = {}
    ) -> ActReport:
        return await ask(
            self._store,
            self._world,
            namespace=self._namespace,
            verb=f"retries.{verb}",
            wanted=filter_by(self._namespace, ids, words),
            more=more,
            nudge=self._nudge,
        )


def filter_by(namespace: str | None, ids: Ids, words: Mapping[str, Any]) -> Filter:
    """A filter from the words of a listing or an act.

    Raises:
        TypeError: an unknown word.
        ValueError: a time without a time zone.
    """
    unknown = words.keys() - {"worker", "reason", "type", "text", "since", "until", "attempts"}
    if unknown:
        raise TypeError(
            f"{', '.join(sorted(unknown))}: expected worker, reason, type, text, since, until or attempts"
        )
    known = dict(words)
    for name in ("since", "until"):
        if known.get(name) is not None:
            known[name] = moment(known[name], name)
    return Filter(namespace=namespace, ids=(ids,) if isinstance(ids, str) else tuple(ids), **known)
