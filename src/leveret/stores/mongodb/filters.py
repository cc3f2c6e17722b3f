"""`Filter` as a query of MongoDB."""

from __future__ import annotations

import re
from collections.abc import Collection as Some
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.core.errors import StoreRefused
from leveret.stores.endings import names
from leveret.stores.intake import shown
from leveret.stores.mongodb import bodies
from leveret.stores.mongodb.fields import ending, exact, text_of

if TYPE_CHECKING:
    from leveret.core.retry_entry import Filter
    from leveret.stores.mongodb.driver import Document, Session
    from leveret.stores.mongodb.server import MongoServer

#: More ids than these do not fit one query.
_MOST_IDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the two kinds of rows call their fields."""

    collection: str
    id: str
    attempts: str
    #: When it failed, or died.
    time: str


RETRIES = Kind(collection="retry", id="retry_id", attempts="attempt", time="failed_at")
LETTERS = Kind(collection="letter", id="id", attempts="attempts", time="died_at")


async def query(
    server: MongoServer,
    wanted: Filter,
    kind: Kind,
    *,
    session: Session | None = None,
    states: Some[str] | None = None,
) -> Document:
    """What *wanted* asks for, and one of *states*."""
    asked: Document = {}
    if states is not None:
        asked["state"] = one_of(states)
    if wanted.namespace is not None:
        asked["namespace"] = exact(wanted.namespace)
    if wanted.ids:
        found = await named(server, wanted.namespace, wanted.ids, kind, session=session)
        asked["_id"] = one_of([row["_id"] for row in found])
    if wanted.worker is not None:
        asked["worker"] = shown(wanted.worker)
    if wanted.reason is not None:
        asked["reason_folded"] = {"$regex": _literally(shown(wanted.reason).casefold())}
    if wanted.type is not None:
        asked["type"] = shown(wanted.type)
    times = {"$gte": wanted.since, "$lte": wanted.until}
    if given := {operator: time for operator, time in times.items() if time is not None}:
        asked[kind.time] = given
    if wanted.attempts is not None:
        asked[kind.attempts] = wanted.attempts
    if wanted.rpc is not None and kind is LETTERS:
        asked["rpc"] = wanted.rpc
    if wanted.text is not None:
        # Last: only now are bodies looked at, here, for no query looks into bytes. Meanwhile rows change, so that all
        # else that was asked for has to hold in the end too.
        asked["_id"] = one_of(await _holding(server, asked, kind, wanted.text, session))
    return asked


async def named(
    server: MongoServer,
    namespace: str | None,
    ids: Some[str],
    kind: Kind,
    *,
    session: Session | None = None,
) -> list[Document]:
    """Rows that one of *ids* names, in full or by an ending of six characters or more; their ids and their state."""
    ends = one_of([ending(id) for id in ids])
    asked: Document = {"$or": [{"id_ending": ends}, {"message_ending": ends}]}
    if namespace is not None:
        asked["namespace"] = exact(namespace)
    fields = list({kind.id, "message_id", "key", "state", "namespace"})
    rows = await server.collection(kind.collection).find(asked, fields, session=session).to_list()
    return [
        row
        for row in rows
        if any(
            names(
                id,
                own=text_of(row[kind.id]),
                message_id=None if row["message_id"] is None else text_of(row["message_id"]),
            )
            for id in ids
        )
    ]


def one_of(values: Some[str]) -> str | Document:
    """A condition that a field is one of these."""
    if len(values) == 1:
        return next(iter(values))
    return {"$in": list(dict.fromkeys(values))}


async def _holding(
    server: MongoServer, asked: Document, kind: Kind, text: str, session: Session | None
) -> list[str]:
    wanted = text.encode("utf-8", "surrogatepass")
    found = []
    async for row in server.collection(kind.collection).find(asked, bodies.FIELDS, session=session):
        try:
            body = await bodies.body_of(server, row, session)
        except bodies.BodyLost:
            # Nobody can say what it held; whoever means it names it in another way.
            continue
        if wanted in body:
            found.append(row["_id"])
            if len(found) > _MOST_IDS:
                raise StoreRefused(
                    f"more than {_MOST_IDS} messages hold {text!r}: narrow it with a worker, a type or a time"
                )
    return found


def _literally(text: str) -> str:
    """A pattern that matches *text* alone, in the few escapes that every server's patterns know."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)
