from __future__ import annotations

import asyncio
import json
import logging
import threading
import time

import pytest
from tests.unit.sync.conftest import wait_for

from leveret.core.errors import PublishRefused, PublishTimeout
from leveret.sync import RabbitMQTransport, TransportHealth, TransportUnavailableError, line


def cycle():
    value = {}
    value["me"] = value
    return value


BAD_PAYLOADS = [
    ({"price": float("nan")}, r'payload\["price"\]'),
    ({"a": [1, {"raw": b"bytes"}]}, r'payload\["a"\]\[1\]\["raw"\]'),
    ({"tags": {1, 2}}, r'payload\["tags"\]'),
    (cycle(), r"payload"),
    ({"n": 2**70}, r'payload\["n"\]'),
    ({"a": {1: "one"}}, r'payload\["a"\]'),
]


def test_it_does_not_connect_before_it_is_used(scene):
    transport = scene.transport()

    assert transport.health() is TransportHealth.DISCONNECTED
    assert scene.broker.snapshot() == {}


def test_an_event_reaches_the_queues_that_are_bound_for_it_persistent_with_id_and_type(scene):
    transport = scene.transport()
    transport.declare_strategy_queue("trex.momentum", "price.*")

    transport.publish_event("price.eurex", {"bid": 17})

    [message] = scene.broker.messages("trex.momentum")
    assert json.loads(message.body) == {"bid": 17}
    assert message.properties.delivery_mode == 2
    assert message.properties.content_type == "application/json"
    assert message.properties.type == "price.eurex"
    assert message.properties.message_id
    assert transport.health() is TransportHealth.CONNECTED


def test_an_unroutable_event_becomes_one_dead_letter_with_reason_key_and_payload(scene, caplog):
    transport = scene.transport()

    transport.publish_event("nobody.listens", {"id": 7, "side": "buy"})

    [letter] = scene.dead()
    assert json.loads(letter.body) == {
        "reason": "unroutable",
        "original_routing_key": "nobody.listens",
        "payload": {"id": 7, "side": "buy"},
    }
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert record.reason == "unroutable"
    assert record.routing_key == "nobody.listens"
    assert record.payload_keys == ["id", "side"]
    assert "buy" not in caplog.text


def test_the_deepest_payload_allowed_can_be_a_dead_letter_as_well(scene):
    payload = {}
    for _ in range(499):
        payload = {"a": payload}

    scene.transport().publish_event("nobody.listens", payload)

    assert json.loads(scene.dead()[0].body)["payload"] == payload


def test_what_nobody_has_to_take_is_no_dead_letter(scene):
    transport = scene.transport()

    transport.publish_event("nobody.listens", {}, mandatory=False)

    assert scene.dead() == []


def test_unroutable_with_no_dead_letters_either_is_an_alarm_an_error_and_a_line_in_the_log(scene, caplog):
    alarms = []
    heard = threading.Event()

    def callback(*alarm):
        alarms.append(alarm)
        heard.set()

    transport = scene.transport(alarm_callback=callback)
    transport.declare_topology()
    scene.broker.delete_queue("trex.events.dlq")

    with pytest.raises(TransportUnavailableError, match=r"trex\.events\.dlq did not take it either"):
        transport.publish_event("nobody.listens", {"id": 7})

    assert heard.wait(5)
    [(code, _, fields)] = alarms
    assert code == "dlq_publish_failed"
    assert fields["routing_key"] == "nobody.listens"
    assert any(getattr(each, "action", "") == "dead_letter_failed" for each in caplog.records)


@pytest.mark.parametrize(("payload", "path"), BAD_PAYLOADS)
def test_a_payload_that_json_cannot_carry_is_a_value_error_with_its_path_and_nothing_is_sent(
    scene, payload, path
):
    transport = scene.transport()

    for call in (
        lambda: transport.publish_event("a.b", payload),
        lambda: transport.publish_alarm_event("a.b", payload),
        lambda: transport.call_rpc("trex.price.req", payload, correlation_id="c", timeout=1),
    ):
        with pytest.raises(ValueError, match=path):
            call()
    assert transport.health() is TransportHealth.DISCONNECTED


