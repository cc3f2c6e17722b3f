"""The simulated broker: what befalls a publish, and what is in the queue after it."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from leveret.core.errors import PublishRefused, PublishTimeout, Unroutable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Queue, Topology
from leveret.ports import World
from leveret.simulate.broker import LATE, Befalls, FaultyBroker, NetworkedTransport
from leveret.simulate.loop import VirtualClock, VirtualLoop
from leveret.testing.worlds import InlineThreads


@pytest.fixture
def loop():
    loop = VirtualLoop(random.Random(1))
    yield loop
    loop.close()


async def publish(loop: VirtualLoop, broker: FaultyBroker, befalls: Befalls, within: float) -> object:
    """What a publisher is told in so many seconds of a publish that this befalls; None: nothing."""
    world = World(
        clock=VirtualClock(loop), random=random.Random(2), new_id=map(str, itertools.count()).__next__,
        threads=lambda _number, _named: InlineThreads(),
    )  # fmt: skip
    transport = NetworkedTransport(broker, world=world, chance=random.Random(3))
    await transport.open()
    await transport.declare(Topology(queues=(Queue("shop.charge"),)))
    broker.befalls.append(befalls)
    answer = transport.send(
        Outgoing("", "shop.charge", b"{}", Properties.build(message_id="m"), mandatory=True)
    )
    await asyncio.wait([answer], timeout=within)
    told = (answer.exception() or "confirmed") if answer.done() else None
    answer.cancel()
    await transport.close()
    return told


@pytest.mark.parametrize(
    ("befalls", "within", "told", "stored"),
    [
        ("nack", 1.0, PublishRefused, False),
        ("returned", 1.0, Unroutable, False),
        ("cut before", 1.0, PublishTimeout, False),
        ("cut after", 1.0, PublishTimeout, True),
        ("channel closed", 1.0, PublishTimeout, True),
        ("confirm lost", 60.0, type(None), True),
        ("confirm late", LATE - 0.1, type(None), True),
        ("confirm late", LATE + 0.1, str, True),
    ],
)
def test_what_befalls_a_publish(loop: VirtualLoop, befalls: Befalls, within: float, told: type, stored: bool):
    broker = FaultyBroker()
    answer = loop.run_until_complete(publish(loop, broker, befalls, within))
    assert isinstance(answer, told)
    assert len(broker.messages("shop.charge")) == stored
    assert not broker.befalls
