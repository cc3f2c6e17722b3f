"""MongoDB: the lease of a collection of retries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from leveret.core.errors import MissingExtra, StoreUnavailable
from leveret.ports import Grant, LeaseState

try:
    from pymongo.errors import DuplicateKeyError, PyMongoError
    from pymongo.write_concern import WriteConcern
except ImportError as error:
    raise MissingExtra(
        "MongoDB needs pymongo, which is not installed: pip install 'leveret[mongodb]'"
    ) from error

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient
    from pymongo.asynchronous.collection import AsyncCollection

#: The one lease of a collection.
LEASE_ID = "retry_worker"

#: Dates lie in milliseconds, cut off: a lease is written so much longer, lest it end before its holder thinks.
_ROUNDING = timedelta(milliseconds=2)


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

    def __init__(
        self, client: AsyncMongoClient[dict[str, Any]], *, database_name: str, collection_name: str
    ) -> None:
        self.name = f"{collection_name}_lease"
        self._client = client
        # A lease that a new primary does not know of would be given to two.
        self._collection: AsyncCollection[dict[str, Any]] = client[database_name][self.name].with_options(
            write_concern=WriteConcern(w="majority")
        )

    async def acquire_or_renew(self, holder_id: str, now: float, expires_at: float) -> bool:
        """Claim an expired lease or extend this holder's, for `expires_at - now` seconds by the server's clock.

        Returns:
            Whether *holder_id* holds it now.

        Raises:
            StoreUnavailable: MongoDB did not answer, or not as it should: who held it must take it for lost.
        """
        try:
            time = await self._server_time()
            end = time + timedelta(seconds=expires_at - now) + _ROUNDING
            renewed = await self._collection.update_one(
                {"_id": LEASE_ID, "holder_id": holder_id}, {"$set": {"expires_at": end}}
            )
            if renewed.matched_count:
                return True
            taken = await self._collection.update_one(
                {"_id": LEASE_ID, "expires_at": {"$lte": time}},
                {"$set": {"holder_id": holder_id, "expires_at": end}, "$inc": {"term": 1}},
                upsert=True,
            )
        except DuplicateKeyError:
            # There is a lease, and its time is not over: what would have been the first one met it.
            return False
        except PyMongoError as error:
            raise self._unavailable(error) from error
        return taken.matched_count > 0 or taken.upserted_id is not None

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
            await self._collection.update_one(
                {"_id": LEASE_ID, "holder_id": holder_id},
                {"$set": {"holder_id": "", "expires_at": datetime.fromtimestamp(0, UTC)}},
            )
        except PyMongoError as error:
            raise self._unavailable(error) from error

    async def state(self) -> LeaseState | None:
        """Who holds it (nobody: an empty name), or None where nobody ever did.

        Raises:
            StoreUnavailable: MongoDB did not answer.
        """
        try:
            found = await self._collection.find_one({"_id": LEASE_ID})
            time = await self._server_time()
        except PyMongoError as error:
            raise self._unavailable(error) from error
        if found is None:
            return None
        holder, ends = found.get("holder_id", ""), found.get("expires_at")
        # A lease of another program has no term yet.
        term = found.get("term", 0)
        if not holder or not isinstance(ends, datetime):
            return LeaseState("", term, 0.0)
        # A client that was not asked for zones gives dates without one; they mean UTC.
        ends = ends if ends.tzinfo is not None else ends.replace(tzinfo=UTC)
        return LeaseState(holder, term, (ends - time).total_seconds())

    async def _server_time(self) -> datetime:
        answer = await self._client.admin.command("hello")
        time: datetime = answer["localTime"]
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

    def _unavailable(self, error: PyMongoError) -> StoreUnavailable:
        return StoreUnavailable(
            f"the lease in MongoDB's collection {self.name} cannot be asked for: {type(error).__name__}: {error}"
        )
