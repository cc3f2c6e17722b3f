from __future__ import annotations

import pytest

from leveret.core.errors import ConfigError
from leveret.core.instances import (
    INSTANCE_CHANNELS,
    RpcChannel,
    channel_of,
    direct_routing_key,
    instance_topology,
)


def test_the_default_instance_has_all_channels_under_plain_names():
    queues = {queue.name for queue in instance_topology("trex").queues}

    assert queues == {
        "trex.events.dlq", "trex.intent.req", "trex.slots.req", "trex.control.req", "trex.strategy_state_set.req",
        "trex.pause.req",
    }  # fmt: skip


def test_another_instance_has_its_key_in_every_name_and_no_pause_channel():
    queues = {queue.name for queue in instance_topology("trex", "live-1").queues}

    assert "trex.live-1.intent.req" in queues
    assert not any("pause" in queue for queue in queues)


def test_every_channel_is_dead_lettered_and_only_intents_have_one_consumer_at_a_time():
    arguments = {queue.name: dict(queue.arguments) for queue in instance_topology("trex").queues}
    del arguments["trex.events.dlq"]

    assert all(each["x-dead-letter-exchange"] == "trex.events.dlq" for each in arguments.values())
    assert [name for name, each in arguments.items() if each.get("x-single-active-consumer")] == [
        "trex.intent.req"
    ]


def test_channels_are_bound_on_direct_by_key_and_channel_and_control_on_broadcast_too():
    bindings = {
        (each.exchange, each.routing_key, each.queue) for each in instance_topology("trex", "a").bindings
    }

    assert ("trex.direct", "a.intent", "trex.a.intent.req") in bindings
    assert ("trex.direct", "a.control", "trex.a.control.req") in bindings
    assert [queue for exchange, _, queue in bindings if exchange == "trex.broadcast"] == [
        "trex.a.control.req"
    ]


def test_topologies_of_several_instances_add_up_without_doubles():
    both = instance_topology("trex") + instance_topology("trex", "live-1")

    names = [queue.name for queue in both.queues]
    assert len(names) == len(set(names)) == 1 + 5 + 4
    assert [exchange.name for exchange in both.exchanges].count("trex.events") == 1


def test_a_daemon_names_channels_of_its_own():
    topology = instance_topology("robots", "arm-2", [RpcChannel("move", ordered=True), RpcChannel("state")])

    assert [queue.name for queue in topology.queues] == [
        "robots.events.dlq", "robots.arm-2.move.req", "robots.arm-2.state.req",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["", "#", "*", "a.b", "x" * 65, "a b", None, 7])
def test_a_key_that_is_no_word_of_a_routing_key_is_refused(key):
    with pytest.raises(ValueError, match="instance key"):
        instance_topology("trex", key)
    with pytest.raises(ValueError, match="instance key"):
        direct_routing_key(key, "intent")


def test_a_channel_that_stands_twice_in_a_list_is_refused():
    with pytest.raises(ConfigError, match="'move' stands twice"):
        instance_topology("robots", channels=[RpcChannel("move"), RpcChannel("move", ordered=True)])


def test_a_channel_name_that_is_no_word_is_refused():
    with pytest.raises(ConfigError, match=r"channel name 'a\.b'"):
        RpcChannel("a.b")


@pytest.mark.parametrize(
    ("queue", "channel"),
    [
        ("trex.intent.req", "intent"),
        ("trex.live-1.intent.req", "intent"),
        ("other.intent.req", None),
        ("trex.intent", None),
        ("trex.a.b.intent.req", None),
        ("trex.price.req", None),
    ],
)
def test_the_queue_of_a_channel_is_known_of_whatever_instance(queue, channel):
    found = channel_of(queue, "trex", INSTANCE_CHANNELS)

    assert (found and found.name) == channel