@pytest.mark.parametrize("payload", [None, [1], "text", b"bytes", 5])
def test_a_payload_that_is_no_dict_is_refused(scene, payload):
    with pytest.raises(ValueError, match="expected a dict"):
        scene.transport().publish_event("a.b", payload)


@pytest.mark.parametrize("key", ["", "x" * 256, "ü" * 128, None, 5])
def test_a_routing_key_that_amqp_cannot_carry_is_refused(scene, key):
    transport = scene.transport()

    with pytest.raises(ValueError, match="routing key"):
        transport.publish_event(key, {})
    with pytest.raises(ValueError, match="routing key"):
        transport.publish_alarm_event(key, {})


@pytest.mark.parametrize(
    ("options", "about"),
    [
        ({"timeout": -1}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"intent_prefetch": 0}, "intent_prefetch"),
        ({"snapshot_prefetch": 70_000}, "snapshot_prefetch"),
        ({"namespace": "a.b"}, "namespace"),
        ({"alarm_callback": "print"}, "alarm_callback"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, about):
    with pytest.raises(ValueError, match=about):
        RabbitMQTransport("memory://", **options)


@pytest.mark.parametrize("queue", ["", "x" * 256])
def test_a_queue_name_that_amqp_cannot_carry_is_refused(scene, queue):
    transport, stop = scene.transport(), threading.Event()

    for call in (
        lambda: transport.declare_strategy_queue(queue, "#"),
        lambda: transport.consume_events_forever(queue, "#", lambda *_: None, stop),
        lambda: transport.consume_rpc_forever(queue, lambda _: None, stop),
        lambda: transport.call_rpc(queue, {}, correlation_id="c", timeout=1),
    ):
        with pytest.raises(ValueError, match="queue"):
            call()


@pytest.mark.parametrize("key", ["#", "", "a.b"])
def test_an_instance_key_that_is_no_word_is_refused(scene, key):
    with pytest.raises(ValueError, match="instance key"):
        scene.transport().declare_topology(key)


@pytest.mark.parametrize("timeout", [-1, 0, float("inf"), "5"])
def test_a_calls_timeout_that_cannot_be_meant_is_refused(scene, timeout):
    with pytest.raises(ValueError, match="timeout"):
        scene.transport().call_rpc("trex.price.req", {}, correlation_id="c", timeout=timeout)


@pytest.mark.parametrize(
    ("url", "part"), [("amqp://shop:p@ss@host", "password"), ("amqp://shop:se#cret@host", "password")]
)
def test_a_url_that_cannot_be_read_names_the_part_and_never_shows_the_password(url, part):
    with pytest.raises(ValueError, match=part) as caught:
        RabbitMQTransport(url)
    assert "%40" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("p@ss", "se#cret", "cret"))


def test_the_password_stands_in_no_repr():
    assert "secret" not in repr(RabbitMQTransport("amqp://shop:secret@host"))


def test_a_confirm_that_is_lost_leads_to_a_second_try_under_the_same_id(scene):
    transport = scene.transport()
    transport.declare_strategy_queue("trex.momentum", "#")
    scene.broker.lose_next_confirm(1)

    transport.publish_event("a.b", {"id": 1})

    ids = [message.properties.message_id for message in scene.broker.messages("trex.momentum")]
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_an_event_that_the_broker_refuses_once_goes_out_again(scene):
    transport = scene.transport()
    transport.declare_strategy_queue("trex.momentum", "#")
    scene.broker.refuse_next(1)

    transport.publish_event("a.b", {})

    assert len(scene.broker.messages("trex.momentum")) == 1


def test_an_exchange_that_was_deleted_is_declared_again(scene):
    transport = scene.transport()
    transport.declare_topology()
    scene.broker.delete_exchange("trex.events")

    transport.publish_event("a.b", {"id": 1})

    assert json.loads(scene.dead()[0].body)["original_routing_key"] == "a.b"


