"""Dead letters in MongoDB. Nothing here deletes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from leveret.core.dead_letter import LetterGroup
from leveret.core.errors import NotFound, StoreUnavailable
from leveret.stores import cursors
from leveret.stores.endings import the_one
from leveret.stores.intake import with_new_body
from leveret.stores.mongodb import bodies
from leveret.stores.mongodb.driver import BulkWriteError, pymongo
from leveret.stores.mongodb.fields import exact, letter_document, letter_of, place, replay_document, text_of
from leveret.stores.mongodb.filters import LETTERS, named, query
from leveret.stores.mongodb.server import only_duplicates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.dead_letter import DeadLetter, LetterState, Replay
    from leveret.core.retry_entry import Filter
    from leveret.ports import Grant
    from leveret.stores.mongodb.driver import Collection, Document, Session
    from leveret.stores.mongodb.server import MongoServer

#: How often a change begins anew because others changed the same letters.
_TRIES = 10
_OLDEST_FIRST = [("died_at", 1), ("namespace", 1), ("id", 1)]


class MongoLetters:
    """The dead-letter part of the MongoDB store."""

    server: MongoServer

    async def keep(self, letters: Sequence[DeadLetter]) -> int:
        """Store letters; an id that is there already is left as it is. Returns how many were new."""
        docs = [(letter_document(letter), letter.body or b"") for letter in letters]
        return await self.server.write(lambda session: keep(self.server, docs, session))

    async def letters(
        self,
        wanted: Filter,
        *,
        limit: int,
        after: str | None = None,
        states: Sequence[LetterState] = ("dead",),
    ) -> tuple[list[DeadLetter], str | None]:
        """A page of letters, the newest first, without bodies; and a cursor for the next page, or None."""
        start = None if after is None else cursors.read(after)

        async def ask() -> tuple[list[DeadLetter], str | None]:
            asked = await query(self.server, wanted, LETTERS, states=states)
            if start is not None:
                time, namespace, id = start[0], exact(start[1]), exact(start[2])
                before: list[Document] = [
                    {"died_at": {"$lt": time}},
                    {"died_at": time, "namespace": {"$lt": namespace}},
                    {"died_at": time, "namespace": namespace, "id": {"$lt": id}},
                ]
                asked["$or"] = before
            order = [(name, -1) for name, _ in _OLDEST_FIRST]
            rows = await self._letters.find(asked, {"body": 0}).sort(order).limit(limit + 1).to_list()
            page = [letter_of(row) for row in rows[:limit]]
            last = page[-1] if len(rows) > limit else None
            return page, None if last is None else cursors.written(last.died_at, last.namespace, last.id)

        return await self.server.read(ask)

    async def count_letters(self, wanted: Filter, *, states: Sequence[LetterState] = ("dead",)) -> int:
        """How many there are."""

        async def ask() -> int:
            return await self._letters.count_documents(
                await query(self.server, wanted, LETTERS, states=states)
            )

        return await self.server.read(ask)

    async def groups(self, wanted: Filter) -> list[LetterGroup]:
        """Dead letters by fingerprint, the largest group first."""

        async def ask() -> list[LetterGroup]:
            asked = await query(self.server, wanted, LETTERS, states=["dead"])
            # Gathered here: not every server that speaks this protocol can take other fields from the newest.
            fields = {"_id": 0, "fingerprint": 1, "worker": 1, "error": 1, "reason": 1, "died_at": 1}
            groups: dict[str, tuple[int, float, Document]] = {}
            async for row in self._letters.find(asked, fields):
                count, first, newest = groups.get(row["fingerprint"], (0, row["died_at"], row))
                newest = max(newest, row, key=lambda each: each["died_at"])
                groups[row["fingerprint"]] = (count + 1, min(first, row["died_at"]), newest)
            found = [
                LetterGroup(
                    fingerprint=fingerprint,
                    worker=newest["worker"],
                    error=newest["error"],
                    reason=newest["reason"],
                    count=count,
                    first_died_at=first,
                    last_died_at=newest["died_at"],
                )
                for fingerprint, (count, first, newest) in groups.items()
            ]
            return sorted(found, key=lambda group: (-group.count, -group.last_died_at, group.fingerprint))

        return await self.server.read(ask)

    async def letter(self, namespace: str | None, id: str) -> DeadLetter | None:
        """One letter in any state, with its body, by letter id or message id, or a unique ending of six or more."""

        async def ask() -> DeadLetter | None:
            found = await named(self.server, namespace, [id], LETTERS)
            meant = the_one(
                "dead letters", id, [(row["_id"], text_of(row["id"]), row["state"]) for row in found]
            )
            doc = None if meant is None else await self._letters.find_one({"_id": meant})
            return None if doc is None else await self._whole(doc)

        return await self.server.read(ask)

    async def claim(
        self, wanted: Filter, *, replay_id: str, limit: int, grant: Grant | None = None
    ) -> list[DeadLetter]:
        """Take up to *limit* dead letters for a replay, the oldest first, whole. No two claims get the same one.

        Those that this same replay claimed before and did not report come first, `claimed`; the others are `dead`. One
        whose body has lost a piece comes without it.
        """

        async def ask(session: Session | None) -> list[DeadLetter]:
            if limit <= 0:
                return []
            mine = {"replay_id": exact(replay_id), "state": "claimed"}
            rows = self._letters.find(mine, session=session).sort(_OLDEST_FIRST).limit(limit)
            claimed = [await self._as_it_is(row, session) async for row in rows]
            while len(claimed) < limit:
                asked = await query(self.server, wanted, LETTERS, session=session, states=["dead"])
                found = self._letters.find(asked, ["state"], session=session).sort(_OLDEST_FIRST)
                ids = [row["_id"] async for row in found.limit(limit - len(claimed))]
                if not ids:
                    break
                claimed += await self._claimed(ids, replay_id, session)
            return claimed

        return await self.server.write(ask, grant=grant)

    async def replayed(
        self, letters: Sequence[tuple[str, str]], replay: Replay, *, state: LetterState
    ) -> int:
        """Note the outcome on these (namespace, id) letters; set the state of those no other replay has claimed."""
        note = replay_document(replay)
        mark = uuid.uuid4().hex

        async def ask(session: Session | None) -> int:
            left = list(dict.fromkeys(place(*letter) for letter in letters))
            noted = 0
            for _ in range(_TRIES):
                rows = await self.server.found(self._letters, left, ["state", "replay_id", "mark"], session)
                writes = [self._noted(row, note, state, mark) for row in rows if row.get("mark") != mark]
                if not writes:
                    return noted
                matched = (
                    await self._letters.bulk_write(writes, ordered=False, session=session)
                ).matched_count
                noted += matched
                if matched == len(writes):
                    return noted
            raise self._contended()

        return await self.server.write(ask)

    async def set_state(self, wanted: Filter, *, was: LetterState, to: LetterState) -> int:
        """Discard (dead → discarded) or restore (discarded → dead, also replayed → dead). Returns how many."""

        async def ask(session: Session | None) -> int:
            asked = await query(self.server, wanted, LETTERS, session=session, states=[was])
            change = {"$set": {"state": to, "replay_id": ""}}
            return (await self._letters.update_many(asked, change, session=session)).matched_count

        return await self.server.write(ask)

    async def edit(self, namespace: str, id: str, body: bytes) -> DeadLetter:
        """Keep a dead letter under a new body; the old body stays as a discarded letter that names it."""
        name = place(namespace, id)

        async def ask(session: Session | None) -> DeadLetter:
            for _ in range(_TRIES):
                doc = await self._letters.find_one({"_id": name}, session=session)
                if doc is None:
                    raise NotFound(f"there is no dead letter {id!r} in namespace {namespace!r}")
                edited, old = with_new_body(await self._whole(doc, session), body)
                await keep(self.server, [(letter_document(old), old.body or b"")], session)
                new = await bodies.kept(self.server, body, session)
                written = await self._letters.update_one(
                    self.server.still(name, {"state": doc["state"], "edits": doc["edits"]}),
                    {"$set": {**new, "size": len(body)}, "$inc": {"edits": 1}},
                    session=session,
                )
                await bodies.forget(self.server, [doc if written.matched_count else new], session)
                if written.matched_count:
                    return edited
            raise self._contended()

        return await self.server.write(ask)

    @property
    def _letters(self) -> Collection:
        return self.server.collection("letter")

    async def _claimed(self, ids: list[str], replay_id: str, session: Session | None) -> list[DeadLetter]:
        """Those of these dead letters, in their order, that nobody else claimed in the meantime."""
        token = uuid.uuid4().hex
        change = {"$set": {"state": "claimed", "replay_id": exact(replay_id), "claim": token}}
        writes = [pymongo.UpdateOne(self.server.still(id, {"state": "dead"}), change) for id in ids]
        await self._letters.bulk_write(writes, ordered=False, session=session)
        found = await self.server.found(self._letters, ids, None, session)
        mine = {doc["_id"]: doc for doc in found if doc["claim"] == token and doc["state"] == "claimed"}
        return [await self._as_it_is(mine[id] | {"state": "dead"}, session) for id in ids if id in mine]

    def _noted(self, row: Document, note: Document, state: str, mark: str) -> pymongo.UpdateOne:
        change: Document = {"mark": mark}
        if row["state"] != "claimed" or row["replay_id"] == note["replay_id"]:
            change |= {"state": state, "replay_id": ""}
        seen = {"state": row["state"], "replay_id": row["replay_id"]}
        return pymongo.UpdateOne(
            self.server.still(row["_id"], seen), {"$push": {"replays": note}, "$set": change}
        )

    async def _whole(self, doc: Document, session: Session | None = None) -> DeadLetter:
        return letter_of(doc, await bodies.body_of(self.server, doc, session))

    async def _as_it_is(self, doc: Document, session: Session | None) -> DeadLetter:
        """The letter of a row; without a body where that has lost a piece, lest it stop the others."""
        try:
            return await self._whole(doc, session)
        except bodies.BodyLost:
            return letter_of(doc)

    def _contended(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"others keep changing the same dead letters in {self.server.display}: tried {_TRIES} times"
        )


async def keep(
    server: MongoServer, letters: Sequence[tuple[Document, bytes]], session: Session | None
) -> int:
    """Insert letters; those that are there already stay as they are. Returns how many were new."""
    fresh: dict[str, tuple[Document, bytes]] = {}
    for doc, body in letters:
        fresh.setdefault(doc["_id"], (doc, body))
    if not fresh:
        return 0
    collection = server.collection("letter")
    if session is not None:
        # A key that is there already would end the transaction.
        for row in await server.found(collection, list(fresh), ["_id"], session):
            del fresh[row["_id"]]
    docs = {id: doc | await bodies.kept(server, body, session) for id, (doc, body) in fresh.items()}
    if not docs:
        return 0
    try:
        await collection.insert_many(docs.values(), ordered=False, session=session)
    except BulkWriteError as error:
        if session is not None or not only_duplicates(error):
            raise
        there = [each["op"]["_id"] for each in error.details["writeErrors"]]
        await bodies.forget(server, [docs[id] for id in there], session)
        return len(docs) - len(there)
    return len(docs)
