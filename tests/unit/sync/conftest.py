from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from leveret.sync import RabbitMQTransport
from leveret.transports.memory_broker import MemoryBroker

_numbers = itertools.count()


class Scene:
    """A broker in memory that a test looks at from the side, and transports on it."""

    def __init__(self) -> None:
        self.name = f"sync-{next(_numbers)}"
        self.broker = MemoryBroker.named(self.name)
        self.url = f"memory://{self.name}"
        self._transports: list[RabbitMQTransport] = []
        self._loops: list[tuple[threading.Event, threading.Thread]] = []

    def transport(self, **options) -> RabbitMQTransport:
        """One that is closed in the end."""
        transport = RabbitMQTransport(self.url, **{"namespace": "trex", "timeout": 1, **options})
        self._transports.append(transport)
        return transport

    def loop(self, target: Callable[..., None], *arguments) -> tuple[threading.Event, threading.Thread]:
        """Run a consumer loop in a thread; its stop comes last among the arguments."""
        stop = threading.Event()
        thread = threading.Thread(target=target, args=(*arguments, stop))
        thread.start()
        self._loops.append((stop, thread))
        return stop, thread

    def dead(self) -> list:
        """What lies in the dead-letter queue."""
        return self.broker.messages("trex.events.dlq")

    def close(self) -> None:
        self.broker.unblock()
        if not self.broker.running:
            self.broker.start()
        for stop, _ in self._loops:
            stop.set()
        for _, thread in self._loops:
            thread.join(10)
        for transport in self._transports:
            transport.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def wait_for(condition: Callable[[], object], seconds: float = 10) -> None:
    """Wait until *condition* holds, which no event tells."""
    never = threading.Event()
    for _ in range(int(seconds / 0.005)):
        if condition():
            return
        never.wait(0.005)
    raise AssertionError("it never happened")
