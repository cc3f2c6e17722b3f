"""Calls by pika's blocking connection, answered by another one in a process of its own.

pika_rpc.py URL CALLS connections THREADS: a connection for each call.  Prints calls a second.
pika_rpc.py URL CALLS median: one connection with direct reply-to, one call after the other.  Prints 1 / median seconds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import pika

QUEUE = "bench-pika-rpc"
REPLY = "amq.rabbitmq.reply-to"


class Line:
    """A connection with a direct reply-to consumer."""

    def __init__(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.replies: dict[str, bytes] = {}
        self.channel.basic_consume(REPLY, self._reply, auto_ack=True)

    def _reply(self, _channel: Any, _method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.replies[properties.correlation_id] = body

    def call(self, number: int) -> Any:
        id = str(number)
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, correlation_id=id, reply_to=REPLY
        )
        self.channel.basic_publish("", QUEUE, json.dumps({"id": number}).encode(), properties)
        while id not in self.replies:
            self.connection.process_data_events(time_limit=None)
        return json.loads(self.replies.pop(id))


def serve(url: str) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.basic_qos(prefetch_count=64)

    def answer(_channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        reply = json.dumps({"id": json.loads(body)["id"]}).encode()
        told = pika.BasicProperties(content_type="application/json", correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, reply, told)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(QUEUE, answer)
    print("ready", flush=True)
    channel.start_consuming()


def connections(url: str, calls: int, callers: int) -> float:
    numbers = iter(range(calls))
    lock = threading.Lock()

    def caller() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            line = Line(url)
            line.call(number)
            line.connection.close()

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return calls / (time.perf_counter() - started)


def median(url: str, calls: int) -> float:
    line = Line(url)
    took = []
    for number in range(calls):
        started = time.perf_counter()
        line.call(number)
        took.append(time.perf_counter() - started)
    line.connection.close()
    return 1 / statistics.median(took)


def main(url: str, calls: int, what: str, callers: int = 1) -> float:
    server = subprocess.Popen([sys.executable, __file__, url], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        return connections(url, calls, callers) if what == "connections" else median(url, calls)
    finally:
        server.kill()
        server.wait()


if len(sys.argv) == 2:
    serve(sys.argv[1])
else:
    print(
        json.dumps({"per_second": main(sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:]))})
    )
