"""A connection is kept up with waits that grow, differ, and begin anew only after a quiet time (T1, D11)."""

from __future__ import annotations

import asyncio
import logging

import pytest

from leveret.core.errors import AccessRefused, BrokerUnreachable
from leveret.testing.fake_clock import FakeClock
from leveret.testing.worlds import fake_world
from leveret.transports.rabbitmq.errors import Gone
from leveret.transports.rabbitmq.link import DELAYS, STABLE, Backoff, Link


class FakeConnection:
    def __init__(self) -> None:
        self.gone = asyncio.get_running_loop().create_future()
        self.on_gone = lambda gone: None
        self.aborted = False

    def lose(self, gone: Gone) -> None:
        self.gone.set_result(gone)
        self.on_gone(gone)

    def abort(self) -> None:
        self.aborted = True
        if not self.gone.done():
            self.lose(Gone("given up", whole=True))

    async def goodbye(self) -> None:
        self.abort()


class FakeBroker:
    """Lets connections in, or not; remembers when each try was made."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.refusal: Exception | None = None
        self.tries: list[float] = []
        self.connections: list[FakeConnection] = []

    async def connect(self) -> FakeConnection:
        self.tries.append(self.clock.monotonic())
        if self.refusal is not None:
            raise self.refusal
        self.connections.append(FakeConnection())
        return self.connections[-1]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker(clock):
    return FakeBroker(clock)


async def nothing(_):
    pass


@pytest.fixture
async def link(broker, clock):
    link = Link(
        broker.connect, world=fake_world(clock=clock), name="a link", built=nothing, lost=lambda gone: None
    )
    await link.open()
    yield link
    await link.close()


def test_waits_grow_to_half_a_minute_and_lie_between_half_and_all_of_it():
    backoff = Backoff(fake_world())
    for delay in (*DELAYS, 30.0, 30.0):
        assert delay / 2 <= backoff.next() <= delay


def test_200_clients_that_lose_the_broker_at_once_come_back_spread_out():
    first = [Backoff(fake_world(seed)).next() for seed in range(200)]
    # No tenth of the time holds a fifth of them.
    assert max(sum(0.5 + n / 20 <= wait < 0.55 + n / 20 for wait in first) for n in range(10)) < 40


def test_a_broker_that_flaps_does_not_bring_back_the_first_wait():
    clock = FakeClock()
    backoff = Backoff(fake_world(clock=clock))
    for delay in (1.0, 2.0, 4.0, 8.0):
        assert delay / 2 <= backoff.next() <= delay
        backoff.up()


async def test_a_quiet_time_does(clock):
    backoff = Backoff(fake_world(clock=clock))
    for _ in range(5):
        backoff.next()
    backoff.up()
    await clock.advance(STABLE)
    assert 0.5 <= backoff.next() <= 1.0


async def test_tries_are_made_after_the_waits_until_one_works(link, broker, clock):
    broker.refusal = BrokerUnreachable("down")
    broker.connections[0].lose(Gone("lost", whole=True))
    assert not link.up
    await clock.advance(200)
    waits = [
        after - before for before, after in zip([0.0, *broker.tries[1:]], broker.tries[1:], strict=False)
    ]
    assert all(delay / 2 <= wait <= delay for delay, wait in zip(DELAYS, waits, strict=False))
    assert len(waits) >= len(DELAYS)
    broker.refusal = None
    await clock.advance(31)
    assert link.up


async def test_who_is_refused_waits_the_longest_from_there_on(link, broker, clock, caplog):
    broker.refusal = AccessRefused("wrong password")
    broker.connections[0].lose(Gone("lost", whole=True))
    await clock.advance(100)
    # After the first wait one try, and from then on one each 15 to 30 seconds.
    assert len(broker.tries) <= 1 + 1 + 7
    assert {record.levelno for record in caplog.records if "wrong password" in record.message} == {
        logging.ERROR
    }


async def test_who_asks_right_after_a_loss_gets_the_next_connection(link, broker, clock):
    broker.connections[0].lose(Gone("lost", whole=True))
    asking = asyncio.create_task(link.arrived())
    await clock.advance(1)
    assert await asking is broker.connections[1]


async def test_who_asks_when_a_try_has_failed_is_told_why(link, broker, clock):
    broker.refusal = BrokerUnreachable("nobody there")
    broker.connections[0].lose(Gone("lost", whole=True))
    asking = asyncio.create_task(link.arrived())
    await clock.advance(1)
    for ask in (asking, link.arrived()):
        with pytest.raises(BrokerUnreachable, match="nobody there"):
            await ask


async def test_who_asks_when_it_is_closed_is_told_so(link, broker):
    broker.connections[0].lose(Gone("lost", whole=True))
    asking = asyncio.create_task(link.arrived())
    await asyncio.sleep(0)
    await link.close()
    for ask in (asking, link.arrived()):
        with pytest.raises(BrokerUnreachable):
            await ask


async def test_a_connection_on_which_nothing_can_be_built_is_given_up_and_another_one_made(broker, clock):
    faults = [None, Gone("403 no", code=403), RuntimeError("a bug"), None]

    async def build(connection):
        if (fault := faults[len(broker.connections) - 1]) is not None:
            raise fault

    link = Link(
        broker.connect, world=fake_world(clock=clock), name="a link", built=build, lost=lambda gone: None
    )
    await link.open()
    broker.connections[0].lose(Gone("lost", whole=True))
    await clock.advance(10)
    assert link.connection is broker.connections[3]
    assert [connection.aborted for connection in broker.connections] == [False, True, True, False]
    await link.close()


async def test_a_first_connection_on_which_nothing_can_be_built_is_an_error(broker, clock):
    async def build(connection):
        raise Gone("541 INTERNAL_ERROR", code=541, whole=True)

    link = Link(
        broker.connect, world=fake_world(clock=clock), name="a link", built=build, lost=lambda gone: None
    )
    with pytest.raises(BrokerUnreachable, match="541"):
        await link.open()
    assert broker.connections[0].aborted
