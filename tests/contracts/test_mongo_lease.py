"""MongoRetryLease keeps the lease contract: on a stand-in of MongoDB, and on FerretDB or the MongoDB that is given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from pymongo import AsyncMongoClient
from pymongo.errors import ConnectionFailure, DuplicateKeyError
from pymongo.results import UpdateResult

from leveret.core.errors import StoreUnavailable
from leveret.ports import Grant, LeaseState
from leveret.retry import MongoRetryLease
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import StoreContract
from leveret.testing.store_contract.others import LeaseContract


class Collection:
    """As much of a collection as a lease uses, with MongoDB's meaning and its milliseconds."""

    def __init__(self) -> None:
        self.doc: dict | None = None
        self.error: Exception | None = None
        self.write_concern = None

    def with_options(self, *, write_concern, read_preference):
        self.write_concern = write_concern
        return self

    async def update_one(self, query, update, *, upsert=False) -> UpdateResult:
        if self.error is not None:
            raise self.error
        if self.doc is not None and all(self._matches(*item) for item in query.items()):
            self._change(update)
            return UpdateResult({"n": 1}, acknowledged=True)
        if not upsert:
            return UpdateResult({"n": 0}, acknowledged=True)
        if self.doc is not None:
            raise DuplicateKeyError("E11000 duplicate key")
        self.doc = {"_id": query["_id"]}
        self._change(update)
        return UpdateResult({"n": 1, "upserted": query["_id"]}, acknowledged=True)

    async def find_one(self, query):
        if self.error is not None:
            raise self.error
        return None if self.doc is None else dict(self.doc)

    def _matches(self, field, wanted) -> bool:
        return self.doc[field] <= wanted["$lte"] if isinstance(wanted, dict) else self.doc[field] == wanted

    def _change(self, update) -> None:
        for field, value in update["$set"].items():
            if isinstance(value, datetime):
                value = value.replace(microsecond=value.microsecond // 1000 * 1000)  # noqa: PLW2901 - as BSON has it
            self.doc[field] = value
        for field, more in update.get("$inc", {}).items():
            self.doc[field] = self.doc.get(field, 0) + more


class Client:
    """As much of a client as a lease uses, with the test's clock; as pymongo by default, it gives no time zones."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.databases: dict[str, dict[str, Collection]] = {}
        self.admin = self

    def __getitem__(self, name):
        database = self.databases.setdefault(name, {})

        class Database:
            def __getitem__(self, name) -> Collection:
                return database.setdefault(name, Collection())

        return Database()

    async def command(self, name) -> dict:
        if name == "buildInfo":
            return {"version": "8.0.0"}
        assert name == "hello"
        now = datetime(2026, 11, 30, tzinfo=UTC) + timedelta(seconds=self.clock.monotonic())
        return {"localTime": now.replace(microsecond=now.microsecond // 1000 * 1000, tzinfo=None)}


class Named:
    """A lease under the name that the contract gives it."""

    def __init__(self, lease: MongoRetryLease, name: str) -> None:
        self._lease = lease
        self._name = name
        self.acquire_or_renew, self.release, self.state = lease.acquire_or_renew, lease.release, lease.state

    async def grant(self, holder_id: str) -> Grant | None:
        grant = await self._lease.grant(holder_id)
        return None if grant is None else grant._replace(lease=self._name)


class Leases:
    """So much of a store as the contract of leases asks for: one collection a lease."""

    def __init__(self, client, database: str) -> None:
        self.client = client
        self.database = database

    def lease(self, name: str) -> Named:
        lease = MongoRetryLease(
            self.client, database_name=self.database, collection_name=name.replace("/", "_")
        )
        return Named(lease, name)


class TestMongoRetryLease(LeaseContract):
    pytestmark = StoreContract.pytestmark
    #: Two milliseconds more than asked for, and dates in milliseconds.
    rounding = 0.01

    @pytest.fixture
    def store(self, clock: FakeClock):
        return Leases(Client(clock), "shop")

    @pytest.fixture
    def reopen(self):
        async def reopen(store: Leases) -> Leases:
            return Leases(store.client, store.database)

        return reopen

    # A store lists its leases; a lease in a collection of its own is not listed by anybody.
    test_leases_are_told_apart_by_name_and_listed_by_namespace = None


@pytest.fixture
def client(clock):
    return Client(clock)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def lease(client):
    return MongoRetryLease(client, database_name="shop", collection_name="retries")


async def test_it_lies_in_one_document_of_a_collection_beside_the_retries(client, lease):
    assert await lease.acquire_or_renew("one", 0.0, 30.0)
    collection = client.databases["shop"]["retries_lease"]
    assert collection.doc == {
        "_id": "retry_worker",
        "holder_id": "one",
        "expires_at": datetime(2026, 11, 30, 0, 0, 30, 2000, tzinfo=UTC),
        "term": 1,
    }
    assert collection.write_concern.document == {"w": "majority", "j": True}


async def test_a_lease_of_another_program_without_a_term_is_respected_and_then_taken_over(
    client, lease, clock
):
    client["shop"]["retries_lease"].doc = {
        "_id": "retry_worker",
        "holder_id": "other",
        "expires_at": datetime(2026, 11, 30, 0, 0, 30, tzinfo=UTC),
    }
    assert not await lease.acquire_or_renew("one", 0.0, 30.0)
    assert await lease.state() == LeaseState("other", 0, 30.0)
    await clock.advance(30)
    assert await lease.acquire_or_renew("one", 0.0, 30.0)
    assert await lease.grant("one") == Grant("retries_lease", "one", 1)


@pytest.mark.parametrize("call", ["acquire_or_renew", "grant", "release", "state"])
async def test_a_server_that_does_not_answer_is_told_as_store_unavailable(client, lease, call):
    client["shop"]["retries_lease"].error = ConnectionFailure("no route to host")
    given = {"acquire_or_renew": ("one", 0.0, 30.0), "state": ()}.get(call, ("one",))
    with pytest.raises(StoreUnavailable, match=r"retries_lease.*no route to host"):
        await getattr(lease, call)(*given)


class OnClock(MongoRetryLease):
    """A lease on a server whose clock is the test's."""

    clock: FakeClock

    async def _server_time(self) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC) + timedelta(seconds=self.clock.monotonic())


