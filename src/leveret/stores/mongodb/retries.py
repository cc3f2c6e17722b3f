"""What waits, in MongoDB. None of the frequent calls looks at more than it names, where the server has indexes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leveret.core.errors import StoreUnavailable
from leveret.core.retry_entry import Due
from leveret.ports import Placed
from leveret.stores import cursors
from leveret.stores.endings import the_one
from leveret.stores.intake import due_time, shown
from leveret.stores.mongodb import bodies
from leveret.stores.mongodb.driver import pymongo
from leveret.stores.mongodb.fields import (
    NEVER,
    date,
    entry_of,
    exact,
    letter_document,
    moment,
    place,
    text_of,
    time_of,
)
from leveret.stores.mongodb.filters import RETRIES, named, query
from leveret.stores.mongodb.lease import check_grant
from leveret.stores.mongodb.letters import keep
from leveret.stores.mongodb.put import SEEN, TRIES, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.dead_letter import DeadLetter
    from leveret.core.retry_entry import Filter, RetryEntry
    from leveret.ports import Grant
    from leveret.stores.mongodb.driver import Collection, Document, Session
    from leveret.stores.mongodb.server import MongoServer

#: Documents that are read, and changed, at once.
AT_ONCE = 1000
#: Documents that are unblocked in one call, and one transaction: either has a time limit.
UNBLOCKED_AT_ONCE = 5000


class MongoRetries:
    """The retry part of the MongoDB store."""

    server: MongoServer

    async def put(self, entries: Sequence[RetryEntry]) -> list[Placed]:
        """Write entries; a key that waits already is replaced by a higher failure number only."""
        if not entries:
            return []

        async def ask(session: Session | None) -> list[Placed]:
            now = await self.server.now()
            return await Put(self.server, entries, now, session).done()

        return await self.server.write(ask)

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
        if limit <= 0:
            return []

        async def ask() -> list[tuple[Due, tuple[float, str]]]:
            now = await self.server.now()
            until = min(now + min(within, NEVER / 1000) * 1000, NEVER - 1)
            asked: Document = {"namespace": exact(namespace), "try_at": {"$lte": date(int(until))}}
            longest = min(now / 1000, since) if since is not None else None
            if longest is not None and (after is None or now / 1000 - longest > after[0]):
                asked["try_at"]["$gte"] = date(int(now - longest * 1000))
            elif after is not None:
                time = round(after[0] * 1000)
                asked["$or"] = [
                    {"try_at": {"$gt": date(time)}},
                    {"try_at": date(time), "key": {"$gt": exact(after[1])}},
                ]
            # Without the id the index alone answers.
            fields = {"_id": 0, "key": 1, "failure": 1, "try_at": 1, "queue": 1, "size": 1}
            found = self._rows.find(asked, fields).sort([("try_at", 1), ("key", 1)]).limit(limit)
            return [_due(row, now) async for row in found]

        return await self.server.read(ask)

    async def next_due(self, namespace: str) -> float | None:
        """Seconds until the next row may be tried, negative where one is overdue, None where nothing waits."""

        async def ask() -> float | None:
            row = await self._rows.find_one(
                {"namespace": exact(namespace), "try_at": {"$lt": date(NEVER)}},
                {"_id": 0, "try_at": 1},
                sort=[("try_at", 1)],
            )
            return None if row is None else (time_of(row["try_at"]) - await self.server.now()) / 1000

        return await self.server.read(ask)

    async def take(
        self,
        namespace: str,
        rows: Sequence[tuple[str, int]],
        *,
        grant: Grant | None = None,
        held: bool = False,
    ) -> list[RetryEntry]:
        """The whole entries of these (key, failure) rows that still carry that failure; held ones only with *held*.

        With a grant, its term is written on them: whoever lost the lease meanwhile cannot remove them any more. A row
        whose body has lost a piece is left out and held, with a reason that says so, lest it stop the others; with
        *held* it comes without its body, and with that reason.
        """
        wanted = {place(namespace, key): failure for key, failure in rows}

        async def ask(session: Session | None) -> list[RetryEntry]:
            found = [
                doc
                for doc in await self.server.found(self._rows, list(wanted), None, session)
                if doc["failure"] == wanted[doc["_id"]] and (held or doc["state"] != "held")
            ]
            # Where one writes at a time, nobody takes the lease over while somebody else acts on it.
            if grant is not None and self.server.atomic:
                found = await self._under_term(found, grant, session)
            docs = {doc["_id"]: doc for doc in found}
            now = await self.server.now()
            whole = [await self._read(docs[id], now, session) for id in wanted if id in docs]
            return [entry for entry in whole if entry is not None]

        if grant is None:
            taken = await self.server.read(lambda: ask(None))
        else:
            taken = await self.server.write(ask, grant=grant)
        lost = [entry for entry in taken if entry.body is None]
        if lost and not held:
            await self._hold_lost(lost, grant)
            taken = [entry for entry in taken if entry.body is not None]
        return taken

    async def remove(
        self, namespace: str, rows: Sequence[tuple[str, int]], *, grant: Grant | None = None
    ) -> int:
        """Delete these (key, failure) rows, those that still carry that failure. Returns how many."""
        wanted = {place(namespace, key): failure for key, failure in rows}

        async def ask(session: Session | None) -> int:
            found = await self.server.found(self._rows, list(wanted), [*SEEN, *bodies.FIELDS[1:]], session)
            return await self._delete(
                [row for row in found if row["failure"] == wanted[row["_id"]]], grant, session
            )

        return await self.server.write(ask, grant=grant) if rows or grant else 0

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
        wanted = {place(namespace, key): failure for key, failure in rows}
        state, reason = ("waiting", "") if blocked is None else ("blocked", shown(blocked))

        async def ask(session: Session | None) -> None:
            change = {
                "try_at": date(await self.server.now() + moment(seconds)),
                "state": state,
                "state_reason": reason,
            }
            await self._change(
                list(wanted),
                lambda row: (
                    change if row["failure"] == wanted[row["_id"]] and row["state"] != "held" else None
                ),
                session,
                grant=grant,
            )

        await self.server.write(ask, grant=grant)

    async def unblock(self, namespace: str, queue: str, *, grant: Grant | None = None) -> int:
        """Let every blocked row of that queue be tried at once. Returns how many."""
        asked = {"namespace": exact(namespace), "queue": exact(queue), "state": "blocked"}

        async def ask(session: Session | None) -> tuple[int, int]:
            found = self._rows.find(asked, ["_id"], session=session).limit(UNBLOCKED_AT_ONCE)
            ids = [row["_id"] async for row in found]
            return len(ids), await self._change(
                ids, lambda row: _waiting(row) if row["state"] == "blocked" else None, session, grant=grant
            )

        total = 0
        while True:
            found, released = await self.server.write(ask, grant=grant)
            total += released
            if found < UNBLOCKED_AT_ONCE:
                return total

    async def reschedule(
        self, rows: Sequence[tuple[str, str]], *, due_at: float | None = None, wait: float | None = None
    ) -> int:
        """Set when these (namespace, key) rows are due: at a time, or so many seconds from now. Also unblocks them."""
        due_time(0.0, due_at=due_at, wait=wait)

        async def ask(session: Session | None) -> int:
            now = await self.server.now() / 1000
            time = date(moment(due_time(now, due_at=due_at, wait=wait)))
            return await self._change(
                [place(*row) for row in rows],
                lambda row: {"due_at": time} if row["state"] == "held" else _waiting({"due_at": time}),
                session,
            )

        return await self.server.write(ask)

    async def hold(self, rows: Sequence[tuple[str, str]], *, held: bool, reason: str = "") -> int:
        """Hold these (namespace, key) rows, or release them. Held rows are never due. Returns how many changed."""

        def changed(row: Document) -> Document | None:
            if (row["state"] == "held") == held:
                return None
            if held:
                return _held(reason)
            return _waiting(row)

        return await self.server.write(
            lambda session: self._change([place(*row) for row in rows], changed, session)
        )

    async def move(self, rows: Sequence[tuple[str, str]], *, queue: str) -> int:
        """Let these (namespace, key) rows go to another queue; keys and retry ids stay. Also unblocks them."""

        def changed(row: Document) -> Document:
            moved = {"queue": exact(queue), "through_exchange": False}
            return moved | _waiting(row) if row["state"] == "blocked" else moved

        return await self.server.write(
            lambda session: self._change([place(*row) for row in rows], changed, session)
        )

    async def bury(
        self, rows: Sequence[tuple[str, int]], letters: Sequence[DeadLetter], *, grant: Grant | None = None
    ) -> list[bool]:
        """Turn each (key, failure) row, of its letter's namespace, into that dead letter, in one transaction.

        Without transactions the letter is written first: a kill in between leaves both, and a repetition ends it.
        """
        pairs = [
            (place(letter.namespace, key), failure, letter_document(letter), letter.body or b"")
            for (key, failure), letter in zip(rows, letters, strict=True)
        ]

        async def ask(session: Session | None) -> list[bool]:
            ids = list(dict.fromkeys(id for id, *_ in pairs))
            found = await self.server.found(self._rows, ids, [*SEEN, *bodies.FIELDS[1:]], session)
            waiting = {(row["_id"], row["failure"]): row for row in found}
            buried = []
            there = []
            for id, failure, doc, body in pairs:
                row = waiting.pop((id, failure), None)
                there.append(row is not None)
                if row is not None:
                    buried.append((row, doc, body))
            await keep(self.server, [(doc, body) for _, doc, body in buried], session)
            await self._delete([row for row, *_ in buried], grant, session)
            return there

        return await self.server.write(ask, grant=grant)

    async def entries(
        self, wanted: Filter, *, limit: int, after: str | None = None
    ) -> tuple[list[RetryEntry], str | None]:
        """A page of what waits, the next due first, without bodies; and a cursor for the next page, or None."""
        start = None if after is None else cursors.read(after)

        async def ask() -> tuple[list[RetryEntry], str | None]:
            asked = await query(self.server, wanted, RETRIES)
            if start is not None:
                time, namespace, key = date(round(start[0] * 1000)), exact(start[1]), exact(start[2])
                asked["$or"] = [
                    {"try_at": {"$gt": time}},
                    {"try_at": time, "namespace": {"$gt": namespace}},
                    {"try_at": time, "namespace": namespace, "key": {"$gt": key}},
                ]
            order = [("try_at", 1), ("namespace", 1), ("key", 1)]
            rows = await self._rows.find(asked, {"body": 0}).sort(order).limit(limit + 1).to_list()
            now = await self.server.now()
            page = [entry_of(row, now) for row in rows[:limit]]
            more = (
                cursors.written(time_of(rows[limit - 1]["try_at"]) / 1000, page[-1].namespace, page[-1].key)
                if len(rows) > limit
                else None
            )
            return page, more

        return await self.server.read(ask)

    async def count_entries(self, wanted: Filter, *, overdue: bool = False) -> int:
        """How many wait; *overdue*: only those whose time has come."""

        async def ask() -> int:
            asked = await query(self.server, wanted, RETRIES)
            if overdue:
                asked["try_at"] = {"$lte": date(await self.server.now())}
            return await self._rows.count_documents(asked)

        return await self.server.read(ask)

    async def entry(self, namespace: str | None, id: str) -> RetryEntry | None:
        """One entry, with its body, by retry id or message id, or a unique ending of six characters or more."""

        async def ask() -> RetryEntry | None:
            found = await named(self.server, namespace, [id], RETRIES)
            place = the_one(
                "retries", id, [(row["_id"], text_of(row["retry_id"]), text_of(row["key"])) for row in found]
            )
            if place is None or (doc := await self._rows.find_one({"_id": place})) is None:
                return None
            return entry_of(doc, await self.server.now(), await bodies.body_of(self.server, doc))

        return await self.server.read(ask)

    # ── Bodies that are not whole ─────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, doc: Document, now: int, session: Session | None) -> RetryEntry | None:
        """The entry of a row; without a body, and with the reason, where that has lost a piece. None: it has gone."""
        try:
            return entry_of(doc, now, await bodies.body_of(self.server, doc, session))
        except bodies.BodyLost as error:
            # Whoever removes or replaces a row takes its pieces away: then nothing is lost.
            again = await self._rows.find_one({"_id": doc["_id"]}, ["blob"], session=session)
            if again is None or again["blob"] != doc["blob"]:
                return None
            return replace(entry_of(doc, now), state_reason=f"{error}, then release it")

    async def _hold_lost(self, lost: Sequence[RetryEntry], grant: Grant | None) -> None:
        entries = {place(entry.namespace, entry.key): entry for entry in lost}

        def held(row: Document) -> Document | None:
            entry = entries[row["_id"]]
            if row["failure"] != entry.failure or row["state"] == "held":
                return None
            return _held(entry.state_reason)

        await self.server.write(
            lambda session: self._change(list(entries), held, session, grant=grant), grant=grant
        )

    # ── Changing many ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _rows(self) -> Collection:
        return self.server.collection("retry")

    async def _change(
        self,
        ids: Sequence[str],
        changed: Callable[[Document], Document | None],
        session: Session | None,
        *,
        grant: Grant | None = None,
    ) -> int:
        """Set on each of these rows what *changed* says, None for nothing. Returns how many were changed."""
        count = 0
        for start in range(0, len(ids), AT_ONCE):
            left = list(ids[start : start + AT_ONCE])
            for again in range(TRIES):
                rows = await self.server.found(self._rows, left, [*SEEN, "queue", "state_reason"], session)
                await self._check_terms(rows, grant, session)
                writes = {}
                for row in rows:
                    new = changed(row)
                    # Where this is repeated, some were changed already, and are not counted twice.
                    if new is not None and not (again and all(row.get(name) == new[name] for name in new)):
                        writes[row["_id"]] = pymongo.UpdateOne(self._still(row), {"$set": new})
                if not writes:
                    break
                written = await self._rows.bulk_write(list(writes.values()), ordered=False, session=session)
                count += written.matched_count
                if written.matched_count == len(writes):
                    break
                left = list(writes)
            else:
                raise self._contended()
        return count

    async def _under_term(
        self, docs: list[Document], grant: Grant, session: Session | None
    ) -> list[Document]:
        """Write the grant's term on these rows; those on which that succeeded."""
        await self._check_terms(docs, grant, session)
        fresh = [doc for doc in docs if doc["term"] != grant.term]
        if not fresh:
            return docs
        stamp = {"$set": {"term": grant.term}}
        writes = [pymongo.UpdateOne(self._still(doc), stamp) for doc in fresh]
        written = await self._rows.bulk_write(writes, ordered=False, session=session)
        if written.matched_count == len(writes):
            return docs
        rows = await self.server.found(self._rows, [doc["_id"] for doc in docs], SEEN, session)
        seen = {(row["_id"], row["failure"]) for row in rows if row["term"] == grant.term}
        return [doc for doc in docs if (doc["_id"], doc["failure"]) in seen]

    async def _check_terms(
        self, rows: Sequence[Document], grant: Grant | None, session: Session | None
    ) -> None:
        """A later holder's mark on a row means that the lease is lost; or, if it is not, that the lease began anew."""
        if grant is not None and any(row["term"] > grant.term for row in rows):
            await check_grant(self.server.collection("lease"), grant, session)

    async def _delete(self, rows: Sequence[Document], grant: Grant | None, session: Session | None) -> int:
        if not rows:
            return 0
        await self._check_terms(rows, grant, session)
        deleted = await self.server.delete(self._rows, list(rows), SEEN, session)
        large = [row for row in rows if row["blob"] is not None]
        if large and deleted != len(rows):
            left = await self.server.found(self._rows, [row["_id"] for row in large], ["blob"], session)
            there = {row["blob"] for row in left}
            large = [row for row in large if row["blob"] not in there]
        await bodies.forget(self.server, large, session)
        return deleted

    def _still(self, row: Document) -> Document:
        return self.server.still(row["_id"], {name: row[name] for name in SEEN})

    def _contended(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"others keep changing the same messages in {self.server.display}: tried {TRIES} times"
        )


def _due(row: Document, now: int) -> tuple[Due, tuple[float, str]]:
    time, key = time_of(row["try_at"]), text_of(row["key"])
    due = Due(key, row["failure"], (time - now) / 1000, text_of(row["queue"]), row["size"])
    return due, (time / 1000, key)


def _held(reason: str) -> dict[str, Any]:
    """What keeps a row from being due."""
    return {"state": "held", "state_reason": shown(reason), "try_at": date(NEVER)}


def _waiting(row: Document) -> dict[str, Any]:
    """What makes a row wait for its due time."""
    return {"state": "waiting", "state_reason": "", "try_at": row["due_at"], "due_at": row["due_at"]}
