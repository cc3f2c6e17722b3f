"""The PostgreSQL server of one run: a private one, or the one that LEVERET_TEST_POSTGRES_URL names."""

from __future__ import annotations

import atexit
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import psycopg
from benchmarks.broker import NoBroker
from tests.postgres_cluster import installed, running_cluster


class NoPostgres(NoBroker):
    """There is no PostgreSQL to measure on."""


@cache
def url() -> str:
    """Its address, the same in the whole run; a private server is started when first asked for, and ended at exit.

    Raises:
        NoPostgres: PostgreSQL is not installed, and no other was named.
    """
    named = os.environ.get("LEVERET_TEST_POSTGRES_URL")
    if named:
        return named
    if not installed():
        raise NoPostgres("needs PostgreSQL: make services, or name one in LEVERET_TEST_POSTGRES_URL")
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(running_cluster(durable=True, on_disk=True)).url


@contextmanager
def schema() -> Iterator[str]:
    """The URL of a schema of one trial's own, which is gone afterwards."""
    name = f"bench_{uuid.uuid4().hex[:8]}"
    try:
        yield f"{url()}?schema={name}"
    finally:
        with psycopg.connect(url(), autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@contextmanager
def connected(store: str) -> Iterator[psycopg.Connection]:
    """A connection of a program that knows nothing of leveret, in that schema; each statement is committed."""
    plain, _, name = store.partition("?schema=")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        connection.execute(f"SET search_path TO {name}")
        yield connection
