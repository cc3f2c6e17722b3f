from __future__ import annotations

import os

import pytest
from hypothesis import settings
from tests.rabbitmq_node import named_broker, running_node

# The machine that runs the tests may be busy with others; a slow example is no failing one.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "gentle: needs only a place on a broker, so it may be the one that LEVERET_TEST_AMQP_URL names",
    )


@pytest.fixture(autouse=True)
def nobodys_variables(monkeypatch):
    """No variable of the shell that runs the tests sets anything in them."""
    for name in list(os.environ):
        if name.startswith("LEVERET_") and not name.startswith("LEVERET_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def rabbitmq():
    """A RabbitMQ node of this session's own, started when the first test asks for it."""
    with running_node() as node:
        yield node


@pytest.fixture
def any_rabbitmq(request):
    """The broker that LEVERET_TEST_AMQP_URL names, for a gentle test; otherwise, and by default, the session's node.

    A test that asks for `rabbitmq` itself does something to it, and gets the node wherever it stands.
    """
    gentle = request.node.get_closest_marker("gentle") and "rabbitmq" not in request.fixturenames
    return (gentle and named_broker()) or request.getfixturevalue("rabbitmq")
