"""`leveret run`, `retry-worker`, `keeper` and `tail` as processes of their own on RabbitMQ."""

from __future__ import annotations

import asyncio
import signal
import socket

import pytest

from leveret.torture.proxy import CutProxy


def test_a_worker_a_retry_worker_and_a_keeper_share_the_work_as_three_processes(shop):
    worker = shop.start("run", "--no-retry-worker", "--no-keeper")
    retry_worker = shop.start("retry-worker", "--rate", "100")
    keeper = shop.start("keeper")
    worker.wait_for("neither retry worker nor keeper.  Ready")
    retry_worker.wait_for(rf"{shop.namespace}: holds the lease, term 1\. 0 waiting, none overdue\.  Ready")
    keeper.wait_for(rf"{shop.namespace}: holds the lease, term 1\. 0 dead\.  Ready")
    for word in ("soft", "hard"):
        assert shop("publish", "job", f'{{"do": "{word}"}}').code == 0
    worker.wait_for("began soft attempt 2")
    keeper.wait_for("Ready")

    second = shop.start("retry-worker")
    second.wait_for(
        rf"{shop.namespace}: standing by; \S+/{retry_worker.process.pid} holds the lease, term 1, \d+ s left"
    )
    assert retry_worker.stop() == 0
    # Released, not run out: the standby has it at once.
    second.wait_for(r"holds the retry lease \(term 2\)")
    assert shop("publish", "job", '{"do": "soft"}').code == 0
    worker.wait_for("(?s)began soft attempt 2.*began soft attempt 2")
    for process in (second, keeper, worker):
        assert process.stop() == 0
    (letter,) = shop("dead", "list", "--json").records
    assert letter["reason"] == "HardFailure: cannot charge 0 cents"
    assert shop.ready("retry") == shop.ready("events.dlq") == 0


async def test_run_waits_for_a_broker_that_is_not_up_yet_with_one_line_and_then_connects(shop, rabbitmq):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shop.environ["LEVERET_BROKER"] = f"amqp://guest:guest@127.0.0.1:{port}"
    running = shop.start("run")
    await asyncio.to_thread(running.wait_for, "does not answer yet, trying again until it does")
    proxy = CutProxy(rabbitmq.port)
    await proxy.start(port)
    try:
        await asyncio.to_thread(running.wait_for, "Ready")
        assert await asyncio.to_thread(running.stop) == 0
    finally:
        await proxy.stop()
    assert running.told.count("does not answer yet") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_waiting_for_a_broker(shop, number):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        shop.environ["LEVERET_BROKER"] = f"amqp://shop:geheim@127.0.0.1:{nobody.getsockname()[1]}"
        running = shop.start("run")
        running.wait_for("does not answer yet")
        running.signal(number)
        assert running.ended() == 0
    assert "nothing was begun" in running.told
    assert "geheim" not in running.told


def test_tail_shows_failures_as_they_happen_and_takes_none_from_anybody(shop):
    assert shop("topology", "apply").code == 0
    everything = shop.start("tail")
    dead = shop.start("tail", "--only", "dead", "--worker", "charge", "--json")
    others = shop.start("tail", "--worker", "report")
    for process in (everything, dead, others):
        process.wait_for("watching")
    running = shop.start("run")
    running.wait_for("Ready")
    ended = shop("publish", "job", "-", "--json", stdin='{"do": "soft"}\n{"do": "hard"}\n')
    assert ended.code == 0
    everything.wait_for(
        r"\d\d:\d\d:\d\d  soft  charge  [0-9a-f]{6}  attempt 1 of 3, again in 0.2 s: the card service answered 503"
    )
    everything.wait_for(r"dead  charge  [0-9a-f]{6}  attempt 1  HardFailure: cannot charge 0 cents")
    dead.wait_for('"kind": "dead", "worker": "charge"')
    running.wait_for("began soft attempt 2")
    # Of another program, by way of the broker's own dead-lettering.
    shop.channel.queue_declare(
        shop.queue("foreign"),
        durable=True,
        arguments={"x-message-ttl": 1, "x-dead-letter-exchange": shop.queue("events.dlq")},
    )
    shop.channel.basic_publish("", shop.queue("foreign"), b"late")
    everything.wait_for("dead  foreign  .*dead-lettered by the broker from .*: expired")
    for process in (everything, dead, others, running):
        assert process.stop() == 0
    assert '"kind": "soft"' not in dead.told
    assert "charge" not in others.told
    assert ".tail." not in shop.node.ctl("list_queues", "name")
    reasons = [each["reason"] for each in shop("dead", "list", "--json").records]
    assert len(reasons) == 2
