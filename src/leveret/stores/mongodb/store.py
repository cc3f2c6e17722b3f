"""MongoStore: retries, dead letters, acts, start counts and leases in a MongoDB database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from leveret.stores.mongodb import bodies, schema
from leveret.stores.mongodb.acts import MongoActs
from leveret.stores.mongodb.alone import Alone
from leveret.stores.mongodb.driver import DatetimeMS, PyMongoError, translated
from leveret.stores.mongodb.fields import text_of
from leveret.stores.mongodb.lease import LEASE_ID, LOCK_STALE, MongoRetryLease, state_of, zoned
from leveret.stores.mongodb.letters import MongoLetters
from leveret.stores.mongodb.retries import MongoRetries
from leveret.stores.mongodb.server import MongoServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports import Lease, LeaseState
    from leveret.stores.mongodb.driver import Collection

#: A check names so many faults; more would only repeat.
_COMPLAINTS = 10


class MongoStore(MongoRetries, MongoLetters, MongoActs):
    """A store in MongoDB, which any number of hosts may use at once. Its collections are named `leveret_…`.

    What a call has written is in the journals of a majority when it returns. The server's clock judges what is due and
    who holds a lease. On a replica set each call is a transaction; elsewhere each document is changed only where it
    still is as it was read, and what was taken bears the term of its holder's lease. A server that goes away is
    `StoreUnavailable`, and the store works again by itself when it is back.

    Args:
        url: as pymongo takes it; the database is `leveret` where it names none.

    Example:
        store = MongoStore("mongodb://db-1,db-2/shop?replicaSet=rs0")
        await store.open()
        await store.put([entry])  # [Placed(written=True, due_in=30.0)]
        await store.close()
    """

    def __init__(self, url: str) -> None:
        self.server = MongoServer(url)

    def __repr__(self) -> str:
        return f"<MongoStore {self.display}>"

    @property
    def display(self) -> str:
        """Its URL, without password."""
        return self.server.display

    @property
    def shared(self) -> bool:
        """True: any number of hosts at once."""
        return True

    @property
    def lasting(self) -> bool:
        """True: it is a database."""
        return True

    async def open(self, *, create: bool = True) -> None:
        """Connect, migrate it forward, and create it where asked to.

        Raises:
            ConfigError: the URL has an option that cannot be used.
            NotFound: not there, and *create* is False.
            StoreUnavailable: nobody answers, or it does not let us in.
            StoreRefused: a newer leveret has written it.
        """
        if self.server.is_open:
            return
        await self.server.open()
        try:
            with self.server.errors():
                await schema.prepare(self.server, create=create)
        except BaseException:
            await self.server.close()
            raise

    async def close(self) -> None:
        """Disconnect. Idempotent."""
        await self.server.close()

    def lease(self, name: str) -> Lease:
        """The lease of that name."""
        return _StoreLease(self.server, name)

    async def leases(self, namespace: str | None) -> Mapping[str, LeaseState]:
        """Every lease of the namespace (None: all), by name."""

        async def ask() -> dict[str, LeaseState]:
            time = zoned(DatetimeMS(await self.server.now()))
            found = self.server.collection("lease").find({}).sort([("_id", 1)])
            return {
                doc["_id"]: state_of(doc, time)
                async for doc in found
                if namespace is None or doc["_id"].startswith(f"{namespace}/")
            }

        return await self.server.read(ask)

    async def namespaces(self) -> list[str]:
        """Every namespace that it holds something of, sorted."""

        async def ask() -> list[str]:
            found: set[str] = set()
            for name in ("retry", "letter", "act", "start"):
                found.update(map(text_of, await self.server.collection(name).distinct("namespace")))
            leases = await self.server.collection("lease").distinct("_id")
            return sorted(found | {name.partition("/")[0] for name in leases if "/" in name})

        return await self.server.read(ask)

    async def document_collections(self) -> list[str]:
        """Every collection that lies beside the lease of a retry worker, another program's too, sorted."""

        async def ask() -> list[str]:
            database = self.server.client[self.server.database_name]
            return sorted(
                [
                    name.removesuffix("_lease")
                    for name in await database.list_collection_names()
                    if name.endswith("_lease")
                    and await database[name].find_one({"_id": LEASE_ID}) is not None
                ]
            )

        return await self.server.read(ask)

    async def check(self) -> Mapping[str, Any]:
        """Schema version, integrity ("ok", or which large body is not whole), size in bytes, and what lies in it."""

        async def ask() -> dict[str, Any]:
            complaints = [complaint async for complaint in self._incomplete()]
            size = await self.server.command("dbStats")
            return {
                "schema": await schema.version(self.server),
                "newest_schema": schema.newest(),
                "integrity": "; ".join(complaints[:_COMPLAINTS]) or "ok",
                "bytes": int(size["dataSize"]),
                "waiting": await self.server.collection("retry").count_documents({}),
                "dead": await self.server.collection("letter").count_documents({"state": "dead"}),
            }

        return await self.server.read(ask)

    async def _incomplete(self) -> AsyncIterator[str]:
        pieces = self.server.collection("piece")
        for name in ("retry", "letter"):
            found = self.server.collection(name).find({"pieces": {"$gt": 0}}, bodies.FIELDS[1:])
            async for row in found:
                there = [await pieces.find_one({"_id": id}, ["_id"]) for id in bodies.names(row)]
                if not all(there):
                    yield f"{row['_id']} has lost a piece of its body"


class _StoreLease(MongoRetryLease):
    """A lease of a store, beside its other leases."""

    def __init__(self, server: MongoServer, name: str) -> None:
        self.name = self.lease_id = name
        self._server = server
        self._lock: Alone | None = None
        self._calls = server.calls
        self._changing = asyncio.Lock()

    def _rows(self) -> Collection:
        return self._server.collection("lease")

    @asynccontextmanager
    async def _one_at_a_time(self, stale: float = LOCK_STALE) -> AsyncIterator[None]:
        if self._server.atomic:
            yield
            return
        if self._lock is None:
            self._lock = Alone(
                self._server.collection("lock"),
                f"lease/{self.name}",
                now=self._server.now,
                stale=LOCK_STALE,
            )
        async with self._lock(stale=stale):
            yield

    @asynccontextmanager
    async def _nobody_acts(self) -> AsyncIterator[None]:
        async with self._server.one_at_a_time():
            yield

    async def _server_time(self) -> datetime:
        return zoned(DatetimeMS(await self._server.now()))

    def _told(self, error: PyMongoError) -> Exception:
        return translated(error, self._server.display)
