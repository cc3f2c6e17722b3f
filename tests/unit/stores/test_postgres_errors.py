from __future__ import annotations

import psycopg
import pytest

from leveret.core.errors import LeaseLost, StoreRefused, StoreUnavailable
from leveret.stores.postgres.errors import translated

DISPLAY = "postgresql://shop:***@db/shop"


@pytest.mark.parametrize("code", ["22001", "22003", "22P05", "23502", "21000", "54000"])
def test_errors_of_the_data_are_refusals(code: str):
    error = translated(psycopg.errors.lookup(code)("no"), DISPLAY)
    assert type(error) is StoreRefused


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("08006", "tries again by itself"),
        ("25006", "takes no writes"),
        ("28P01", "password"),
        ("3D000", "createdb"),
        ("40P01", "tries again by itself"),
        ("42501", "choosing-a-store"),
        ("42P01", "dropped"),
        ("53100", "disk is full"),
        ("53300", "max_connections"),
        ("57014", "longer than leveret waits"),
        ("57P01", "connects again"),
        ("57P03", "connects again"),
        ("XX000", "in brackets"),
    ],
)
def test_all_others_are_the_servers_and_say_what_to_do(code: str, words: str):
    error = translated(psycopg.errors.lookup(code)("what the server says"), DISPLAY)
    assert type(error) is StoreUnavailable
    assert DISPLAY in str(error)
    assert "what the server says" in str(error)
    assert words in str(error).partition("What to do: ")[2]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (psycopg.OperationalError("the connection is lost"), StoreUnavailable),
        (psycopg.DataError("cannot be dumped"), StoreRefused),
        (ConnectionRefusedError("nobody there"), StoreUnavailable),
        (TimeoutError(), StoreUnavailable),
        (OverflowError("too large"), StoreRefused),
        (MemoryError(), StoreUnavailable),
    ],
)
def test_errors_without_a_code_are_told_apart_too(error: Exception, kind: type[Exception]):
    assert type(translated(error, DISPLAY)) is kind


@pytest.mark.parametrize("error", [LeaseLost("gone"), KeyError("a fault of ours")])
def test_what_is_no_error_of_postgresql_stays_as_it_is(error: Exception):
    assert translated(error, DISPLAY) is error
