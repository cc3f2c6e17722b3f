from __future__ import annotations

import gc
import os
import uuid
import warnings

import pytest
from hypothesis import settings
from pymongo import MongoClient
from tests.ferretdb_server import running_ferretdb, with_database
from tests.postgres_cluster import running_cluster
from tests.rabbitmq_log import nothing_given_up_was_used
from tests.rabbitmq_node import named_broker, running_node
from tests.rabbitmq_scene import QUEUE_TYPE
from tests.redis_server import running_redis

# For the test of the plug-in that users' tests get.
pytest_plugins = ("pytester",)

# The machine that runs the tests may be busy with others; a slow example is no failing one.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "gentle: needs only a place on a broker, so it may be the one that LEVERET_TEST_AMQP_URL names",
    )


@pytest.fixture(autouse=True)
def nobodys_variables(monkeypatch, request):
    """No variable of the shell that runs the tests sets anything in them, but the type of queues on RabbitMQ."""
    for name in list(os.environ):
        if name.startswith("LEVERET_") and not name.startswith("LEVERET_TEST_"):
            monkeypatch.delenv(name)
    if QUEUE_TYPE is not None and {"rabbitmq", "any_rabbitmq"} & set(request.fixturenames):
        monkeypatch.setenv("LEVERET_QUEUE_TYPE", QUEUE_TYPE)


@pytest.fixture(scope="session")
def rabbitmq():
    """A RabbitMQ node of this session's own, started when the first test asks for it."""
    with running_node() as node:
        yield node
        nothing_given_up_was_used(node)


@pytest.fixture
def any_rabbitmq(request):
    """The broker that LEVERET_TEST_AMQP_URL names, for a gentle test; otherwise, and by default, the session's node.

    A test that asks for `rabbitmq` itself does something to it, and gets the node wherever it stands.
    """
    gentle = request.node.get_closest_marker("gentle") and "rabbitmq" not in request.fixturenames
    return (gentle and named_broker()) or request.getfixturevalue("rabbitmq")


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of this session's own, started when the first test asks for it; it syncs nothing."""
    with running_cluster(durable=False) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mongodb():
    """The URL of the MongoDB that LEVERET_TEST_MONGODB_URL names, else of a FerretDB of this session's own."""
    given = os.environ.get("LEVERET_TEST_MONGODB_URL")
    if given:
        yield given
        return
    with running_ferretdb() as server:
        yield server.url


@pytest.fixture
def mongodb_url(mongodb):
    """The URL of a database that nobody else has; it is gone afterwards."""
    name = f"leveret_test_{uuid.uuid4().hex}"
    yield with_database(mongodb, name)
    with MongoClient(mongodb) as client:
        client.drop_database(name)


@pytest.fixture(scope="session")
def redis():
    """A Redis of this session's own, started when the first test asks for it."""
    with running_redis() as server:
        yield server


@pytest.fixture
def cut_off():
    """For tests that cut pymongo off: it leaves a socket to the collector where it is cancelled while it connects."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
