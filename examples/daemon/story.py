"""The daemon and its desk in one process, without a broker: two instances, prices, intents, a pause."""

import logging
import threading
import time

import desk
from daemon import INSTANCES, NAMESPACE, Daemon

from leveret.sync import RabbitMQTransport

BROKER = "memory://trex"  # one broker for all in this process who name it so

logging.basicConfig(format="%(message)s")
for name in (NAMESPACE, "desk"):
    logging.getLogger(name).setLevel(logging.INFO)

stop = threading.Event()
with RabbitMQTransport(BROKER, namespace=NAMESPACE) as transport:
    daemons = [Daemon(transport, key) for key in INSTANCES]
    threads = [threading.Thread(target=daemon.run, args=(stop,)) for daemon in daemons]
    for daemon in daemons:
        daemon.declare()
    for thread in threads:
        thread.start()

    desk.trade(transport, 3)
    transport.publish_event("price.FDAX", {"n": 4, "symbol": "FDAX"})  # no such price: a dead letter
    desk.pause(BROKER, True)
    for daemon in daemons:
        daemon.paused.wait(5)
    answer = desk.ask(transport, "live-1", {"id": "too late", "symbol": "FDAX", "lots": 1})
    desk.log.info("live-1: %s", answer)

    time.sleep(1)  # a moment for the strategies
    stop.set()
    for thread in threads:
        thread.join()
