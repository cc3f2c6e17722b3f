"""D11: waits before reconnects grow, are spread, have a bound, and begin again only after a connection that lasted."""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.rabbitmq.shop import Shop
from tests.rabbitmq_scene import HurriedClock, until

from leveret.core.urls import parse_broker
from leveret.runtime.world import system_world
from leveret.testing.fake_clock import FakeClock
from leveret.testing.worlds import fake_world
from leveret.transports.rabbitmq.link import STABLE, Backoff
from leveret.transports.rabbitmq.transport import RabbitTransport

DELAYS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class NotingClock(HurriedClock):
    """Notes how long somebody wanted to sleep, and hurries."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await super().sleep(seconds)


@pytest.fixture
def usual_delays(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.transports.rabbitmq.link.DELAYS", DELAYS)


def test_d11_200_clients_of_one_broker_spread_their_first_try_over_half_a_second():
    firsts = sorted(Backoff(fake_world(seed)).next() for seed in range(200))
    assert 0.5 <= firsts[0] <= firsts[-1] <= 1.0
    # In each twentieth of a second some, and nowhere a crowd.
    crowds = [sum(at <= first < at + 0.05 for first in firsts) for at in (0.5 + n * 0.05 for n in range(10))]
    assert 4 <= min(crowds) <= max(crowds) <= 40


async def test_d11_a_connection_that_lasts_a_second_does_not_begin_the_waits_again_and_one_that_lasts_does():
    clock = FakeClock()
    backoff = Backoff(fake_world(0, clock))
    waits = []
    for _ in range(8):
        waits.append(backoff.next())
        backoff.up()
        await clock.advance(1)
    for delay, wait in zip((*DELAYS, 30.0, 30.0), waits, strict=True):
        assert delay / 2 <= wait <= delay
    backoff.up()
    await clock.advance(STABLE)
    assert backoff.next() <= 1.0


async def test_d11_on_a_broker_that_flaps_the_waits_of_a_transport_grow_up_to_their_bound(
    shop: Shop, usual_delays
):
    clock = NotingClock()
    world = system_world()
    object.__setattr__(world, "clock", clock)
    transport = RabbitTransport(parse_broker(shop.url(), "the test"), world=world)
    await transport.open()
    async with asyncio.timeout(30):
        for _ in range(7):
            await until(lambda: transport.state == "connected")
            shop.broker.proxy.cut()
            await until(lambda: transport.state != "connected")
    await transport.close()
    # Two connections, each with waits of its own.
    longest = sorted(clock.asked)[-2:]
    assert all(15.0 <= wait <= 30.0 for wait in longest)
    assert max(clock.asked) <= 30.0
    for delay in DELAYS:
        assert any(delay / 2 <= wait <= delay for wait in clock.asked)