def test_where_nothing_answers_it_ends_in_time_as_unknown_with_an_alarm(scene):
    alarms = []
    heard = threading.Event()

    def callback(*alarm):
        alarms.append(alarm)
        heard.set()

    transport = scene.transport(timeout=0.2, alarm_callback=callback)
    transport.declare_strategy_queue("trex.momentum", "#")
    scene.broker.lose_next_confirm(2)
    since = time.monotonic()

    with pytest.raises(TransportUnavailableError, match="Unknown whether it arrived"):
        transport.publish_event("a.b", {})

    assert time.monotonic() - since < 2.5
    assert heard.wait(5)
    code, _, fields = alarms[0]
    assert code == "publish_unavailable_after_reconnect"
    assert fields["routing_key"] == "a.b"
    assert fields["error"]


def answering(transport, monkeypatch, *errors):
    """Have publishes of events answered so, one after the other."""
    left, real = list(errors), transport._line.transport.send

    def send(message):
        if message.exchange != "trex.events":
            return real(message)
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(left.pop(0))
        return answer

    monkeypatch.setattr(transport._line.transport, "send", send)


UNKNOWN, NO_EXCHANGE = PublishTimeout("the line went"), PublishRefused("404 NOT_FOUND", code=404)


@pytest.mark.parametrize(
    ("errors", "known"),
    [
        # The first copy may lie there, whatever became of the second.
        ((UNKNOWN, PublishRefused("basic.nack")), "Unknown whether it arrived"),
        ((NO_EXCHANGE, UNKNOWN), "Unknown whether it arrived"),
        ((PublishRefused("basic.nack"), UNKNOWN), "Unknown whether it arrived"),
        ((PublishRefused("basic.nack"), PublishRefused("basic.nack")), "The broker does not have it"),
    ],
)
def test_the_broker_does_not_have_it_is_said_only_where_no_try_may_have_arrived(
    scene, monkeypatch, errors, known
):
    transport = scene.transport(timeout=0.4)
    transport.declare_strategy_queue("trex.momentum", "#")

    answering(transport, monkeypatch, *errors)
    with pytest.raises(TransportUnavailableError, match=known):
        transport.publish_event("a.b", {})
    answering(transport, monkeypatch, *errors)
    [outcome] = transport.publish_events([("a.b", {})])
    assert outcome.state == ("unknown" if known.startswith("Unknown") else "refused")


def test_a_fault_while_connecting_is_logged_and_whoever_waits_gets_the_connection(scene, monkeypatch, caplog):
    monkeypatch.setattr(line, "FIRST_DELAYS", (0.01,))
    transport = scene.transport(timeout=5)
    connect, faults = transport._line.transport.open, [RuntimeError("a fault of ours")]

    async def faulty():
        if faults:
            raise faults.pop()
        await connect()

    monkeypatch.setattr(transport._line.transport, "open", faulty)
    transport.declare_strategy_queue("trex.momentum", "#")

    assert any("a fault of ours" in record.getMessage() for record in caplog.records)
    assert transport.health() is TransportHealth.CONNECTED


def test_while_the_broker_is_down_every_publish_ends_in_time_and_the_next_one_after_it_works(scene):
    transport = scene.transport(timeout=0.2)
    transport.declare_strategy_queue("trex.momentum", "#")
    scene.broker.stop()
    wait_for(lambda: transport.health() is TransportHealth.RECONNECTING)

    for _ in range(5):
        since = time.monotonic()
        with pytest.raises(TransportUnavailableError, match="does not have it"):
            transport.publish_event("a.b", {})
        assert time.monotonic() - since < 2.5
    scene.broker.start()
    transport.publish_event("a.b", {})

    assert len(scene.broker.messages("trex.momentum")) == 1


def test_a_broker_that_was_never_there_is_told_and_found_once_it_is(scene):
    scene.broker.stop()
    transport = scene.transport(timeout=0.2)

    with pytest.raises(TransportUnavailableError, match="stopped"):
        transport.publish_event("a.b", {})
    assert transport.health() is TransportHealth.RECONNECTING
    scene.broker.start()
    transport.publish_event("a.b", {})

    assert transport.health() is TransportHealth.CONNECTED


