"""Getting in, or not: passwords, vhosts, TLS, several nodes, and what the errors say (B28, D11)."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from dataclasses import replace

import pytest
from tests.rabbitmq_scene import hurried_world, until, url_of

from leveret.core.errors import AccessRefused, BrokerUnreachable, ConfigError
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.urls import parse_broker
from leveret.transports.rabbitmq.transport import RabbitTransport

SECRET = "s3cr3t-never-shown"


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def refusal(url, kind):
    transport = RabbitTransport(url, world=hurried_world())
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        await transport.open()
    assert time.monotonic() - started < 10
    assert transport.state == "disconnected"
    await transport.close()
    return str(caught.value)


async def test_b28_a_wrong_password_is_told_at_once_in_the_brokers_words(rabbitmq, caplog):
    caplog.set_level(logging.DEBUG)
    url = parse_broker(f"amqp://guest:{SECRET}@127.0.0.1:{rabbitmq.port}", "here")
    said = await refusal(url, AccessRefused)
    assert said.startswith(
        f'RabbitMQ at 127.0.0.1:{rabbitmq.port} does not let "guest" in on vhost "/": ACCESS_REFUSED - Login was '
        "refused using authentication mechanism PLAIN."
    )
    assert "Not tried again." in said
    assert SECRET not in said + caplog.text + repr(RabbitTransport(url, world=hurried_world()))


async def test_b28_a_missing_vhost_is_told_at_once_in_the_brokers_words(rabbitmq):
    said = await refusal(replace(url_of(rabbitmq.port), vhost="nowhere"), AccessRefused)
    assert 'vhost "nowhere": NOT_ALLOWED - ' in said


async def test_b28_a_user_without_rights_on_the_vhost_is_told_at_once(rabbitmq):
    name = f"user-{uuid.uuid4().hex[:8]}"
    rabbitmq.ctl("add_user", name, SECRET)
    said = await refusal(
        replace(url_of(rabbitmq.port), user=name, password=SECRET),
        AccessRefused,
    )
    assert f'does not let "{name}" in on vhost "/": NOT_ALLOWED - ' in said


async def test_b28_tls_against_a_plain_port_is_told_at_once(rabbitmq):
    said = await refusal(parse_broker(f"amqps://localhost:{rabbitmq.port}", "here"), AccessRefused)
    assert f"no TLS with localhost:{rabbitmq.port}" in said


async def test_b28_plain_against_a_tls_port_is_told_at_once(rabbitmq):
    said = await refusal(url_of(rabbitmq.tls_port), BrokerUnreachable)
    assert "amqps://" in said


async def test_a_certificate_that_nobody_vouches_for_is_refused(rabbitmq):
    said = await refusal(parse_broker(f"amqps://localhost:{rabbitmq.tls_port}", "here"), AccessRefused)
    assert "self" in said
    assert "cacertfile=" in said


async def test_a_certificate_for_another_name_is_refused(rabbitmq):
    url = parse_broker(
        f"amqps://127.0.0.1:{rabbitmq.tls_port}?cacertfile={rabbitmq.certificate}&server_name_indication=other",
        "here",
    )
    assert "mismatch" in await refusal(url, AccessRefused)


@pytest.mark.parametrize(
    "options",
    ["cacertfile={cert}", "verify=verify_none", "cacertfile={cert}&server_name_indication=localhost"],
)
async def test_over_tls_messages_of_any_size_come_and_go(rabbitmq, broker, connect, options):
    queue = f"tls-{uuid.uuid4().hex[:8]}"
    await broker.declare_queue(queue)
    url = parse_broker(
        f"amqps://localhost:{rabbitmq.tls_port}?{options.format(cert=rabbitmq.certificate)}", "here"
    )
    transport = await connect(url)
    bodies = [b"", b"x", bytes(3_000_000)]
    async with asyncio.timeout(30):
        await asyncio.gather(
            *(transport.send(Outgoing("", queue, body, Properties.build())) for body in bodies)
        )
        await transport.drained()
        assert transport.buffered == 0
        assert [(await transport.get(queue)).body for _ in bodies] == bodies
    await broker.delete_queue(queue)


async def test_a_tls_file_that_is_not_there_is_named(rabbitmq):
    url = parse_broker(f"amqps://localhost:{rabbitmq.tls_port}?cacertfile=/no/such.pem", "here")
    assert "cacertfile names /no/such.pem" in await refusal(url, ConfigError)


async def test_nobody_there_is_told_at_once():
    port = closed_port()
    said = await refusal(url_of(port), BrokerUnreachable)
    assert f"nobody answers at 127.0.0.1:{port}: Connection refused" in said


async def test_a_host_without_an_address_is_told_at_once():
    said = await refusal(parse_broker("amqp://no-such-host.invalid", "here"), BrokerUnreachable)
    assert "no-such-host.invalid:5672" in said


async def test_a_node_that_takes_the_connection_and_says_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = parse_broker(f"amqp://127.0.0.1:{port}?connection_timeout=200", "here")
        assert f"127.0.0.1:{port}" in await refusal(url, BrokerUnreachable)


async def test_of_several_nodes_the_first_that_answers_is_taken(rabbitmq, connect):
    url = parse_broker(f"amqp://127.0.0.1:{closed_port()},127.0.0.1:{rabbitmq.port}", "here")
    transport = await connect(url)
    assert transport.state == "connected"
    assert transport.server_version.split(".")[0].isdigit()


async def test_where_no_node_answers_all_are_named():
    ports = [closed_port(), closed_port()]
    url = parse_broker(f"amqp://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}", "here")
    said = await refusal(url, BrokerUnreachable)
    assert all(str(port) in said for port in ports)


async def test_b28_a_password_that_is_changed_while_running_means_long_waits_and_no_loop(
    rabbitmq, broker, connect, caplog
):
    name = f"user-{uuid.uuid4().hex[:8]}"
    rabbitmq.ctl("add_user", name, SECRET)
    rabbitmq.ctl("set_permissions", name, ".*", ".*", ".*")
    transport = await connect(replace(broker.url, user=name, password=SECRET))
    await asyncio.to_thread(rabbitmq.ctl, "change_password", name, "another")
    before = broker.proxy.accepted
    broker.proxy.cut()
    await until(lambda: sum("does not let" in message for message in caplog.messages) >= 2)
    # The two connections: one try each after the first wait, and from there on the longest.
    assert broker.proxy.accepted - before <= 4
    assert transport.state == "disconnected"
    with pytest.raises(AccessRefused):
        await transport.get("anything")
    await asyncio.to_thread(rabbitmq.ctl, "change_password", name, SECRET)
    await until(lambda: transport.state == "connected" and transport.sendable)
    assert SECRET not in caplog.text


async def test_open_again_after_close_is_a_new_start(broker, connect):
    queue = f"again-{uuid.uuid4().hex[:8]}"
    await broker.declare_queue(queue)
    transport = await connect()
    await transport.close()
    assert transport.state == "closed"
    await transport.open()
    assert transport.state == "connected"
    await transport.send(Outgoing("", queue, b"one", Properties.build()))
    assert (await transport.get(queue)).body == b"one"
    await broker.delete_queue(queue)


def test_a_loop_that_was_closed_without_a_goodbye_takes_its_connections_along(rabbitmq):
    transport = RabbitTransport(url_of(rabbitmq.port), world=hurried_world())
    asyncio.run(transport.open())

    async def again() -> str:
        await transport.open()
        state = transport.state
        await transport.close()
        return state

    assert asyncio.run(again()) == "connected"
