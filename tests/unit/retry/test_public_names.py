"""The face of leveret.retry: every public name is there, and loads nothing that was not asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import leveret.retry


def test_every_public_name_is_there():
    assert set(leveret.retry.__all__) == {
        "RETRY_WORKER_TYPE",
        "RetryWorker",
        "RetryWorkerRunner",
        "RetryLeaseInterface",
        "RetryLeaseTerm",
        "MemoryRetryLease",
        "MongoRetryLease",
        "PostgresRetryLease",
        "SqliteRetryLease",
    }
    for name in leveret.retry.__all__:
        assert getattr(leveret.retry, name) is not None
        assert name in dir(leveret.retry)
    assert leveret.retry.RETRY_WORKER_TYPE == "retry_worker"


def test_another_name_is_told_as_python_tells_it():
    with pytest.raises(AttributeError, match="no attribute 'RedisRetryLease'"):
        _ = leveret.retry.RedisRetryLease


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_retry_worker_loads_no_driver_and_no_settings():
    loaded = "[name for name in ('psycopg', 'pymongo', 'pydantic', 'sqlite3', 'pika') if name in sys.modules]"
    assert python(f"import sys; from leveret.retry import RetryWorker; print({loaded})") == "[]"


def test_without_pymongo_its_lease_names_the_install_line_and_the_others_work():
    code = """
import sys
sys.modules["pymongo"] = sys.modules["pymongo.errors"] = None
from leveret.retry import MemoryRetryLease, SqliteRetryLease
from leveret import MissingExtra
try:
    from leveret.retry import MongoRetryLease
except MissingExtra as error:
    print(error)
"""
    assert "pip install 'leveret[mongodb]'" in python(code)


def test_without_psycopg_the_lease_and_the_store_name_the_install_line():
    code = """
import sys
sys.modules["psycopg"] = None
from leveret import MissingExtra
from leveret.core.urls import parse_store
from leveret.runtime.wiring import make_store
from leveret.runtime.world import system_world
try:
    from leveret.retry import PostgresRetryLease
except MissingExtra as error:
    print(error)
try:
    make_store(parse_store("postgresql://shop:s3cret@db/shop", "here"), system_world())
except MissingExtra as error:
    print(error)
"""
    said = python(code)
    assert said.count("pip install 'leveret[postgres]'") == 2
    assert "s3cret" not in said
