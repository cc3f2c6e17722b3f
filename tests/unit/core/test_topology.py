from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.core.errors import BadPayload, ConfigError, WorkerDefinition
from leveret.core.topology import (
    Binding,
    ExchangeType,
    Names,
    Queue,
    RMQExchangeConfig,
    Topology,
    base_topology,
    check_namespace,
    check_worker_name,
    worker_topology,
)

NAMES = Names("shop")
EVENTS = RMQExchangeConfig("shop.events")
GOOD = ["a", "Z", "shop", "shop-2", "_", "-", "0", "a" * 64]
BAD: list[Any] = [
    "", "a.b", "shop.", ".", "a b", "a/b", "a#", "*", "ä", "ſ", "a\n", "\na", "a\0", "a" * 65, "٣", None, 3, True,
    b"shop", ["a"],
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_letters_digits_underscore_and_dash_make_a_name(name: str):
    assert check_namespace(name) == name
    assert check_worker_name(name) == name


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_anything_else_is_refused_and_shown(name: object):
    with pytest.raises(ConfigError) as namespace:
        check_namespace(name)
    with pytest.raises(WorkerDefinition) as worker:
        check_worker_name(name)
    for error in (namespace, worker):
        assert repr(name) in str(error.value)
        assert "no dots" in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "retry", "retry_worker", "observer", "events", "events-2", "eventsdlq", "suspects", "my_suspects", "x-suspects",
        "alerts", "direct", "broadcast", "intent", "slots", "control", "strategy_state_set", "pause",
    ],
)  # fmt: skip
def test_a_worker_may_not_have_a_name_that_leveret_uses(name: str):
    with pytest.raises(WorkerDefinition, match=r"name="):
        check_worker_name(name)
    assert check_namespace(name) == name


@pytest.mark.parametrize(
    "name", ["retry2", "Retry", "event", "my-events", "suspects2", "Events", "charge_retry"]
)
def test_a_name_that_only_resembles_one_of_leverets_is_free(name: str):
    assert check_worker_name(name) == name


@given(
    st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
)
def test_no_worker_that_is_allowed_gets_a_queue_that_is_leverets_own(one: str, other: str):
    try:
        check_worker_name(one)
        check_worker_name(other)
    except WorkerDefinition:
        return
    own = {NAMES.events, NAMES.retry_queue, NAMES.dead_letters, NAMES.observer}
    assert not {NAMES.queue(one), NAMES.suspects(one)} & own
    assert NAMES.queue(one) != NAMES.suspects(other)
    assert len(NAMES.suspects(one)) <= 255


def test_the_names_on_the_broker():
    assert [NAMES.events, NAMES.retry_queue, NAMES.dead_letters, NAMES.observer] == [
        "shop.events", "shop.retry", "shop.events.dlq", "shop.observer",
    ]  # fmt: skip
    assert (NAMES.queue("charge"), NAMES.suspects("charge")) == ("shop.charge", "shop.charge.suspects")


# ── Exchanges ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", get_args(ExchangeType))
def test_an_exchange_has_one_of_four_types(kind: Any):
    assert RMQExchangeConfig("shop.events", kind).durable


@pytest.mark.parametrize(
    ("name", "kind"),
    [("", "topic"), (None, "topic"), (3, "topic"), ("amq.topic", "topic"), ("e", "x-random"), ("e", None)],
)
def test_an_exchange_that_cannot_be_declared_is_refused(name: Any, kind: Any):
    with pytest.raises(ConfigError):
        RMQExchangeConfig(name, kind)


def test_the_name_of_an_exchange_is_at_most_255_bytes_long():
    assert RMQExchangeConfig("e" * 255).name
    with pytest.raises((ConfigError, BadPayload), match="255"):
        RMQExchangeConfig("é" * 128)


# ── What is declared ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_side_declares_what_neither_can_do_without():
    base = base_topology(NAMES, EVENTS, "classic", pinned=False)
    assert base == Topology(
        exchanges=(
            EVENTS,
            RMQExchangeConfig("shop.events.dlq", "fanout"),
            RMQExchangeConfig("shop.observer", "fanout"),
            RMQExchangeConfig("shop.alerts"),
        ),
        queues=(Queue("shop.retry"), Queue("shop.events.dlq")),
        bindings=(Binding("shop.events.dlq", "shop.events.dlq"),),
    )


def test_on_sqlite_retry_and_dead_letter_queue_are_classic_and_say_so_whatever_is_asked_for():
    queues = base_topology(NAMES, EVENTS, "quorum", pinned=True).queues
    assert [(queue.queue_type, queue.pinned) for queue in queues] == [("classic", True)] * 2
    shared = base_topology(NAMES, EVENTS, "quorum", pinned=False).queues
    assert [(queue.queue_type, queue.pinned) for queue in shared] == [("quorum", False)] * 2


def test_a_worker_has_a_queue_bound_by_each_type_and_a_suspects_queue_that_is_bound_to_nothing():
    topology = worker_topology(
        NAMES, EVENTS, "charge", ["order.*", "order.paid"], "quorum", {"x-max-priority": 5}
    )
    assert topology == Topology(
        exchanges=(EVENTS,),
        queues=(
            Queue("shop.charge", "quorum", {"x-max-priority": 5}),
            Queue("shop.charge.suspects", "quorum"),
        ),
        bindings=(
            Binding("shop.events", "shop.charge", "order.*"),
            Binding("shop.events", "shop.charge", "order.paid"),
        ),
    )


def test_a_worker_without_types_takes_those_of_its_own_name():
    assert worker_topology(NAMES, EVENTS, "charge", [], "classic").bindings == (
        Binding("shop.events", "shop.charge", "charge"),
    )


def test_a_fanout_binds_once_and_without_a_key():
    fanout = RMQExchangeConfig("shop.events", "fanout")
    assert worker_topology(NAMES, fanout, "charge", [], "classic").bindings == (
        Binding("shop.events", "shop.charge", ""),
    )


def test_topologies_add_up_and_nothing_is_in_them_twice():
    base = base_topology(NAMES, EVENTS, "classic", pinned=True)
    charge = worker_topology(NAMES, EVENTS, "charge", [], "classic")
    assert base + base == base
    assert (base + charge) + charge == base + charge
    assert [queue.name for queue in (base + charge).queues] == [
        "shop.retry", "shop.events.dlq", "shop.charge", "shop.charge.suspects",
    ]  # fmt: skip
    assert Topology() + charge == charge == charge + Topology()
