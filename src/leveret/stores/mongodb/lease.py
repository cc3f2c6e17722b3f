"""Leases in MongoDB: one holder at a time, by the server's clock, and the proof of one that guards what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from leveret.core.errors import StoreUnavailable
from leveret.ports import Grant, LeaseState
from leveret.stores.leases import check_held
from leveret.stores.mongodb.alone import Alone
from leveret.stores.mongodb.driver import (
    DURABLE,
    PRIMARY,
    DatetimeMS,
    DuplicateKeyError,
    PyMongoError,
    to_its_end,
)
from leveret.stores.mongodb.fields import time_of

if TYPE_CHECKING:
    from leveret.stores.mongodb.driver import Client, Collection, Document, Session

#: The one lease of a collection.
LEASE_ID = "retry_worker"

#: Dates lie in milliseconds, cut off: a lease is written so much longer, lest it end before its holder thinks.
_ROUNDING = timedelta(milliseconds=2)
#: Seconds after which a lease's own lock was left behind: asking for a lease takes some milliseconds. A lease that
#: lasts for less time is not waited for beyond it: by then, whoever asked for it has given it up, whatever the answer.
LOCK_STALE = 5.0


class MongoRetryLease:
    """A lease in MongoDB: one holder at a time, each take-over under a higher term.

    The server's clock judges. It lies in the collection `<collection_name>_lease`, in one document.

    Args:
        client: a connected one; it stays the caller's.
        database_name: where the collection lies.
        collection_name: of the retries.

    Example:
        lease = MongoRetryLease(client, database_name="shop", collection_name="retries")
        await lease.acquire_or_renew("host/4711", now=0.0, expires_at=30.0)  # True
    """

    #: The `_id` of the lease's document.
    lease_id = LEASE_ID

    def __init__(self, client: Client, *, database_name: str, collection_name: str) -> None:
        self.name = f"{collection_name}_lease"
        self._client = client
        # A lease that a new primary does not know of would be given to two.
        self._lying: Collection = client[database_name][self.name].with_options(
            write_concern=DURABLE, read_preference=PRIMARY
        )
        self._alone: Alone | None = None
        self._atomic: bool | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        # A release comes after the renewal before it, also where whoever asked for that has given up: that would take
        # the lease anew.
        self._changing = asyncio.Lock()

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """Claim an expired lease or extend this holder's, for `expires_at - now` seconds by the server's clock.

        Returns:
            Whether *holder_id* holds it now.

        Raises:
            StoreUnavailable: MongoDB did not answer, or not as it should: who held it must take it for lost.
        """
        ttl = timedelta(seconds=expires_at - now)
        try:
            return await to_its_end(self._acquired_or_renewed(holder_id, ttl), self._calls)
        except DuplicateKeyError:
            # There is a lease, and its time is not over: what would have been the first one met it.
            return False
        except PyMongoError as error:
            raise self._told(error) from error

    async def grant(self, holder_id: str) -> Grant | None:
        """Proof that *holder_id* holds the lease, with its term; None where it does not, or its time is over.

        Raises:
            StoreUnavailable: MongoDB did not answer.
        """
        state = await self.state()
        if state is None or state.holder != holder_id or state.left <= 0:
            return None
        return Grant(self.name, holder_id, state.term)

    async def release(self, holder_id: str) -> None:
        """Give it up at once; harmless where *holder_id* does not hold it. The term stays.

        Raises:
            StoreUnavailable: MongoDB did not answer; it ends by itself.
        """
        try:
            await to_its_end(self._released(holder_id), self._calls)
        except PyMongoError as error:
            raise self._told(error) from error

    async def state(self) -> LeaseState | None:
        """Who holds it (nobody: an empty name), or None where nobody ever did.

        Raises:
            StoreUnavailable: MongoDB did not answer.
        """
        try:
            return await to_its_end(self._found(), self._calls)
        except PyMongoError as error:
            raise self._told(error) from error

    async def _found(self) -> LeaseState | None:
        found = await self._rows().find_one({"_id": self.lease_id})
        return None if found is None else state_of(found, await self._server_time())

    async def _acquired_or_renewed(self, holder_id: str, ttl: timedelta) -> bool:
        async with self._changing, self._one_at_a_time(min(LOCK_STALE, ttl.total_seconds())):
            ends = await self._server_time() + ttl + _ROUNDING
            renewed = await self._rows().update_one(
                {"_id": self.lease_id, "holder_id": holder_id}, {"$set": {"expires_at": ends}}
            )
            if renewed.matched_count:
                return True
            if not await self._is_free():
                return False
            async with self._nobody_acts():
                time = await self._server_time()
                taken = await self._rows().update_one(
                    {"_id": self.lease_id, "expires_at": {"$lte": time}},
                    {
                        "$set": {"holder_id": holder_id, "expires_at": time + ttl + _ROUNDING},
                        "$inc": {"term": 1},
                    },
                    upsert=True,
                )
        return taken.matched_count > 0 or taken.upserted_id is not None

    async def _released(self, holder_id: str) -> None:
        async with self._changing, self._one_at_a_time():
            await self._rows().update_one(
                {"_id": self.lease_id, "holder_id": holder_id},
                {"$set": {"holder_id": "", "expires_at": datetime.fromtimestamp(0, UTC)}},
            )

    def _rows(self) -> Collection:
        return self._lying

    @asynccontextmanager
    async def _one_at_a_time(self, stale: float = LOCK_STALE) -> AsyncIterator[None]:
        if await self._is_atomic():
            yield
            return
        if self._alone is None:
            self._alone = Alone(
                self._lying, f"{self.lease_id}/lock", now=self._server_milliseconds, stale=LOCK_STALE
            )
        async with self._alone(stale=stale):
            yield

    @asynccontextmanager
    async def _nobody_acts(self) -> AsyncIterator[None]:
        """Where the server cannot check a lease and act in one step: no act of the last holder is under way."""
        yield

    async def _is_free(self) -> bool:
        found = await self._rows().find_one({"_id": self.lease_id})
        return found is None or state_of(found, await self._server_time()).left <= 0

    async def _is_atomic(self) -> bool:
        if self._atomic is None:
            self._atomic = not is_ferretdb(await self._client.admin.command("buildInfo"))
        return self._atomic

    async def _server_time(self) -> datetime:
        answer = await self._client.admin.command("hello")
        return zoned(answer["localTime"])

    async def _server_milliseconds(self) -> int:
        return time_of(await self._server_time())

    def _told(self, error: PyMongoError) -> Exception:
        return StoreUnavailable(
            f"the lease in MongoDB's collection {self.name} cannot be asked for: {type(error).__name__}: {error}"
        )


def is_ferretdb(build_info: Document) -> bool:
    """Whether a server is FerretDB, from what it answers to `buildInfo`: it changes documents in separate steps."""
    return "ferretdbVersion" in build_info or "ferretdb" in build_info


def state_of(found: Document, time: datetime) -> LeaseState:
    """The state of a lease's document at the server's time."""
    holder, ends = found.get("holder_id", ""), found.get("expires_at")
    # A lease of another program has no term yet.
    term = found.get("term", 0)
    if not holder or not isinstance(ends, (datetime, DatetimeMS)):
        return LeaseState("", term, 0.0)
    return LeaseState(holder, term, (zoned(ends) - time).total_seconds())


async def check_grant(collection: Collection, grant: Grant | None, session: Session | None) -> None:
    """Make sure that the grant holds; within a transaction, nobody takes the lease over before that has ended.

    An end that has passed does not matter: as long as nobody took over, nobody else acts.

    Raises:
        LeaseLost: somebody else holds the lease by now, or it was released.
    """
    if grant is None:
        return
    named = {"_id": grant.lease, "holder_id": grant.holder, "term": grant.term}
    if session is None:
        if await collection.find_one(named) is not None:
            return
    elif (await collection.update_one(named, {"$inc": {"acts": 1}}, session=session)).matched_count:
        return
    row = await collection.find_one({"_id": grant.lease}, session=session)
    check_held(grant, None if row is None else (row["holder_id"], row["term"]))


def zoned(time: Any) -> datetime:
    """A date as Python's, in UTC: a client that was not asked for zones gives dates without one."""
    if isinstance(time, DatetimeMS):
        time = time.as_datetime()
    zoned: datetime = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return zoned
