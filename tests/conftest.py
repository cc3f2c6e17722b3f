from __future__ import annotations

import os

import pytest
from hypothesis import settings
from tests.rabbitmq_node import running_node

# The machine that runs the tests may be busy with others; a slow example is no failing one.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")


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
