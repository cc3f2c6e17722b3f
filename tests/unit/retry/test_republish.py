from __future__ import annotations

import asyncio
from types import SimpleNamespace

from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.retry.republish import TransportRepublisher
from leveret.testing.worlds import fake_world


class Gathering:
    """A transport that gathers what is sent, as one on a socket does."""

    sendable = True

    def __init__(self) -> None:
        self.buffered = 0
        self.handed_over = 0

    def send(self, message) -> asyncio.Future[None]:
        self.buffered += 1
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(None)
        return answer

    def flush(self) -> None:
        self.handed_over += self.buffered
        self.buffered = 0


def entry(number: int) -> RetryEntry:
    return RetryEntry(
        namespace="shop", key=f"k{number}", queue="shop.charge", exchange="", routing_key="order.placed",
        worker="charge", type="order.placed", message_id=str(number), retry_id=str(number), attempt=1, max_attempts=6,
        failure=1, reason="503", error="SoftFailure", host="a", due_at=0.0, first_failed_at=0.0, failed_at=0.0,
        body=b"{}", properties=Properties.build().raw,
    )  # fmt: skip


async def test_the_lease_is_asked_right_before_each_hand_over_also_of_a_transport_that_gathers():
    transport = Gathering()
    asked = []

    def holds() -> bool:
        asked.append((transport.handed_over, transport.buffered))
        return True

    republisher = TransportRepublisher(SimpleNamespace(transport=transport, world=fake_world()))
    told = await republisher.republish([entry(n) for n in range(3)], holds=holds, unseen=lambda *_: None)
    assert told == [None, None, None]
    assert asked == [(0, 0), (1, 0), (2, 0)]
    assert transport.handed_over == 3
