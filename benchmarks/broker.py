"""The RabbitMQ broker of one run: a private node, or the one that LEVERET_TEST_AMQP_URL names."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache

import pika
from tests.rabbitmq_node import installed, running_node

from leveret import Leveret
from leveret.cli.apps import declared


class NoBroker(Exception):
    """There is no RabbitMQ to measure on."""


@cache
def url() -> str:
    """Its address, the same in the whole run; a private node is started when first asked for, and ended at exit.

    Raises:
        NoBroker: RabbitMQ is not installed, and no other was named.
    """
    named = os.environ.get("LEVERET_TEST_AMQP_URL")
    if named:
        return named
    if not installed():
        raise NoBroker("needs RabbitMQ: make services, or name one in LEVERET_TEST_AMQP_URL")
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(running_node()).url


@contextmanager
def swept(app: Leveret) -> Iterator[None]:
    """Delete afterwards all that *app* has on RabbitMQ; a broker in memory goes with its app."""
    found = declared(app)
    try:
        yield
    finally:
        if found.config.broker is not None and found.config.broker.scheme != "memory":
            with closing(pika.BlockingConnection(pika.URLParameters(url()))) as connection:
                channel = connection.channel()
                for queue in found.topology.queues:
                    channel.queue_delete(queue.name)
                for exchange in found.topology.exchanges:
                    channel.exchange_delete(exchange.name)
