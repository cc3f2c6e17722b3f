"""Celery: every message fails once and comes back after 1 s.  celery_fail.py URL MESSAGES

Made durable: persistent messages, confirmed publishes, acks after the task, back to the queue when a worker is lost.
Two worker processes and Celery's own prefetch.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from typing import Any

from celery import Celery, Task

URL, MESSAGES = sys.argv[1], int(sys.argv[2])
TEXT = "x" * 1000
DONE = multiprocessing.get_context("fork").Value("q", 0)

app = Celery("bench", broker=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_default_delivery_mode="persistent",
    task_default_queue="bench-celery",
    task_ignore_result=True,
    broker_transport_options={"confirm_publish": True},
    worker_hijack_root_logger=False,
)


@app.task(bind=True, max_retries=5)
def charge(self: Task, _order: dict[str, Any]) -> None:
    if not self.request.retries:
        raise self.retry(countdown=1, exc=RuntimeError("the card service answered 503"))
    with DONE.get_lock():
        DONE.value += 1


def work() -> None:
    options = ["--concurrency=2", "--loglevel=CRITICAL"]
    app.worker_main(["worker", *options, "--without-gossip", "--without-mingle"])


def main() -> float:
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    # A first message of its own: from here on the workers are at work.
    charge.delay({"id": -1, "text": TEXT})
    while DONE.value < 1:
        if not worker.is_alive():
            sys.exit("the worker ended")
        time.sleep(0.01)
    started = time.perf_counter()
    for number in range(MESSAGES):
        charge.delay({"id": number, "text": TEXT})
    while DONE.value < MESSAGES + 1:
        time.sleep(0.01)
    seconds = time.perf_counter() - started
    worker.terminate()
    worker.join()
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete("bench-celery")
    return MESSAGES / seconds


# What the worker says about itself goes elsewhere.
figure = main()
print(json.dumps({"per_second": figure}))
