from __future__ import annotations

import pytest
from pymongo.errors import AutoReconnect, DocumentTooLarge

from leveret.core.errors import LeaseLost, StoreRefused, StoreUnavailable
from leveret.stores.mongodb.driver import translated

DISPLAY = "mongodb://shop:***@db/shop"


def test_a_shortage_of_memory_is_the_stores_for_a_while_and_no_fault_of_the_data():
    ours = translated(MemoryError("too large for us"), DISPLAY)
    assert type(ours) is StoreUnavailable
    assert DISPLAY in str(ours)
    assert "once the shortage is over" in str(ours)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DocumentTooLarge("BSON document too large (17000000 bytes)"), StoreRefused),
        (OverflowError("MongoDB can only handle up to 8-byte ints"), StoreRefused),
        (AutoReconnect("connection closed"), StoreUnavailable),
    ],
)
def test_errors_of_the_data_and_of_the_server_are_told_apart(error: Exception, kind: type[Exception]):
    assert type(translated(error, DISPLAY)) is kind


@pytest.mark.parametrize("error", [LeaseLost("gone"), KeyError("a fault of ours")])
def test_what_is_no_error_of_mongodb_stays_as_it_is(error: Exception):
    assert translated(error, DISPLAY) is error
