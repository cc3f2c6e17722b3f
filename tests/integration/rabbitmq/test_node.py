"""Which RabbitMQ a test gets: a node of the session's own, the one that was named, or none, which is told by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import rabbitmq_node
from tests.rabbitmq_log import nothing_given_up_was_used, used_on_purpose, warnings_in
from tests.rabbitmq_scene import needs_version


@pytest.fixture
def named(monkeypatch):
    """Another broker is named; nobody is there."""
    monkeypatch.setenv("LEVERET_TEST_AMQP_URL", "amqp://shop:s3cr3t@elsewhere/eu")


@pytest.mark.parametrize(("ci", "outcome"), [(None, pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_test_that_needs_rabbitmq_says_how_to_get_it(monkeypatch, ci, outcome):
    monkeypatch.setattr(rabbitmq_node, "installed", lambda: False)
    monkeypatch.setattr(rabbitmq_node, "ROOT", Path("/"))
    if ci is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="needs RabbitMQ: make services"):
        rabbitmq_node.need_rabbitmq()


def test_a_folder_that_was_named_and_holds_no_rabbitmq_is_a_failure_everywhere(monkeypatch, tmp_path):
    monkeypatch.setattr(rabbitmq_node, "ROOT", tmp_path)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.fail.Exception, match=f"no RabbitMQ in {tmp_path}"):
        rabbitmq_node.need_rabbitmq()


@pytest.mark.gentle
def test_a_gentle_test_gets_the_broker_that_was_named(named, request):
    address = request.getfixturevalue("any_rabbitmq").address
    assert (address.nodes, address.user, address.password, address.vhost) == (
        (("elsewhere", 5672),), "shop", "s3cr3t", "eu"
    )  # fmt: skip


@pytest.mark.gentle
def test_a_test_that_does_something_to_the_node_gets_one_of_the_sessions_own(named, rabbitmq, any_rabbitmq):
    assert any_rabbitmq is rabbitmq


def test_a_test_that_does_not_say_that_it_is_gentle_gets_one_too(named, request):
    assert isinstance(request.getfixturevalue("any_rabbitmq"), rabbitmq_node.Node)


def test_a_named_broker_that_no_proxy_can_stand_before_is_refused_without_its_password(monkeypatch):
    monkeypatch.setenv("LEVERET_TEST_AMQP_URL", "amqps://shop:s3cr3t@elsewhere")
    with pytest.raises(pytest.UsageError, match="amqp://") as caught:
        rabbitmq_node.named_broker()
    assert "s3cr3t" not in str(caught.value)


def test_what_the_broker_gives_up_is_found_in_its_log_each_time_it_is_used_and_passed_over_where_it_was_meant(
    rabbitmq, broker
):
    needs_version(broker, 3, 13, why="older ones warn of nothing")
    before = warnings_in(rabbitmq)
    for number in range(2):
        with used_on_purpose(rabbitmq):
            with broker.channel() as channel:
                channel.queue_declare(name := f"given-up-{number}", durable=False)
                channel.queue_delete(name)
            with pytest.raises(AssertionError, match="transient_nonexcl_queues"):
                nothing_given_up_was_used(rabbitmq)
        assert warnings_in(rabbitmq) == before
