"""`leveret publish` to RabbitMQ, and what commands do whose broker is not up."""

from __future__ import annotations

import json
import re
import socket

import pytest


@pytest.fixture
def bound(shop):
    """The shop, with its queues."""
    assert shop("topology", "apply").code == 0
    return shop


def test_one_message_a_file_and_standard_input_arrive_confirmed(bound):
    ended = bound("publish", "job", '{"do": "one"}', "--header", "tenant=42", "--json")
    (told,) = ended.records
    method, properties, body = bound.channel.basic_get(bound.queue("charge"), auto_ack=True)
    assert (method.routing_key, properties.message_id, json.loads(body)) == ("job", told["id"], {"do": "one"})
    assert (properties.headers["tenant"], properties.delivery_mode) == ("42", 2)

    (bound.folder / "jobs.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(2000)))
    ended = bound("publish", "job", "--file", "jobs.jsonl")
    assert ended.code == 0
    assert re.fullmatch(
        r"2000 of 2000   \d+/s   confirmed 2000   unroutable 0   refused 0   unknown 0\n", ended.out
    )
    assert bound("publish", "job", "-", stdin='{"n": 1}\n{"n": 2}\n').code == 0
    assert bound.ready("charge") == 2002


def test_lines_that_no_queue_takes_or_that_are_no_json_are_numbered_and_the_others_are_there(bound):
    ended = bound("publish", "job", "-", stdin='{"n": 1}\n{"n": \n\n{"n": 4}\n')
    assert ended.code == 6
    assert "3 of 3" in ended.out
    assert "confirmed 2   unroutable 0   refused 1 (line 2)   unknown 0" in ended.out
    assert bound.ready("charge") == 2

    ended = bound("publish", "jbo", "-", stdin="{}\n{}\n")
    assert ended.code == 6
    assert "unroutable 2 (lines 1, 2)" in ended.out
    assert bound("publish", "jbo").code == 5


def test_a_rate_holds_publishes_back(bound):
    ended = bound("publish", "job", "-", "--rate", "20", "--json", stdin="{}\n" * 11)
    (told,) = ended.records
    assert told["confirmed"] == 11
    assert told["seconds"] >= 0.5


def test_a_command_gives_up_after_ten_seconds_and_shows_no_password(shop):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        shop.environ["LEVERET_BROKER"] = f"amqp://shop:geheim@127.0.0.1:{nobody.getsockname()[1]}"
        ended = shop("publish", "job")
    assert ended.code == 3
    first, last = ended.err.splitlines()
    assert "does not answer yet, trying again for 10 s" in first
    assert last.startswith("BrokerUnreachable: gave up after 10 s. nobody answers at 127.0.0.1:")
    assert "geheim" not in ended.err
