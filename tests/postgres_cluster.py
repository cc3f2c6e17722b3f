"""PostgreSQL servers of a test session's own: on a free port, in a folder that is gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from leveret.core.errors import ConfigError
from leveret.torture.postgres import Postgres, find_postgres

_NUMBERS = count(1)


class Cluster(Postgres):
    """A PostgreSQL server of our own that gives each test a schema, and knows whether it runs as tests expect."""

    #: Whether it does.
    plain = False

    def schema(self) -> str:
        """A name that no other test has."""
        return f"test_{next(_NUMBERS)}"

    def start(self, **settings: str) -> None:
        super().start(**settings)
        self.plain = not settings

    def kill(self) -> None:
        super().kill()
        self.plain = False

    def stop(self) -> None:
        super().stop()
        self.plain = False


def installed() -> bool:
    """Whether servers can be started here."""
    try:
        find_postgres()
    except ConfigError:
        return False
    return True


def need_postgres() -> None:
    """Skip the test where no PostgreSQL can be had; in CI that is a failure."""
    if not installed():
        if os.environ.get("CI"):
            pytest.fail("needs PostgreSQL: make services")
        pytest.skip("needs PostgreSQL: make services")


@contextmanager
def running_cluster(*, durable: bool, on_disk: bool = False) -> Iterator[Cluster]:
    """A server that runs, and is gone afterwards with all its data.

    Args:
        durable: it syncs what it commits.
        on_disk: in /var/tmp, for /tmp lies in memory on many systems, where a sync costs nothing.
    """
    need_postgres()
    folder = Path(tempfile.mkdtemp(prefix="leveret-postgres-", dir="/var/tmp" if on_disk else None))
    cluster = None
    try:
        cluster = Cluster(folder, durable=durable)
        cluster.start()
        yield cluster
    finally:
        if cluster is not None:
            cluster.end()
        shutil.rmtree(folder, ignore_errors=True)
