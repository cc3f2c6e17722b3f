"""The other side of the daemon: a feed of prices, intents for each instance, and the pause.

python desk.py trade 200 | pause | resume
"""

import logging
import os
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from daemon import INSTANCES, NAMESPACE

from leveret import Leveret, RMQExchangeConfig
from leveret.sync import RabbitMQTransport, RpcTimeoutError, RpcUnreachableError, TransportUnavailableError
from leveret.sync.topology import intent_queue

log = logging.getLogger("desk")


def send_price(transport: RabbitMQTransport, price: dict) -> None:
    """Returns once the broker has it, however long that takes. A second copy is possible."""
    while True:
        try:
            return transport.publish_event(f"price.{price['symbol']}", price)
        except TransportUnavailableError as error:
            log.info("price %d again: %s", price["n"], error)
            time.sleep(1)


def ask(transport: RabbitMQTransport, key: str, intent: dict) -> dict:
    """The answer, however long it takes. Asking again is harmless: the daemon knows the intent by its id."""
    while True:
        try:
            return transport.call_rpc(
                intent_queue(key, NAMESPACE), intent, correlation_id=intent["id"], timeout=2
            )
        except RpcUnreachableError:
            raise  # no such instance: waiting helps nobody
        except (TransportUnavailableError, RpcTimeoutError) as error:
            log.info("%s again: %s", key, error)
            time.sleep(1)


def pause(broker: str, paused: bool) -> None:
    """Tell all instances at once: what goes to the broadcast exchange reaches the control queue of each."""
    everybody = RMQExchangeConfig(f"{NAMESPACE}.broadcast", "fanout")
    app = Leveret(NAMESPACE, broker=broker, store="memory://", exchange=everybody)
    app.sync.publish("control", {"pause": paused})
    app.sync.close()


def trade(transport: RabbitMQTransport, number: int) -> None:
    """So many prices, and so many intents for each instance, 20 a second; each intent waits for the one before."""
    run = uuid.uuid4().hex[:6]

    def prices() -> None:
        for n in range(1, number + 1):
            send_price(transport, {"n": n, "symbol": "FDAX", "last": 100 + n % 7, "open": 103})
            time.sleep(0.05)
        log.info("%d prices confirmed", number)

    def intents(key: str) -> None:
        for n in range(1, number + 1):
            answer = ask(transport, key, {"id": f"{run}-{n}", "symbol": "FDAX", "lots": 1})
            log.info("%s: intent %d: %s", key, n, answer)
            time.sleep(0.05)

    with ThreadPoolExecutor() as threads:
        doing = [threads.submit(prices), *(threads.submit(intents, key) for key in INSTANCES)]
    for each in doing:
        each.result()


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    broker = os.environ["LEVERET_BROKER"]
    if sys.argv[1] == "trade":
        # A price that is older than two seconds is none.
        with RabbitMQTransport(broker, namespace=NAMESPACE, timeout=2) as transport:
            trade(transport, int(sys.argv[2]))
    else:
        pause(broker, sys.argv[1] == "pause")
