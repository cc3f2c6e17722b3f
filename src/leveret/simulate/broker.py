"""The broker of a simulation: the memory broker with a network before it, and faults at the publishes that come."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from leveret.core.errors import Unroutable
from leveret.core.message import Outgoing
from leveret.ports import World
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker
from leveret.transports.memory_connection import Answer, Connection

#: Seconds after which an answer is late for every publish: their deadline is 10 s.
LATE = 12.0
#: What may befall the next publish.
Befalls = Literal["confirm lost", "confirm late", "nack", "returned", "cut before", "cut after"]


class FaultyBroker(MemoryBroker):
    """A memory broker whose next publishes may be told to fail in some way.

    Attributes:
        befalls: what befalls the next mandatory publishes, one after the other.
    """

    def __init__(self) -> None:
        super().__init__("memory://simulated")
        self.befalls: Final[deque[Befalls]] = deque()

    def publish(self, connection: Connection, message: Outgoing, answer: Answer) -> None:
        """Take a publish, or have befall it what is to."""
        if not self.befalls or not message.mandatory or self.blocked:
            super().publish(connection, message, answer)
            return
        loop = connection.loop
        befalls = self.befalls.popleft()
        match befalls:
            case "nack":
                self.refuse_next()
                super().publish(connection, message, answer)
            case "returned":
                connection.answers.append((answer, Unroutable("312 NO_ROUTE, for no reason that holds")))
                connection.schedule()
            case "cut before":
                connection.unanswered.append(answer)
                loop.call_soon(self.lose, connection)
            case _:
                self.lose_next_confirm()
                super().publish(connection, message, answer)
                # A publish that the broker refuses is told so, and leaves the next one its confirm.
                self._confirms_to_lose = 0
                if befalls == "cut after":
                    loop.call_soon(self.lose, connection)
                elif befalls == "confirm late":
                    loop.call_later(LATE, self._answer, connection, answer)

    def _answer(self, connection: Connection, answer: Answer) -> None:
        if connection.open and answer in connection.unanswered:
            connection.unanswered.remove(answer)
            connection.answers.append((answer, None))
            connection.schedule()

    def lose_those_who_wait(self) -> None:
        """Lose the connections that have publishes without an answer."""
        for connection in list(self._connections):
            if connection.unanswered:
                self.lose(connection)


class NetworkedTransport(MemoryTransport):
    """A memory transport whose broker is some milliseconds away. What it says arrives in order, each after a while.

    Args:
        broker: to talk to.
        world: of the process.
        chance: where the milliseconds come from.
    """

    def __init__(self, broker: FaultyBroker, *, world: World, chance: random.Random) -> None:
        super().__init__(broker, world=world)
        self._chance: Final = chance
        #: What the broker calls is this process's doing, whoever made the broker call it.
        self._context: Final = contextvars.copy_context()

    def _connect(self) -> None:
        super()._connect()
        connection = self._connection
        if connection is None:
            return
        loop, context, arrives = connection.loop, self._context, 0.0

        def post(call: Callable[[], object]) -> None:
            nonlocal arrives
            arrives = max(arrives, loop.time() + self._chance.uniform(0.0002, 0.003))
            loop.call_at(arrives, call, context=context)

        connection.post = post  # type: ignore[method-assign]

    def _come_back(self) -> None:
        """A lost connection is noticed and made again after a while, not in the loop's next turn."""
        loop, wait = asyncio.get_running_loop(), self._chance.uniform(0.05, 0.5)
        loop.call_later(wait, super()._come_back, context=self._context)
