"""The steps of `leveret topology diff --steps`, and where the commands refuse to work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from leveret.cli.doctor import _delivery_limits
from leveret.cli.topology import ways_to_change
from leveret.core.topology import Difference, Queue, Topology
from leveret.core.urls import parse_broker


def differs(name, argument="x-queue-type", there="classic", here="quorum", **more):
    return Difference(
        **{"kind": "queue", "name": name, "state": "differs", "argument": argument, "there": there, "here": here,
           "words": f"{name} differs"} | more
    )  # fmt: skip


def an_app(*queues, max_deliveries=5, vhost="/"):
    broker = parse_broker(f"amqp://h/{vhost}", "here")
    return SimpleNamespace(
        namespace="shop",
        config=SimpleNamespace(require_broker=lambda: broker),
        plans=[SimpleNamespace(spec=SimpleNamespace(name="charge", max_deliveries=max_deliveries))],
        topology=Topology(queues=queues),
    )


def steps(*differences, **more):
    there = SimpleNamespace(differences=differences, app=an_app(Queue("shop.charge", "quorum"), **more))
    return {name: " | ".join(way) for (_, name), way in ways_to_change(there, "shop:app").items()}


def test_a_queue_that_differs_twice_has_one_way_and_one_that_is_missing_has_none():
    found = steps(
        differs("shop.charge"),
        differs("shop.charge", "x-max-priority", None, 3),
        differs("shop.report", "", None, None, state="missing"),
    )
    assert list(found) == ["shop.charge"]
    assert found["shop.charge"].endswith("leveret topology apply shop:app | Start again what was stopped.")


def test_a_quorum_queue_is_deleted_without_a_flag_that_its_broker_refuses():
    assert "delete_queue shop.charge --if-empty" in steps(differs("shop.charge"))["shop.charge"]
    found = steps(differs("shop.charge", there="quorum", here="classic"))["shop.charge"]
    assert "--if-empty" not in found
    assert "only once it shows 0 messages" in found
    # It is declared quorum, and nothing says that it is not.
    assert "--if-empty" not in steps(differs("shop.charge", "x-max-priority", 5, None))["shop.charge"]


def test_leverets_own_queues_are_drained_by_those_who_keep_what_lies_in_them():
    found = steps(differs("shop.retry"), differs("shop.events.dlq"))
    assert "leave leveret retry-worker running" in found["shop.retry"]
    assert "leave leveret keeper running" in found["shop.events.dlq"]
    assert "leveret retries move" not in found["shop.retry"]


def test_an_exchange_of_another_type_takes_no_queue_along():
    found = steps(differs("shop.events", "type", "fanout", "topic", kind="exchange", state="unsafe"))
    assert "rabbitmqadmin delete exchange name=shop.events" in found["shop.events"]


def test_the_steps_name_the_virtual_host():
    assert (
        "delete_queue shop.charge --vhost 'eu' --if-empty"
        in steps(differs("shop.charge"), vhost="eu")["shop.charge"]
    )


@pytest.mark.parametrize(
    "command", [("topology", "check"), ("topology", "diff"), ("topology", "apply"), ("tail",)]
)
def test_what_looks_at_a_broker_says_so_where_it_lives_inside_one_process(leveret, folder, command):
    (folder / "leveret.toml").write_text('namespace = "shop"\nbroker = "memory://"\napp = "its_app:app"\n')
    (folder / "its_app.py").write_text("from leveret import Leveret\napp = Leveret()\n")
    ended = leveret(*command)
    assert ended.code == 2
    assert "lives inside one process" in ended.err


@pytest.mark.parametrize(("limit", "level"), [(3, "warn"), (5, None), (-1, None), (None, None)])
def test_a_delivery_limit_that_comes_before_leverets_own_is_told(limit, level):
    arguments = {} if limit is None else {"x-delivery-limit": limit}
    declared = an_app(Queue("shop.charge", "quorum", arguments))
    as_it_is_there = (
        an_app(Queue("shop.charge", "quorum")),
        [differs("shop.charge", "x-delivery-limit", limit, None)],
    )
    for app, differences in ((declared, []), as_it_is_there):
        found = _delivery_limits(app, differences)
        assert [each.level for each in found] == ([] if level is None else [level])


def test_the_topology_of_a_daemon_that_is_no_app_is_shown_too(leveret, folder):
    (folder / "a_robot.py").write_text(
        "from leveret.sync.topology import RpcChannel, instance_topology\n"
        'TOPOLOGY = instance_topology("robots", "arm-2", [RpcChannel("move", ordered=True)])\n'
    )
    ended = leveret("topology", "show", "a_robot:TOPOLOGY", "--json")
    arguments = {"x-dead-letter-exchange": "robots.events.dlq", "x-single-active-consumer": True}
    assert ended.code == 0
    assert {"queue": "robots.arm-2.move.req", "type": "classic", "arguments": arguments} in ended.records
    assert {
        "binding": "robots.arm-2.move.req",
        "exchange": "robots.direct",
        "key": "arm-2.move",
    } in ended.records
    assert "namespace robots (its names)" in leveret("topology", "show", "a_robot:TOPOLOGY").out


def test_what_is_neither_an_app_nor_a_topology_is_told_as_before(leveret, folder):
    (folder / "a_number.py").write_text("TOPOLOGY = 7\n")
    ended = leveret("topology", "show", "a_number:TOPOLOGY")
    assert ended.code == 2
    assert 'its "TOPOLOGY" is no Leveret' in ended.err
