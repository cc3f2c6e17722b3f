"""Which queues of the memory broker a message reaches: exchanges, bindings, and how their keys match."""

from __future__ import annotations

from typing import Final

from leveret.core.errors import BadPayload, NotFound, PublishRefused
from leveret.core.properties import check_short
from leveret.core.topology import Difference, RMQExchangeConfig
from leveret.transports.memory_queue import Queue
from leveret.transports.queue_mismatch import missing, notes_of, other_type

#: How many routes are remembered: routing keys may be as many as messages.
_MOST_ROUTES: Final = 4096


class _Exchange:
    def __init__(self, config: RMQExchangeConfig) -> None:
        self.config = config
        #: Queue and key of each, in the order they were made.
        self.bindings: dict[tuple[str, str], None] = {}

    def takers(self, key: str) -> list[str]:
        """The queues bound for *key*; some may be named twice."""
        kind = self.config.type
        # Our bindings carry no arguments, and a headers exchange that asks for none sends everything everywhere.
        if kind in {"fanout", "headers"}:
            return [queue for queue, _ in self.bindings]
        if kind == "direct":
            return [queue for queue, bound in self.bindings if bound == key]
        return [queue for queue, bound in self.bindings if bound == key or topic_matches(bound, key)]


class Routing:
    """Exchanges, queues by name, and the bindings between them. Called with the broker's lock held."""

    def __init__(self) -> None:
        #: In the order they were declared.
        self.queues: dict[str, Queue] = {}
        self._exchanges: dict[str, _Exchange] = {}
        self._known: dict[tuple[str, str], tuple[Queue, ...]] = {}

    def declare_exchange(self, config: RMQExchangeConfig) -> None:
        """Make sure that there is such an exchange.

        Raises:
            QueueMismatch: it exists with another type.
        """
        if config.name in self._exchanges:
            notes_of(self.compared(config))
        else:
            self._exchanges[config.name] = _Exchange(config)
            self._known.clear()

    def compared(self, config: RMQExchangeConfig) -> list[Difference]:
        """How the exchange of that name differs."""
        there = self._exchanges.get(config.name)
        if there is None:
            return [missing("exchange", config.name)]
        if there.config.type == config.type:
            return []
        return [other_type(config, there.config.type)]

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange with its bindings, where there is one."""
        self._exchanges.pop(name, None)
        self._known.clear()

    def has_exchange(self, name: str) -> bool:
        """Whether a message can be published there; the default exchange is always there."""
        return not name or name in self._exchanges

    def add(self, queue: Queue) -> None:
        """Have a new queue."""
        self.queues[queue.name] = queue
        self._known.clear()

    def remove(self, name: str) -> Queue | None:
        """Have a queue no more, nor its bindings; None where there was none."""
        queue = self.queues.pop(name, None)
        for exchange in self._exchanges.values():
            exchange.bindings = {binding: None for binding in exchange.bindings if binding[0] != name}
        self._known.clear()
        return queue

    def bind(self, exchange: str, queue: str, key: str) -> None:
        """Have messages to *exchange* that match *key* reach *queue*.

        Raises:
            NotFound: there is no such exchange or queue.
        """
        if exchange not in self._exchanges or queue not in self.queues:
            missing = f"exchange {exchange}" if exchange not in self._exchanges else f"queue {queue}"
            raise NotFound(f"404 NOT_FOUND - no {missing}, so there is nothing to bind. Declare it first")
        self._exchanges[exchange].bindings[queue, key] = None
        self._known.clear()

    def forget_what_is_not_durable(self) -> None:
        """What a restart does to exchanges and queues."""
        for name in [name for name, queue in self.queues.items() if not queue.durable]:
            self.remove(name)
        for name in [name for name, exchange in self._exchanges.items() if not exchange.config.durable]:
            self.delete_exchange(name)

    def route(self, exchange: str, key: str) -> tuple[Queue, ...]:
        """The queues that a message reaches, each once, in the order they were bound.

        Raises:
            PublishRefused: there is no such exchange, or AMQP cannot carry the key.
        """
        known = self._known.get((exchange, key))
        return self._find(exchange, key) if known is None else known

    def _find(self, exchange: str, key: str) -> tuple[Queue, ...]:
        check_address(exchange, key)
        if not exchange:
            names = [key]
        elif exchange in self._exchanges:
            names = self._exchanges[exchange].takers(key)
        else:
            raise PublishRefused(f"404 NOT_FOUND - no exchange {exchange!r}. Declare it first", code=404)
        if len(self._known) >= _MOST_ROUTES:
            self._known.clear()
        found = tuple(self.queues[name] for name in dict.fromkeys(names) if name in self.queues)
        self._known[exchange, key] = found
        return found


def check_address(exchange: str, key: str) -> None:
    """A name over 255 bytes never leaves its client.

    Raises:
        PublishRefused: 502.
    """
    try:
        check_short(exchange, "exchange")
        check_short(key, "routing key")
    except BadPayload as error:
        raise PublishRefused(f"502 SYNTAX_ERROR - {error}", code=502) from error


def topic_matches(pattern: str, key: str) -> bool:
    """Whether *key* matches: `*` stands for one word, `#` for any number of them.

    Example:
        >>> topic_matches("order.#", "order"), topic_matches("order.*", "order")
        (True, False)
    """
    words = key.split(".") if key else []
    parts = pattern.split(".") if pattern else []
    # Row by row over the words: which beginnings of the pattern match the words so far.
    reached = [True]
    for part in parts:
        reached.append(part == "#" and reached[-1])
    for word in words:
        further = [False]
        for place, part in enumerate(parts):
            if part == "#":
                further.append(further[place] or reached[place + 1])
            else:
                further.append(reached[place] and part in {"*", word})
        reached = further
    return reached[-1]
