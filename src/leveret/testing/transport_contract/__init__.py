"""What every transport keeps: a suite of tests to inherit, for the transports of leveret and for those of others."""

# ruff: noqa: E402 - the asserts of what is imported below are rewritten first

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

# Before the tests are imported, so that a failing assert shows its values in a user's run as well.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("publishing", "receiving", "recovery", "declaring", "calling"))
)

from leveret.ports import Transport
from leveret.testing.transport_contract.calling import Calling
from leveret.testing.transport_contract.declaring import Declaring
from leveret.testing.transport_contract.publishing import Publishing
from leveret.testing.transport_contract.receiving import Receiving
from leveret.testing.transport_contract.recovery import Recovery
from leveret.testing.transport_contract.scene import (
    BLOCK,
    EXACT_BYTES,
    LOSE_CONFIRM,
    REFUSE,
    REPLIES_RETURNED,
    RESTART,
    TIME,
    BrokerHarness,
    Inbox,
    Scene,
)

__all__ = [
    "TransportContract", "BrokerHarness", "Scene", "Inbox",
    "BLOCK", "EXACT_BYTES", "LOSE_CONFIRM", "REFUSE", "REPLIES_RETURNED", "RESTART", "TIME",
]  # fmt: skip


class TransportContract(Publishing, Receiving, Recovery, Declaring, Calling):
    """The contract of `leveret.ports.Transport`, as tests.

    A subclass gives two fixtures: `broker`, a `BrokerHarness`, and `connect`, which opens a new transport to it at each
    call and closes all of them in the end. No test sleeps: what no event tells is asked for, with `BrokerHarness.turn`
    in between.

    Example:
        ```
        class TestMyTransport(TransportContract):
            @pytest.fixture
            def broker(self): ...

            @pytest_asyncio.fixture
            async def connect(self, broker): ...
        ```
    """

    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture
    async def scene(
        self, broker: BrokerHarness, connect: Callable[[], Awaitable[Transport]]
    ) -> AsyncIterator[Scene]:
        """What each test has at hand."""
        scene = Scene(broker, connect)
        yield scene
        await scene.clear()