def test_a_blocked_broker_is_told_as_such_and_what_was_not_sent_never_goes_out(scene):
    transport = scene.transport(timeout=0.2)
    transport.declare_strategy_queue("trex.momentum", "#")
    scene.broker.block()

    with pytest.raises(
        TransportUnavailableError, match=r"blocked by an alarm of the broker.*does not have it"
    ):
        transport.publish_event("a.b", {"id": 1})
    assert transport.health() is TransportHealth.CONNECTED
    scene.broker.unblock()
    transport.publish_event("a.b", {"id": 2})

    assert [json.loads(each.body)["id"] for each in scene.broker.messages("trex.momentum")] == [2]


def test_publish_events_tells_what_became_of_each_in_order(scene):
    transport = scene.transport()
    transport.declare_strategy_queue("trex.momentum", "price.*")

    outcomes = transport.publish_events(
        [
            ("price.a", {"n": 1}),
            ("nobody.listens", {"n": 2}),
            ("price.b", {"n": float("inf")}),
            ("price.c", {"n": 4}),
        ]
    )

    assert [outcome.state for outcome in outcomes] == ["confirmed", "dead", "refused", "confirmed"]
    assert 'payload["n"]' in str(outcomes[2].error)
    assert [json.loads(each.body)["n"] for each in scene.broker.messages("trex.momentum")] == [1, 4]
    assert len(scene.dead()) == 1


def test_publish_events_takes_more_than_the_window_lets_out(scene):
    transport = scene.transport(timeout=10)
    transport.declare_strategy_queue("trex.momentum", "#")

    outcomes = transport.publish_events(("a.b", {"n": number}) for number in range(2600))

    assert {outcome.state for outcome in outcomes} == {"confirmed"}
    numbers = [json.loads(each.body)["n"] for each in scene.broker.messages("trex.momentum")]
    assert numbers == list(range(2600))
    assert len({outcome.message_id for outcome in outcomes}) == 2600


def test_publish_events_gives_up_once_the_broker_takes_nothing_any_more(scene):
    transport = scene.transport(timeout=0.2)
    transport.declare_topology()
    scene.broker.block()
    since = time.monotonic()

    outcomes = transport.publish_events(("a.b", {"n": number}) for number in range(5000))

    assert time.monotonic() - since < 5
    assert len(outcomes) == 5000
    assert {outcome.state for outcome in outcomes} == {"refused"}
    assert all(isinstance(outcome.error, TransportUnavailableError) for outcome in outcomes)


def test_no_events_are_no_outcomes(scene):
    assert scene.transport().publish_events([]) == []


def test_an_alarm_event_goes_to_the_alerts_exchange_transient(scene):
    transport = scene.transport()
    transport.declare_topology()
    scene.broker.declare_queue("ears")
    scene.broker.bind("trex.alerts", "ears", "#")

    transport.publish_alarm_event("alarm.WARNING.feed", {"feed": "eurex"})

    wait_for(lambda: scene.broker.messages("ears"))
    [message] = scene.broker.messages("ears")
    assert json.loads(message.body) == {"feed": "eurex"}
    assert message.routing_key == "alarm.WARNING.feed"
    assert message.properties.delivery_mode == 1


def test_an_alarm_event_returns_at_once_whatever_the_broker_does(scene):
    scene.broker.stop()
    transport = scene.transport()
    since = time.monotonic()

    for _ in range(1000):
        transport.publish_alarm_event("alarm.X.y", {"a": 1})

    assert time.monotonic() - since < 1


def test_a_callback_that_raises_disturbs_nobody(scene):
    heard = threading.Event()

    def callback(*_alarm):
        heard.set()
        raise RuntimeError("the callback's own fault")

    transport = scene.transport(timeout=0.5)
    transport.set_alarm_callback(callback)
    transport.declare_topology()
    scene.broker.block()
    with pytest.raises(TransportUnavailableError):
        transport.publish_event("a.b", {})

    assert heard.wait(5)
    scene.broker.unblock()
    transport.publish_event("a.b", {})


