"""Acts on retries and dead letters whose broker is RabbitMQ."""

from __future__ import annotations


def test_a_retry_whose_queue_is_gone_moves_to_another_queue(shop):
    running = shop.start("run")
    running.wait_for("Ready")
    assert shop("publish", "job", '{"do": "later"}').code == 0
    running.wait_for("soft  charge")
    assert running.stop() == 0
    shop.channel.queue_delete(shop.queue("charge"))
    shop.channel.queue_declare(shop.queue("other"), durable=True)
    retry_worker = shop.start("retry-worker")
    retry_worker.wait_for("Ready")
    assert shop("retries", "now", "--worker", "charge", "--yes").code == 0
    retry_worker.wait_for("retry_republish_failed")
    assert "queue gone" in shop("retries", "list").out

    ended = shop("retries", "move", "--worker", "charge", "--to", shop.queue("other"), "--yes")
    assert (ended.code, ended.out.partition(",")[0]) == (0, "moved 1 of 1")
    shop.until_ready("other", 1)
    assert shop("retries", "list", "--json").out == ""
    assert retry_worker.stop() == 0


def test_a_dead_letter_is_replayed_here_where_no_keeper_runs(shop):
    running = shop.start("run")
    running.wait_for("Ready")
    assert shop("publish", "job", '{"do": "hard"}').code == 0
    running.wait_for("dead  charge")
    assert running.stop() == 0
    (letter,) = shop("dead", "list", "--json").records

    ended = shop("dead", "replay", letter["id"][-8:], "--here")
    assert ended.code == 0, ended.err
    assert ended.out.startswith("published 1 of 1, dead again 0, by ")
    assert shop.ready("charge") == 1
    assert shop("dead", "list", "--json").out == ""
    (replayed,) = shop("dead", "list", "--state", "replayed", "--json").records
    assert replayed["id"] == letter["id"]