class LeasesOnClock(Leases):
    clock: FakeClock

    def lease(self, name: str) -> Named:
        lease = OnClock(self.client, database_name=self.database, collection_name=name.replace("/", "_"))
        lease.clock = self.clock
        return Named(lease, name)


class TestOnAServer(LeaseContract):
    pytestmark = StoreContract.pytestmark
    rounding = 0.01

    @pytest_asyncio.fixture
    async def store(self, mongodb_url, clock: FakeClock):
        client = AsyncMongoClient(mongodb_url)
        store = LeasesOnClock(client, client.get_default_database().name)
        store.clock = clock
        yield store
        await client.close()

    @pytest.fixture
    def reopen(self):
        async def reopen(store: LeasesOnClock) -> LeasesOnClock:
            return store

        return reopen

    # As above.
    test_leases_are_told_apart_by_name_and_listed_by_namespace = None


async def test_on_a_server_its_own_clock_judges(mongodb_url):
    client = AsyncMongoClient(mongodb_url)
    name = client.get_default_database().name
    lease = MongoRetryLease(client, database_name=name, collection_name="retries")
    # What a client says of the time, here an hour ahead, does not count.
    assert await lease.acquire_or_renew("one", 5_000_000_000.0, 5_000_000_030.0)
    state = await lease.state()
    assert state is not None
    assert 25 < state.left < 30.1
    assert not await lease.acquire_or_renew("two", 9_000_000_000.0, 9_000_000_030.0)
    await client.close()


async def test_the_lease_row_of_another_program_is_taken_over_where_it_lies(mongodb_url):
    client = AsyncMongoClient(mongodb_url)
    rows = client.get_default_database()["retries_lease"]
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    await rows.insert_one({"_id": "retry_worker", "holder_id": "other", "expires_at": long_ago})
    lease = MongoRetryLease(
        client, database_name=client.get_default_database().name, collection_name="retries"
    )
    assert await lease.acquire_or_renew("one", 0.0, 30.0)
    assert await lease.grant("one") == Grant("retries_lease", "one", 1)
    assert [doc["holder_id"] async for doc in rows.find()] == ["one"]
    await client.close()
