"""pika, blocking: persistent, mandatory, confirmed publishes of 1 KiB to a topic.  pika_publish.py URL MESSAGES"""

from __future__ import annotations

import json
import sys
import time

import pika


def main(url: str, messages: int) -> float:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("bench-pika", durable=True)
    channel.exchange_declare("bench-pika", "topic", durable=True)
    channel.queue_bind("bench-pika", "bench-pika", "order.placed")
    channel.confirm_delivery()
    started = time.perf_counter()
    for number in range(messages):
        properties = pika.BasicProperties(
            content_type="application/json", delivery_mode=2, message_id=str(number)
        )
        channel.basic_publish("bench-pika", "order.placed", b"x" * 1024, properties, mandatory=True)
    seconds = time.perf_counter() - started
    channel.queue_delete("bench-pika")
    channel.exchange_delete("bench-pika")
    connection.close()
    return messages / seconds


print(json.dumps({"per_second": main(sys.argv[1], int(sys.argv[2]))}))
