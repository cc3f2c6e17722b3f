"""Dramatiq: every message fails once and comes back after 1 s.  dramatiq_fail.py URL MESSAGES

As `dramatiq` starts it on two cores, two worker processes of eight threads; its messages are persistent and acked when
they are done, and publishes are confirmed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage

URL, MESSAGES = sys.argv[1], int(sys.argv[2])
PROCESSES, THREADS = 2, 8
TEXT = "x" * 1000
DONE = multiprocessing.Value("q", 0)

broker = RabbitmqBroker(url=URL, confirm_delivery=True)
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench-dramatiq", max_retries=5)
def charge(_order: dict[str, Any]) -> None:
    message = CurrentMessage.get_current_message()
    if not message.options.get("retries"):
        raise dramatiq.Retry("the card service answered 503", delay=1000)
    with DONE.get_lock():
        DONE.value += 1


def work() -> None:
    worker = dramatiq.Worker(broker, worker_threads=THREADS)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    worker.start()
    while True:
        signal.pause()


def main() -> float:
    started_all = [multiprocessing.get_context("fork").Process(target=work) for _ in range(PROCESSES)]
    for process in started_all:
        process.start()
    # A first message of its own: from here on the workers are at work.
    charge.send({"id": -1, "text": TEXT})
    while DONE.value < 1:
        time.sleep(0.01)
    started = time.perf_counter()
    for number in range(MESSAGES):
        charge.send({"id": number, "text": TEXT})
    while DONE.value < MESSAGES + 1:
        time.sleep(0.01)
    seconds = time.perf_counter() - started
    for process in started_all:
        process.terminate()
        process.join()
    for queue in ("bench-dramatiq", "bench-dramatiq.DQ", "bench-dramatiq.XQ"):
        broker.channel.queue_delete(queue)
    broker.close()
    return MESSAGES / seconds


print(json.dumps({"per_second": main()}))
