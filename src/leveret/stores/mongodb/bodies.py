"""Bodies: in their row's document, or, where they are large, in pieces beside it (S1)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.core.errors import StoreRefused
from leveret.stores.mongodb.driver import pymongo

if TYPE_CHECKING:
    from leveret.stores.mongodb.driver import Document, Session
    from leveret.stores.mongodb.server import MongoServer

#: Bytes of a piece, and of the largest body within its row: a document holds 16 MB in all, and a batch 48 MB.
PIECE = 8_000_000
#: What says of a row where its body is.
FIELDS = ["body", "blob", "pieces"]


class BodyLost(StoreRefused):
    """A piece of a row's body is missing. The row is the culprit: the store and all others are well."""


async def kept(server: MongoServer, body: bytes, session: Session | None) -> Document:
    """The fields of a row for its body; the pieces of a large one are written first."""
    if len(body) <= PIECE:
        return {"body": body, "blob": None, "pieces": 0}
    blob = uuid.uuid4().hex
    pieces = [body[start : start + PIECE] for start in range(0, len(body), PIECE)]
    for number, piece in enumerate(pieces):
        await server.collection("piece").insert_one(
            {"_id": f"{blob}/{number}", "data": piece}, session=session
        )
    return {"body": b"", "blob": blob, "pieces": len(pieces)}


async def body_of(server: MongoServer, row: Document, session: Session | None = None) -> bytes:
    """The body of a row.

    Raises:
        BodyLost: a piece of it is missing.
    """
    if row["blob"] is None:
        inline: bytes = row["body"]
        return inline
    body = b""
    for name in names(row):
        piece = await server.collection("piece").find_one({"_id": name}, session=session)
        if piece is None:
            raise BodyLost(
                f"{row['_id']!r} in {server.display} has lost piece {name} of its body. What to do: restore the "
                "collection leveret_piece from a backup"
            )
        body += piece["data"]
    return body


async def forget(server: MongoServer, rows: Iterable[Document], session: Session | None) -> None:
    """Delete the pieces of bodies whose rows are gone."""
    gone = [pymongo.DeleteOne({"_id": name}) for row in rows for name in names(row)]
    if gone:
        await server.collection("piece").bulk_write(gone, ordered=False, session=session)


def names(row: Document) -> list[str]:
    """The ids of a row's pieces."""
    return [f"{row['blob']}/{number}" for number in range(row.get("pieces", 0))]
