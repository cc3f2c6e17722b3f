"""What people asked for, and how often flagged deliveries were started, in MongoDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.errors import StoreUnavailable
from leveret.stores.acts import REPORTS_KEPT, act_arguments, act_of, no_such_act, report_text
from leveret.stores.mongodb.driver import DuplicateKeyError, pymongo
from leveret.stores.mongodb.fields import date, exact, place, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.ports import Acknowledged, Act
    from leveret.stores.mongodb.driver import Collection, Document, Session
    from leveret.stores.mongodb.server import MongoServer

#: How often a count begins anew because somebody else counted the same message for the first time.
_TRIES = 10


class MongoActs:
    """Acts and start counts of the MongoDB store."""

    server: MongoServer

    async def ask(self, act: Act) -> None:
        """Write an act; one with an id that is there already is left as it is."""
        doc = {
            "namespace": exact(act.namespace),
            "verb": act.verb,
            "arguments": act_arguments(act),
            "asked_at": act.asked_at,
        }

        async def ask(session: Session | None) -> None:
            await self._acts.update_one(
                {"_id": exact(act.id)}, {"$setOnInsert": doc}, upsert=True, session=session
            )
            await self._forget_old(await self.server.now(), session)

        await self.server.write(ask)

    async def asked(self, namespace: str, verbs: Sequence[str]) -> list[Act]:
        """Acts that nobody has finished, oldest first."""

        async def ask() -> list[Act]:
            unfinished = {"namespace": exact(namespace), "finished_at": None}
            found = self._acts.find(unfinished).sort([("asked_at", 1), ("_id", 1)])
            return [_act_of(doc) async for doc in found if doc["verb"] in verbs]

        return await self.server.read(ask)

    async def report(self, act_id: str, report: Acknowledged) -> None:
        """Say what became of an act. Reports of finished acts are kept for a day.

        Raises:
            NotFound: there is no such act.
        """
        text = report_text(report)

        async def ask(session: Session | None) -> None:
            now = await self.server.now()
            change = {"report": text, "finished_at": date(now) if report.finished else None}
            written = await self._acts.update_one({"_id": exact(act_id)}, {"$set": change}, session=session)
            if not written.matched_count:
                raise no_such_act(act_id)
            await self._forget_old(now, session)

        await self.server.write(ask)

    async def act(self, act_id: str) -> Act | None:
        """An act with its newest report."""

        async def ask() -> Act | None:
            doc = await self._acts.find_one({"_id": exact(act_id)})
            return None if doc is None else _act_of(doc)

        return await self.server.read(ask)

    async def count_start(self, namespace: str, queue: str, message: str) -> int:
        """One more start of that message; returns how many there were."""
        id = _start(namespace, queue, message)

        async def ask(session: Session | None) -> int:
            for _ in range(_TRIES):
                try:
                    doc = await self._starts.find_one_and_update(
                        {"_id": id},
                        {"$inc": {"starts": 1}, "$setOnInsert": {"namespace": exact(namespace)}},
                        upsert=True,
                        return_document=pymongo.ReturnDocument.AFTER,
                        session=session,
                    )
                except DuplicateKeyError:
                    if session is not None:
                        raise
                    continue
                if doc is not None:
                    return int(doc["starts"])
            raise StoreUnavailable(
                f"others keep counting {message!r} in {self.server.display}: tried {_TRIES} times"
            )

        return await self.server.write(ask)

    async def forget_starts(self, namespace: str, queue: str, messages: Sequence[str]) -> None:
        """These were settled."""
        if not messages:
            return
        writes = [pymongo.DeleteOne({"_id": _start(namespace, queue, message)}) for message in messages]

        async def ask(session: Session | None) -> None:
            await self._starts.bulk_write(writes, ordered=False, session=session)

        await self.server.write(ask)

    @property
    def _acts(self) -> Collection:
        return self.server.collection("act")

    @property
    def _starts(self) -> Collection:
        return self.server.collection("start")

    async def _forget_old(self, now: int, session: Session | None) -> None:
        oldest = date(now - int(REPORTS_KEPT * 1000))
        await self._acts.delete_many({"finished_at": {"$lt": oldest}}, session=session)


def _start(namespace: str, queue: str, message: str) -> str:
    return place(place(namespace, queue).replace("\\", "\\\\"), message)


def _act_of(doc: Document) -> Act:
    return act_of(
        text_of(doc["_id"]),
        text_of(doc["namespace"]),
        doc["verb"],
        doc["arguments"],
        doc["asked_at"],
        doc.get("report"),
    )