def test_after_close_every_use_says_so(scene):
    transport, stop = scene.transport(), threading.Event()
    transport.declare_topology()
    transport.close()
    transport.close()

    for call in (
        lambda: transport.publish_event("a.b", {}),
        lambda: transport.publish_events([("a.b", {})]),
        lambda: transport.publish_alarm_event("a.b", {}),
        transport.declare_topology,
        lambda: transport.call_rpc("trex.price.req", {}, correlation_id="c", timeout=1),
        lambda: transport.consume_events_forever("q", "#", lambda *_: None, stop),
        lambda: transport.consume_rpc_forever("q", lambda _: None, stop),
    ):
        with pytest.raises(TransportUnavailableError, match="was closed"):
            call()
    transport.keepalive_tick()
    assert transport.health() is TransportHealth.DISCONNECTED


def test_keepalive_tick_neither_connects_nor_blocks(scene):
    transport = scene.transport()

    transport.keepalive_tick()

    assert transport.health() is TransportHealth.DISCONNECTED


def test_many_threads_share_one_transport(scene):
    transport = scene.transport(timeout=10)
    transport.declare_strategy_queue("trex.momentum", "#")

    def publish(thread):
        for number in range(50):
            transport.publish_event("a.b", {"n": thread * 1000 + number})

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({each.body for each in scene.broker.messages("trex.momentum")}) == 1000


async def test_it_works_inside_somebody_elses_event_loop(scene):
    transport = scene.transport()
    transport.declare_strategy_queue("trex.momentum", "#")

    transport.publish_event("a.b", {})

    assert len(scene.broker.messages("trex.momentum")) == 1


def test_a_publish_that_close_overtakes_says_that_it_may_have_arrived(scene):
    transport = scene.transport(timeout=20)
    transport.declare_topology()
    scene.broker.lose_next_confirm(1)
    raised = []

    def publish():
        with pytest.raises(TransportUnavailableError) as caught:
            transport.publish_event("a.b", {})
        raised.append(str(caught.value))

    thread = threading.Thread(target=publish)
    thread.start()
    wait_for(lambda: scene.dead() or transport._line.transport.sendable)
    wait_for(lambda: transport._line.transport._live() and transport._line.transport._live().outstanding)
    transport.close()
    thread.join(10)

    assert "Unknown whether it arrived" in raised[0]


def test_whoever_gives_up_while_the_broker_is_away_leaves_nothing_behind(scene):
    transport = scene.transport(timeout=0.02)
    transport.declare_topology()
    scene.broker.stop()
    wait_for(lambda: transport.health() is TransportHealth.RECONNECTING)
    for _ in range(10):
        with pytest.raises(TransportUnavailableError):
            transport.publish_event("a.b", {})
    never = scene.transport(timeout=0.02)
    for _ in range(10):
        with pytest.raises(TransportUnavailableError):
            never.publish_event("a.b", {})

    assert not transport._line.transport._window._waiting
    wait_for(lambda: not never._line._waiting)


def test_an_event_that_waited_for_a_connection_goes_out_once_when_a_new_one_is_made_for_it(
    scene, monkeypatch
):
    transport = scene.transport(timeout=0.4)
    transport.declare_strategy_queue("trex.momentum", "#")
    scene.broker.stop()
    wait_for(lambda: transport.health() is TransportHealth.RECONNECTING)
    renew = transport._line.transport.renew_publishing

    async def start_and_renew():
        scene.broker.start()
        await renew()

    monkeypatch.setattr(transport._line.transport, "renew_publishing", start_and_renew)
    transport.publish_event("a.b", {})
    transport.publish_event("a.b", {})

    assert len(scene.broker.messages("trex.momentum")) == 2


def test_one_alarm_for_all_that_could_not_be_published_and_one_when_it_works_again(scene):
    transport = scene.transport(timeout=0.5)
    transport.declare_topology()
    scene.broker.declare_queue("ears")
    scene.broker.bind("trex.alerts", "ears", "#.publish_unavailable_after_reconnect")
    scene.broker.bind("trex.events", "ears", "nothing")
    scene.broker.block()
    for key in ("price.a", "price.b", "order.filled"):
        with pytest.raises(TransportUnavailableError):
            transport.publish_event(key, {})
    scene.broker.unblock()
    transport.publish_event("price.a", {})

    def told():
        return [json.loads(message.body)["state"] for message in scene.broker.messages("ears")]

    wait_for(lambda: "resolved" in told())
    assert told().count("holds") <= 1
