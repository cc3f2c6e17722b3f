"""What every store keeps: a suite of tests to inherit, for the stores of leveret and for those of others."""

# ruff: noqa: E402 - the asserts of what is imported below are rewritten first

from __future__ import annotations

import pytest

# A failed assert of the suite then says what it compared, as one in a test file does.
pytest.register_assert_rewrite(
    *(
        f"leveret.testing.store_contract.{name}"
        for name in ("retries", "due", "acts_on_retries", "letters", "others")
    )
)

from leveret.testing.store_contract.acts_on_retries import ActsOnRetriesContract
from leveret.testing.store_contract.due import DueContract
from leveret.testing.store_contract.letters import LetterContract
from leveret.testing.store_contract.others import LeaseContract, OtherContract
from leveret.testing.store_contract.retries import RetryContract
from leveret.testing.store_contract.rows import a_letter, an_entry

__all__ = ["StoreContract", "an_entry", "a_letter"]


class StoreContract(
    RetryContract, DueContract, ActsOnRetriesContract, LetterContract, LeaseContract, OtherContract
):
    """The contract of `leveret.ports.Store`, as tests.

    A subclass gives a fixture `store`, empty and open, built on the fixture `clock` (a `FakeClock`), and a fixture
    `reopen`: called with the store, it closes it and returns another one, open, on the same data. A store that has a
    clock of its own overrides `clock` with one whose `advance` moves that, and sets `rounding` to what it may be off.

    Example:
        ```
        class TestMyStore(StoreContract):
            @pytest_asyncio.fixture
            async def store(self, clock): ...

            @pytest.fixture
            def reopen(self, clock): ...
        ```
    """

    pytestmark = pytest.mark.asyncio
