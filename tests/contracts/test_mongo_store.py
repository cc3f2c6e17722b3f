"""The MongoDB store keeps the store contract: on FerretDB, and on a real MongoDB where one is given."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from types import MethodType

import pytest
import pytest_asyncio
from pymongo import MongoClient
from tests.ferretdb_server import with_database

from leveret.stores.mongodb import MongoStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.store_contract import StoreContract
from leveret.testing.store_contract.acts_on_retries import ActsOnRetriesContract
from leveret.testing.store_contract.due import DueContract
from leveret.testing.store_contract.letters import LetterContract
from leveret.testing.store_contract.others import OtherContract
from leveret.testing.store_contract.retries import RetryContract


def on_clock(store: MongoStore, clock: FakeClock) -> MongoStore:
    """The store, with the test's clock for the server's own, which no wall clock of a client moves."""
    started = clock.now() - clock.monotonic()

    async def now() -> int:
        return round((started + clock.monotonic()) * 1000)

    store.server.now = now
    return store


@pytest.fixture(scope="module")
def database(mongodb):
    """A database for all tests of this file: to make its indexes takes longer than a test."""
    name = f"leveret_test_{uuid.uuid4().hex}"
    with MongoClient(mongodb) as client:
        yield client[name], with_database(mongodb, name)
        client.drop_database(name)


@pytest.fixture
def url(database):
    """Its URL; all but the schema is gone from it."""
    lying, url = database
    for name in lying.list_collection_names():
        if name != "leveret_meta":
            lying[name].delete_many({})
    return url


class OnMongoDB:
    """The fixtures of the contract."""

    #: Dates lie in milliseconds, and a lease two of them longer than asked for.
    rounding = 0.004

    def made(self, url: str, clock: FakeClock) -> MongoStore:
        return on_clock(MongoStore(url), clock)

    @pytest.fixture
    def opened(self, request):
        if "gives_up" in request.node.name:
            request.getfixturevalue("cut_off")
        return []

    @pytest_asyncio.fixture
    async def store(self, url: str, clock: FakeClock, opened) -> AsyncIterator[MongoStore]:
        store = self.made(url, clock)
        await store.open()
        opened.append(store)
        yield store
        for each in opened:
            await each.close()

    @pytest.fixture
    def reopen(self, url: str, clock: FakeClock, opened):
        async def reopen(store: MongoStore) -> MongoStore:
            await store.close()
            again = self.made(url, clock)
            await again.open(create=False)
            opened.append(again)
            return again

        return reopen


class TestMongoStore(OnMongoDB, StoreContract):
    pass


async def _one_after_the_other(server, client, ask):
    async with server._alone(), client.start_session() as session:
        return await ask(session)


class InSessions(MongoStore):
    """A store that does what it does on a replica set, each call in a session, where there are no transactions.

    Nothing is undone where a call fails; everything else is as it is there: what is asked, and on which conditions.
    """

    async def open(self, *, create: bool = True) -> None:
        await super().open(create=create)
        self.server.transactions = self.server.atomic = True
        self.server._in_transaction = MethodType(_one_after_the_other, self.server)


class TestAsOnAReplicaSet(
    OnMongoDB, RetryContract, DueContract, ActsOnRetriesContract, LetterContract, OtherContract
):
    pytestmark = StoreContract.pytestmark

    def made(self, url: str, clock: FakeClock) -> MongoStore:
        return on_clock(InSessions(url), clock)
