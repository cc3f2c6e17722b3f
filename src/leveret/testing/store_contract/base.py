"""What all parts of the suite build on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from leveret.testing.fake_clock import FakeClock

if TYPE_CHECKING:
    from leveret.ports import Store


class Reopen(Protocol):
    """Closes a store, and returns another one, open, on the same data."""

    async def __call__(self, store: Store) -> Store:
        """Close it, and open another one."""


class ContractBase:
    """The clock, and how exact it is."""

    #: Seconds that a time may be off: what a float of today's epoch seconds rounds to, and a store may.
    rounding = 0.001

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock that the store goes by."""
        return FakeClock()
