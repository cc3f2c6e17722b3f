"""A trading daemon: intents in order, prices for two strategies, a pause for all. Plain threads, no asyncio."""

import logging
import os
import signal
import sqlite3
import sys
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial

from leveret.sync import RabbitMQTransport, RpcRequest, RpcResponse
from leveret.sync.topology import control_queue, intent_queue

NAMESPACE = "trex"
INSTANCES = ("default", "live-1")  # two accounts, say; a process each

log = logging.getLogger(NAMESPACE)


def momentum(price: dict) -> str:
    return "buy" if price["last"] > price["open"] else "sell"


def reversion(price: dict) -> str:
    return "sell" if price["last"] > price["open"] else "buy"


STRATEGIES = {"momentum": momentum, "reversion": reversion}


class Daemon:
    """One instance. The orders that it placed are in a database of its own, so that a restart forgets none."""

    def __init__(self, transport: RabbitMQTransport, key: str, orders: str = ":memory:") -> None:
        self.transport = transport
        self.key = key
        self.paused = threading.Event()
        # Used by the thread of the intents alone, and made in this one.
        self.orders = sqlite3.connect(orders, check_same_thread=False, isolation_level=None)
        self.orders.execute(
            "CREATE TABLE IF NOT EXISTS orders"
            " (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, symbol TEXT NOT NULL, lots INTEGER NOT NULL)"
        )

    def on_intent(self, request: RpcRequest) -> RpcResponse:
        intent = request.payload
        # A caller that got no answer asks again, and what a cut brought back comes again: the id tells.
        known = self.orders.execute("SELECT number FROM orders WHERE id = :id", intent).fetchone()
        if known:
            return RpcResponse({"order": known[0]})
        if self.paused.is_set():
            return RpcResponse({"refused": "trading is paused"})
        number = self.orders.execute(
            "INSERT INTO orders (id, symbol, lots) VALUES (:id, :symbol, :lots)", intent
        ).lastrowid
        log.info("%s: order %d: %+d %s", self.key, number, intent["lots"], intent["symbol"])
        return RpcResponse({"order": number})

    def on_control(self, request: RpcRequest) -> RpcResponse:
        if request.payload["pause"]:
            self.paused.set()
        else:
            self.paused.clear()
        now = "is paused" if self.paused.is_set() else "trades again"
        log.info("%s: %s", self.key, now)
        # Returns at once, also where nobody could be told.
        self.transport.publish_alarm_event(
            "alarm.WARNING.paused",
            {
                "code": "paused",
                "state": "holds" if self.paused.is_set() else "resolved",
                "title": f"{self.key} {now}",
                "namespace": NAMESPACE,
            },
        )
        return RpcResponse({"paused": self.paused.is_set()})  # to nobody, where it was broadcast

    def on_price(self, strategy: str, _routing_key: str, price: dict) -> None:
        advice = "wait" if self.paused.is_set() else STRATEGIES[strategy](price)
        log.info("%s: %s: price %d of %s: %s", self.key, strategy, price["n"], price["symbol"], advice)

    def declare(self) -> None:
        """From here on intents and prices are kept for this instance, also while it is away."""
        self.transport.declare_topology(self.key)
        for strategy in STRATEGIES:
            self.transport.declare_strategy_queue(f"{NAMESPACE}.{strategy}", "price.*")

    def run(self, stop: threading.Event) -> None:
        """Serve until *stop* is set. A loop that cannot go on ends the others, and raises here."""
        answer, consume = self.transport.consume_rpc_forever, self.transport.consume_events_forever
        loops = [
            partial(answer, intent_queue(self.key, NAMESPACE), self.on_intent),
            partial(answer, control_queue(self.key, NAMESPACE), self.on_control),
        ]
        for strategy in STRATEGIES:
            loops.append(
                partial(consume, f"{NAMESPACE}.{strategy}", "price.*", partial(self.on_price, strategy))
            )
        with ThreadPoolExecutor(len(loops)) as threads:
            running = [threads.submit(loop, stop) for loop in loops]
            log.info("%s: ready", self.key)
            wait(running, return_when=FIRST_EXCEPTION)
            stop.set()
        for loop in running:
            loop.result()


def main(key: str) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with RabbitMQTransport(os.environ["LEVERET_BROKER"], namespace=NAMESPACE) as transport:
        daemon = Daemon(transport, key, f"orders-{key}.db")
        daemon.declare()
        daemon.run(stop)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    main(sys.argv[1])
