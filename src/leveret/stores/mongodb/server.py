"""The MongoDB behind a store: connecting, what the server can do, its time, and calls that are done whole or not."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from leveret.core.errors import ConfigError, StoreUnavailable
from leveret.core.redaction import redact
from leveret.stores.mongodb.alone import Alone
from leveret.stores.mongodb.driver import (
    DURABLE,
    PRIMARY,
    AsyncMongoClient,
    BulkWriteError,
    DeleteOne,
    DuplicateKeyError,
    PyMongoError,
    errors,
    pymongo,
    to_its_end,
)
from leveret.stores.mongodb.fields import time_of
from leveret.stores.mongodb.lease import check_grant, is_ferretdb

if TYPE_CHECKING:
    from leveret.ports import Grant
    from leveret.stores.mongodb.driver import Client, Collection, Document, Session

T = TypeVar("T")

#: The database of a URL that names none.
DATABASE = "leveret"
#: What a URL may say otherwise, in milliseconds: nobody waits for ever for a server that does not answer.
_WAITS = {"serverSelectionTimeoutMS": 5_000, "connectTimeoutMS": 5_000, "socketTimeoutMS": 30_000}
#: Seconds after which the lock of a store was left behind by a process that is gone; a call takes less.
_LOCK_STALE = 30.0
#: Seconds for a transaction, with all that it begins anew.
_LONGEST_TRANSACTION = 30.0
#: How often a transaction begins anew because another one was quicker.
_TRIES = 20
#: The server's own code for a key that is there already.
DUPLICATE_KEY = 11000


class MongoServer:
    """A connection to MongoDB, and what differs between one server and another.

    Args:
        url: as pymongo takes it. It may hold a password, which no text of ours shows.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.display = redact(url)
        self._client: Client | None = None
        self._database = DATABASE
        self._alone: Alone | None = None
        #: Those under way, also those whose callers have given up.
        self.calls: set[asyncio.Task[Any]] = set()
        self.transactions = False
        #: Whether an update by condition is one step on this server; where not, one writes at a time.
        self.atomic = True
        #: Whether it makes use of indexes. FerretDB 1 only pays for them.
        self.indexes = True

    @property
    def is_open(self) -> bool:
        """Whether it is connected."""
        return self._client is not None

    async def open(self) -> None:
        """Connect, and see what the server can do. Idempotent.

        Raises:
            ConfigError: pymongo cannot read the URL.
            StoreUnavailable: nobody answers, or it does not let us in.
        """
        if self._client is not None:
            return
        client, self._database = connected(self._url)
        try:
            with self.errors():
                hello = await client.admin.command("hello")
                about = await client.admin.command("buildInfo")
                # The two above are answered to anybody.
                await client[self._database]["leveret_meta"].find_one({})
        except BaseException:
            await client.close()
            raise
        self.atomic = not is_ferretdb(about)
        self.transactions = self.atomic and ("setName" in hello or hello.get("msg") == "isdbgrid")
        self.indexes = not str(about.get("ferretdbVersion", "")).startswith("v1.")
        self._client = client
        self._alone = Alone(self.collection("lock"), "store", now=self.now, stale=_LOCK_STALE)

    async def close(self) -> None:
        """Let calls come to their end, then disconnect. Idempotent."""
        if self.calls:
            await asyncio.wait(self.calls)
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def client(self) -> Client:
        """The client.

        Raises:
            StoreUnavailable: it is not open.
        """
        if self._client is None:
            raise StoreUnavailable(f"the store {self.display} is not open: call `await store.open()` first")
        return self._client

    @property
    def database_name(self) -> str:
        """The database that the URL names."""
        return self._database

    def collection(self, name: str) -> Collection:
        """One of the store's collections, whose writes are on the disks of a majority when they return."""
        return self.client[self._database][f"leveret_{name}"].with_options(
            write_concern=DURABLE, read_preference=PRIMARY
        )

    async def command(self, name: str) -> Document:
        """What the database answers to a command."""
        answer: Document = await self.client[self._database].command(name)
        return answer

    async def now(self) -> int:
        """The server's time, in epoch milliseconds."""
        answer = await self.client.admin.command("hello")
        return time_of(answer["localTime"])

    # ── Calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def errors(self) -> AbstractContextManager[None]:
        """Whatever comes out of the block is an error of leveret's."""
        return errors(self.display)

    async def read(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What *ask* finds."""
        self.client  # noqa: B018 - tells that it is not open

        async def asked() -> T:
            with self.errors():
                return await ask()

        return await to_its_end(asked(), self.calls)

    async def write(self, ask: Callable[[Session | None], Awaitable[T]], *, grant: Grant | None = None) -> T:
        """Do *ask*, with the lease that *grant* proves.

        On a replica set it is one transaction. Elsewhere each document is changed only where it still is as it was
        read; where the server cannot even do that in one step, one writes at a time.

        Raises:
            LeaseLost: somebody else holds the lease.
        """

        async def checked(session: Session | None) -> T:
            await check_grant(self.collection("lease"), grant, session)
            return await ask(session)

        client = self.client

        async def asked() -> T:
            with self.errors():
                if self.transactions:
                    return await self._in_transaction(client, checked)
                async with self.one_at_a_time():
                    return await checked(None)

        return await to_its_end(asked(), self.calls)

    @asynccontextmanager
    async def one_at_a_time(self) -> AsyncIterator[None]:
        """Nobody else writes meanwhile, where the server does not check and write in one step."""
        if self.atomic or self._alone is None:
            yield
            return
        async with self._alone():
            yield

    async def _in_transaction(self, client: Client, ask: Callable[[Session | None], Awaitable[T]]) -> T:
        for left in reversed(range(_TRIES)):
            try:
                # Without a limit of ours, pymongo begins anew for two minutes while nobody answers.
                with pymongo.timeout(_LONGEST_TRANSACTION):
                    async with client.start_session() as session:
                        return await session.with_transaction(
                            ask, write_concern=DURABLE, read_preference=PRIMARY
                        )
            except (DuplicateKeyError, BulkWriteError) as error:
                # Somebody else inserted it since this transaction began; the next one sees it.
                if not left or not only_duplicates(error):
                    raise
        raise AssertionError("the last try returns or raises")

    # ── Documents by their ids ────────────────────────────────────────────────────────────────────────────────────────

    async def found(
        self, collection: Collection, ids: list[str], fields: list[str] | None, session: Session | None
    ) -> list[Document]:
        """The documents of these ids that are there, with these fields (None: all)."""
        if self.atomic:
            return await collection.find({"_id": {"$in": ids}}, fields, session=session).to_list()
        # FerretDB 1 looks through all documents for anything, and longer for each id of a list: a few are asked for one
        # by one, many are picked out here.
        if len(ids) <= _FEW:
            answers = [await collection.find_one({"_id": id}, fields) for id in ids]
            return [doc for doc in answers if doc is not None]
        wanted = set(ids)
        between = {"_id": {"$gte": min(wanted), "$lte": max(wanted)}}
        return [doc async for doc in collection.find(between, fields) if doc["_id"] in wanted]

    async def delete(
        self, collection: Collection, rows: list[Document], seen: list[str], session: Session | None
    ) -> int:
        """Delete these documents, those whose fields *seen* still are as they were read. Returns how many."""
        if not self.atomic:
            return (
                await collection.delete_many({"_id": {"$in": [row["_id"] for row in rows]}})
            ).deleted_count
        writes = [DeleteOne(self.still(row["_id"], {name: row[name] for name in seen})) for row in rows]
        return (await collection.bulk_write(writes, ordered=False, session=session)).deleted_count

    def still(self, id: str, seen: Document) -> Document:
        """The query for a document that still is as it was seen."""
        # Where one writes at a time it is; and FerretDB finds it at once by its id alone.
        return {"_id": id, **seen} if self.atomic else {"_id": id}


#: Documents up to which FerretDB 1 is asked for one by one.
_FEW = 20


def only_duplicates(error: DuplicateKeyError | BulkWriteError) -> bool:
    """Whether keys that are there already are all that went wrong."""
    if isinstance(error, DuplicateKeyError):
        return True
    details = error.details or {}
    failed = details.get("writeErrors", ())
    return (
        bool(failed)
        and not details.get("writeConcernErrors")
        and all(each.get("code") == DUPLICATE_KEY for each in failed)
    )


def connected(url: str) -> tuple[Client, str]:
    """A client of that URL, which connects at its first use, and the name of the database.

    Raises:
        ConfigError: pymongo cannot read the URL.
    """
    try:
        with warnings.catch_warnings():
            # Of options that pymongo does not know: told as an error, for a mistyped one is not what was meant.
            warnings.simplefilter("error", UserWarning)
            given = {option.partition("=")[0].lower() for option in url.partition("?")[2].split("&")}
            waits: dict[str, Any] = {
                name: value for name, value in _WAITS.items() if name.lower() not in given
            }
            client: Client = AsyncMongoClient(
                url, appname="leveret", datetime_conversion="DATETIME_MS", **waits
            )
        database = client.get_default_database(DATABASE).name
    except (PyMongoError, ValueError, UserWarning) as error:
        # Its words may quote what it could not read.
        raise ConfigError(
            f"the store URL {redact(url)} cannot be used by pymongo ({type(error).__name__}): see its options"
        ) from None
    return client, database
