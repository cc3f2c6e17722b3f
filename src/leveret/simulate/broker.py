"""The broker of a simulation: the memory broker with a network before it, and faults at the publishes that come."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from leveret.core.errors import PublishError, PublishRefused, PublishTimeout, Unroutable
from leveret.core.message import Outgoing
from leveret.ports import World
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker
from leveret.transports.memory_connection import Answer, Connection

#: Seconds after which an answer is late for every publish: their deadline is 10 s.
LATE = 12.0
#: What may befall the next publish.
Befalls = Literal[
    "confirm lost", "confirm late", "nack", "returned", "cut before", "cut after", "channel closed"
]
#: A broker that failed within closes the channel with this reply code of AMQP 0-9-1.
INTERNAL_ERROR = 541


class FaultyBroker(MemoryBroker):
    """A memory broker whose next publishes may be told to fail in some way.

    Attributes:
        befalls: what befalls the next mandatory publishes, one after the other.
        befalls_requests: what befalls the next requests.
    """

    def __init__(self) -> None:
        super().__init__("memory://simulated")
        self.befalls: Final[deque[Befalls]] = deque()
        self.befalls_requests: Final[deque[Befalls]] = deque()

    def publish(self, connection: Connection, message: Outgoing, answer: Answer) -> None:
        """Take a publish, or have befall it what is to."""
        coming = self.befalls
        if self.befalls_requests and _is_request(connection, message):
            coming = self.befalls_requests
        if not coming or not message.mandatory or self.blocked:
            super().publish(connection, message, answer)
            return
        loop = connection.loop
        befalls = coming.popleft()
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
                    loop.call_later(LATE, self._answer, connection, answer, None)
                elif befalls == "channel closed":
                    self._answer(connection, answer, _closed(connection, message))

    def _answer(self, connection: Connection, answer: Answer, error: PublishError | None) -> None:
        if connection.open and answer in connection.unanswered:
            connection.unanswered.remove(answer)
            connection.answers.append((answer, error))
            connection.schedule()

    def lose_those_who_wait(self) -> None:
        """Lose the connections that have publishes without an answer."""
        for connection in list(self._connections):
            if connection.unanswered:
                self.lose(connection)


def _is_request(connection: Connection, message: Outgoing) -> bool:
    """Whether it was sent on a call channel of that connection, and is to be answered there."""
    return message.properties.reply_to in connection.addresses


def _closed(connection: Connection, message: Outgoing) -> PublishError:
    """What a client says of a publish whose channel was closed before its confirm came."""
    words = f"{INTERNAL_ERROR} INTERNAL_ERROR, after it was stored"
    if _is_request(connection, message):
        # A call channel hands the code on to its calls, and is gone.
        return PublishRefused(words, code=INTERNAL_ERROR)
    return PublishTimeout(words)


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
