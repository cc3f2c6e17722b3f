"""The servers of torture's own: paused and restarted, they keep what they hold."""

from __future__ import annotations

import pika
import psycopg
import pytest
from tests.postgres_cluster import running_cluster


@pytest.fixture(scope="module")
def server():
    with running_cluster(durable=True) as cluster:
        yield cluster


def test_a_paused_node_answers_nobody_until_it_is_resumed(rabbitmq):
    rabbitmq.pause()
    try:
        assert not rabbitmq._answers()
    finally:
        rabbitmq.resume()
    rabbitmq.until_it_answers()


def test_a_node_that_is_restarted_keeps_its_queues_and_is_another_process(rabbitmq):
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        connection.channel().queue_declare("kept", durable=True)
    before = rabbitmq.pid
    rabbitmq.restart()
    assert rabbitmq.pid != before
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", passive=True)
        channel.queue_delete("kept")


def test_a_node_says_its_version_and_where_it_listens(rabbitmq):
    assert rabbitmq.version() in rabbitmq.log
    assert rabbitmq.url == f"amqp://guest:guest@127.0.0.1:{rabbitmq.port}"


def test_a_postgresql_that_is_restarted_keeps_what_was_committed(server):
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    before = server.pid
    server.restart()
    assert server.pid != before
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_paused_postgresql_answers_nobody_also_on_connections_that_are_open_until_it_is_resumed(server):
    with psycopg.connect(server.url, autocommit=True) as connection:
        server.pause()
        try:
            connection.pgconn.send_query(b"SELECT 1")
            connection.pgconn.flush()
            assert not server._answers()
            connection.pgconn.consume_input()
            assert connection.pgconn.is_busy()
        finally:
            server.resume()
        assert connection.pgconn.get_result().get_value(0, 0) == b"1"
        assert connection.pgconn.get_result() is None
