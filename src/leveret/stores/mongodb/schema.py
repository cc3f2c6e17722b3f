"""The schema of a MongoDB store: is this database ours, how old is it, and the way forward."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from leveret.core.errors import NotFound
from leveret.stores.errors import newer_schema
from leveret.stores.mongodb.driver import DuplicateKeyError

if TYPE_CHECKING:
    from leveret.stores.mongodb.server import MongoServer

#: The document that says which schema the collections have.
_SCHEMA = {"_id": "schema"}

#: By collection and name, the fields of each index.
_INDEXES: dict[str, dict[str, list[str]]] = {
    "retry": {
        # What is due. It holds all that scheduling needs, so that a round reads no document.
        "due": ["namespace", "try_at", "key", "failure", "queue", "size"],
        "listing": ["try_at", "namespace", "key"],
        "blocked": ["namespace", "queue", "state"],
        # People name a message by an ending of its id.
        "id_ending": ["id_ending"],
        "message_ending": ["message_ending"],
    },
    "letter": {
        "listing": ["state", "died_at", "namespace", "id"],
        "listing_of_namespace": ["namespace", "state", "died_at", "id"],
        "claimed": ["replay_id", "state", "died_at"],
        "id_ending": ["id_ending"],
        "message_ending": ["message_ending"],
    },
    "act": {"asked": ["namespace", "finished_at", "asked_at"], "finished": ["finished_at"]},
    "start": {"namespace": ["namespace"]},
}


async def _first(server: MongoServer) -> None:
    if not server.indexes:
        return
    for collection, indexes in _INDEXES.items():
        for name, fields in indexes.items():
            await server.collection(collection).create_index([(field, 1) for field in fields], name=name)


#: The way forward, the first step first. Each can be done again: a process may be killed in the middle.
MIGRATIONS: tuple[Callable[[MongoServer], Awaitable[None]], ...] = (_first,)


def newest() -> int:
    """The schema version that this leveret writes."""
    return len(MIGRATIONS)


async def version(server: MongoServer) -> int | None:
    """The schema version of the store, None where there is no store."""
    found = await server.collection("meta").find_one(_SCHEMA)
    return None if found is None else int(found["version"])


async def prepare(server: MongoServer, *, create: bool) -> None:
    """Make sure that the store is there, and of this schema: created where asked to, and migrated forward.

    Raises:
        NotFound: it is not there, and *create* is False. Nothing was written.
        StoreRefused: a newer leveret has written it.
    """
    found = await version(server)
    if found is None:
        if not create:
            raise NotFound(
                f"there is no store at {server.display}: its database {server.database_name} has none. "
                "`leveret run` creates it"
            )
        found = 0
    if found > newest():
        raise newer_schema(server.display, found, newest())
    for number, migrate in enumerate(MIGRATIONS[found:], start=found + 1):
        await migrate(server)
        await _note(server, number)


async def _note(server: MongoServer, number: int) -> None:
    meta = server.collection("meta")
    noted = await meta.update_one({**_SCHEMA, "version": {"$lt": number}}, {"$set": {"version": number}})
    if not noted.matched_count:
        try:
            await meta.insert_one({**_SCHEMA, "version": number})
        except DuplicateKeyError:
            # Another process has come as far, or further, in the meantime.
            return
