from __future__ import annotations

import pytest

import leveret.sync
from leveret.core.errors import ConfigError
from leveret.sync import topology


def test_the_constants_use_the_default_namespace():
    assert topology.EVENTS_EXCHANGE == "leveret.events"
    assert topology.EVENTS_DLQ_EXCHANGE == topology.EVENTS_DLQ_QUEUE == "leveret.events.dlq"
    assert topology.ALERTS_EXCHANGE == "leveret.alerts"
    assert topology.DIRECT_EXCHANGE == "leveret.direct"
    assert topology.BROADCAST_EXCHANGE == "leveret.broadcast"
    assert topology.INTENT_REQ_QUEUE == "leveret.intent.req"
    assert topology.PAUSE_REQ_QUEUE == "leveret.pause.req"
    assert topology.STRATEGY_QUEUE_ARGS == {"x-dead-letter-exchange": "leveret.events.dlq"}
    assert topology.DEFAULT_INSTANCE_KEY == "default"


def test_the_functions_take_an_instance_and_a_namespace():
    assert topology.intent_queue("default") == "leveret.intent.req"
    assert topology.intent_queue("live-1", namespace="trex") == "trex.live-1.intent.req"
    assert topology.slots_queue("live-1", namespace="trex") == "trex.live-1.slots.req"
    assert topology.control_queue("default", namespace="trex") == "trex.control.req"
    assert topology.strategy_state_set_queue("a") == "leveret.a.strategy_state_set.req"
    assert topology.direct_routing_key("live-1", "control") == "live-1.control"


def test_a_namespace_with_a_dot_is_refused():
    with pytest.raises(ConfigError, match="namespace"):
        topology.intent_queue("default", namespace="a.b")


@pytest.mark.parametrize("module", [leveret.sync, topology])
def test_all_public_names_are_there(module):
    assert all(hasattr(module, name) for name in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


def test_the_errors_are_those_of_the_async_side():
    assert issubclass(leveret.sync.RpcUnreachableError, leveret.sync.TransportUnavailableError)
    assert issubclass(leveret.sync.RpcUnknownError, leveret.sync.TransportUnavailableError)
    assert issubclass(leveret.sync.RpcTimeoutError, TimeoutError)
