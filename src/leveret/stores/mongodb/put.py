"""Putting retries into MongoDB: inserted where the key is new, replaced where a lower failure waits under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.errors import StoreUnavailable
from leveret.ports import Placed
from leveret.stores.intake import entry_body
from leveret.stores.mongodb import bodies
from leveret.stores.mongodb.driver import BulkWriteError, pymongo
from leveret.stores.mongodb.fields import NEVER, date, entry_document, time_of
from leveret.stores.mongodb.server import only_duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.retry_entry import RetryEntry
    from leveret.stores.mongodb.driver import Document, Session
    from leveret.stores.mongodb.server import MongoServer

#: What a change may depend on: a document is changed only where these are as they were read.
SEEN = ["failure", "state", "due_at", "try_at", "term"]
#: How often a change begins anew because others changed the same documents.
TRIES = 10


class Put:
    """One call of `put`."""

    def __init__(
        self, server: MongoServer, entries: Sequence[RetryEntry], now: int, session: Session | None
    ) -> None:
        self._server = server
        self._rows = server.collection("retry")
        self._session = session
        self._now = now
        self._bodies = [entry_body(entry) for entry in entries]
        # Made whole first: one that is refused keeps the others out too.
        self._docs = [entry_document(entry, now) for entry in entries]
        self._by_id: dict[str, list[int]] = {}
        for index, doc in enumerate(self._docs):
            self._by_id.setdefault(doc["_id"], []).append(index)
        self._placed: dict[int, Placed] = {}
        #: The fields of the bodies that were written so far, by entry.
        self._kept: dict[int, Document] = {}

    async def done(self) -> list[Placed]:
        """Write what is to be written, again where others were quicker."""
        left, waiting = list(self._by_id), {}
        if self._session is not None:
            # A key that is there already would end the transaction; elsewhere, to insert is to ask.
            waiting = await self._waiting(left)
        for _ in range(TRIES):
            left = await self._written(left, waiting)
            if not left:
                break
            waiting = await self._waiting(left)
        await self._forget_unused()
        if left:
            raise StoreUnavailable(
                f"others keep writing the same messages in {self._server.display}: tried {TRIES} times"
            )
        return [self._placed[index] for index in range(len(self._docs))]

    async def _waiting(self, ids: list[str]) -> dict[str, Document]:
        fields = [*SEEN, "state_reason", *bodies.FIELDS[1:]]
        return {row["_id"]: row for row in await self._server.found(self._rows, ids, fields, self._session)}

    async def _written(self, ids: list[str], waiting: dict[str, Document]) -> list[str]:
        """Write these keys over what waits; returns those that somebody else changed meanwhile."""
        fresh: dict[str, Document] = {}
        later: list[tuple[Document, Document]] = []
        for id in ids:
            old = current = waiting.get(id)
            for index in self._by_id[id]:
                doc = self._docs[index]
                if current is not None and doc["failure"] <= current["failure"]:
                    self._placed[index] = Placed(False, (_tried(current) - self._now) / 1000)
                    continue
                self._placed[index] = Placed(True, (time_of(doc["due_at"]) - self._now) / 1000)
                current = self._in_place_of(current, doc)
                winner = index
            if current is None or current is old:
                continue
            whole = current | await self._body(winner)
            if old is None:
                fresh[id] = whole
            else:
                later.append((old, whole))
        return [*await self._inserted(fresh), *await self._replaced(later)]

    def _in_place_of(self, old: Document | None, doc: Document) -> Document:
        if old is None:
            return doc
        doc = doc | {"term": old["term"]}
        if old["state"] == "held":
            # A person holds it, and a person releases it.
            doc |= {"state": "held", "state_reason": old["state_reason"], "try_at": date(NEVER)}
        return doc

    async def _inserted(self, docs: dict[str, Document]) -> list[str]:
        if not docs:
            return []
        try:
            await self._rows.insert_many(docs.values(), ordered=False, session=self._session)
        except BulkWriteError as error:
            if self._session is not None or not only_duplicates(error):
                raise
            return [each["op"]["_id"] for each in error.details["writeErrors"]]
        return []

    async def _replaced(self, pairs: list[tuple[Document, Document]]) -> list[str]:
        if not pairs:
            return []
        writes = [
            pymongo.ReplaceOne(self._server.still(old["_id"], {name: old[name] for name in SEEN}), doc)
            for old, doc in pairs
        ]
        written = await self._rows.bulk_write(writes, ordered=False, session=self._session)
        missed: list[str] = []
        if written.matched_count != len(pairs):
            now = await self._waiting([old["_id"] for old, _ in pairs])
            missed = [
                doc["_id"]
                for _, doc in pairs
                if doc["_id"] not in now or now[doc["_id"]]["failure"] != doc["failure"]
            ]
        await bodies.forget(
            self._server,
            [old for old, _ in pairs if old["_id"] not in missed and old["blob"] is not None],
            self._session,
        )
        return missed

    async def _body(self, index: int) -> Document:
        if index not in self._kept:
            self._kept[index] = await bodies.kept(self._server, self._bodies[index], self._session)
        return self._kept[index]

    async def _forget_unused(self) -> None:
        """Delete the pieces that were written before it showed that their row is there already, or another's is."""
        large = {index: body for index, body in self._kept.items() if body["blob"] is not None}
        if not large:
            return
        ids = list({self._docs[index]["_id"] for index in large})
        used = {row["blob"] for row in await self._server.found(self._rows, ids, ["blob"], self._session)}
        unused = [body for body in large.values() if body["blob"] not in used]
        await bodies.forget(self._server, unused, self._session)


def _tried(row: Document) -> int:
    """When a row is tried; a held one as if it were released now."""
    time = time_of(row["try_at"])
    return time_of(row["due_at"]) if time == NEVER else time
