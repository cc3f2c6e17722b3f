from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from tests.unit.sync.conftest import wait_for

from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import QueueMismatch
from leveret.core.message import DIRECT_REPLY, Outgoing
from leveret.core.properties import Properties
from leveret.dead_letters.reading import read
from leveret.pipeline import broker_watch
from leveret.sync import (
    RabbitMQTransport,
    RpcRemoteError,
    RpcRequest,
    RpcResponse,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    TransportUnavailableError,
    consumer,
)
from leveret.sync.topology import RpcChannel, control_queue
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryTransport


async def letter_of(scene) -> DeadLetter:
    """The dead letter as a keeper reads it."""
    world = fake_world()
    transport = MemoryTransport(scene.broker, world=world)
    await transport.open()
    delivery = await transport.get("trex.events.dlq")
    letter = read(delivery, namespace="trex", events="trex.events", now=1.0, new_id=world.new_id)
    delivery.ack()
    await transport.close()
    return letter


def consumers(scene, queue) -> int:
    state = scene.broker.queue_state(queue)
    return 0 if state is None else state.consumers


# ── Events ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_events_are_handled_in_order_on_the_calling_thread_and_acked(scene):
    transport, seen, threads = scene.transport(), [], set()

    def handle(key, payload):
        threads.add(threading.current_thread())
        seen.append((key, payload["n"]))

    _, thread = scene.loop(transport.consume_events_forever, "trex.momentum", "price.*", handle)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    transport.publish_events([("price.a", {"n": number}) for number in range(50)])

    wait_for(lambda: len(seen) == 50)
    assert seen == [("price.a", number) for number in range(50)]
    assert threads == {thread}
    wait_for(lambda: scene.broker.snapshot()["trex.momentum"].unsettled == 0)


async def test_an_event_whose_handler_raised_becomes_a_dead_letter_with_its_reason(scene):
    transport = scene.transport()

    def handle(key, payload):
        if payload["n"] == 1:
            raise ValueError("no such instrument")

    scene.loop(transport.consume_events_forever, "trex.momentum", "price.*", handle)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    transport.publish_events([("price.a", {"n": number}) for number in range(3)])

    wait_for(scene.dead)
    letter = await letter_of(scene)
    assert letter.reason == "ValueError: no such instrument"
    assert letter.error == "ValueError"
    assert "no such instrument" in letter.traceback
    assert "leveret" not in letter.traceback.replace(__file__, "").split("File", 1)[1].splitlines()[0]
    assert (letter.queue, letter.routing_key) == ("trex.momentum", "price.a")
    assert json.loads(letter.body) == {"n": 1}
    assert not letter.rpc
    assert scene.dead() == []


async def test_an_event_that_is_no_json_object_becomes_a_dead_letter_unseen(scene):
    transport, seen = scene.transport(), []
    scene.loop(transport.consume_events_forever, "trex.momentum", "#", lambda *event: seen.append(event))
    wait_for(lambda: consumers(scene, "trex.momentum"))
    other = MemoryTransport(scene.broker, world=fake_world())
    await other.open()
    await other.send(Outgoing("trex.events", "a.b", b"[1]", Properties.build()))
    await other.send(Outgoing("trex.events", "a.b", b"", Properties.build()))
    wait_for(lambda: seen and scene.dead())

    letter = await letter_of(scene)
    assert letter.ending == "undecodable"
    assert letter.body == b"[1]"
    assert seen == [("a.b", {})]
    await other.close()


def test_a_loop_ends_within_half_a_second_of_stop(scene):
    transport = scene.transport()
    stop, thread = scene.loop(transport.consume_events_forever, "trex.momentum", "#", lambda *_: None)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    since = time.monotonic()
    stop.set()
    thread.join(5)

    assert time.monotonic() - since < 0.5
    assert consumers(scene, "trex.momentum") == 0


def test_what_was_not_started_goes_back_and_what_runs_is_finished_and_acked(scene):
    transport, begun, go_on = scene.transport(), threading.Event(), threading.Event()

    def handle(key, payload):
        begun.set()
        go_on.wait(10)

    stop, thread = scene.loop(transport.consume_events_forever, "trex.momentum", "#", handle)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    transport.publish_events([("a.b", {"n": number}) for number in range(5)])
    assert begun.wait(5)
    stop.set()
    go_on.set()
    thread.join(5)

    wait_for(lambda: scene.broker.snapshot()["trex.momentum"].unsettled == 0)
    assert [json.loads(each.body)["n"] for each in scene.broker.messages("trex.momentum")] == [1, 2, 3, 4]


def test_a_loop_waits_for_a_broker_that_is_not_there_and_stops_all_the_same(scene):
    scene.broker.stop()
    transport = scene.transport()
    stop, thread = scene.loop(transport.consume_events_forever, "trex.momentum", "#", lambda *_: None)
    wait_for(lambda: transport.health().value == "reconnecting")
    stop.set()
    thread.join(1)

    assert not thread.is_alive()


def test_consumers_come_back_after_the_connection_was_lost_and_there_is_one_as_before(scene):
    transport, seen = scene.transport(), []
    scene.loop(
        transport.consume_events_forever, "trex.momentum", "#", lambda _, event: seen.append(event["n"])
    )
    wait_for(lambda: consumers(scene, "trex.momentum"))

    for number in range(20):
        scene.broker.drop_connections()
        transport.publish_event("a.b", {"n": number})

    wait_for(lambda: sorted(set(seen)) == list(range(20)))
    assert consumers(scene, "trex.momentum") == 1


def test_an_event_that_was_handled_while_its_connection_went_is_not_run_twice(scene):
    transport, runs, begun, go_on = scene.transport(), [], threading.Event(), threading.Event()

    def handle(key, payload):
        runs.append(payload["n"])
        begun.set()
        go_on.wait(10)

    scene.loop(transport.consume_events_forever, "trex.momentum", "#", handle)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    transport.publish_event("a.b", {"n": 1})
    assert begun.wait(5)
    scene.broker.drop_connections()
    wait_for(lambda: scene.broker.snapshot()["trex.momentum"].unsettled == 1)
    go_on.set()

    wait_for(lambda: scene.broker.snapshot()["trex.momentum"].unsettled == 0)
    assert scene.broker.messages("trex.momentum") == []
    assert runs == [1]


@pytest.mark.parametrize("ends_the_program", [KeyboardInterrupt, SystemExit])
def test_a_handler_that_is_interrupted_gives_its_event_back_and_ends_the_loop(scene, ends_the_program):
    transport, stop = scene.transport(), threading.Event()
    transport.declare_strategy_queue("trex.momentum", "#")
    transport.publish_event("a.b", {"n": 1})

    def handle(key, payload):
        # On the main thread, as by a signal's handler.
        raise ends_the_program

    with pytest.raises(ends_the_program):
        transport.consume_events_forever("trex.momentum", "#", handle, stop)

    wait_for(lambda: len(scene.broker.messages("trex.momentum")) == 1)
    assert consumers(scene, "trex.momentum") == 0
    assert scene.dead() == []


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_a_handler_that_raises_what_would_end_its_thread_ends_its_event_alone(scene, raised):
    transport, seen = scene.transport(), []

    def handle(key, payload):
        seen.append(payload["n"])
        if payload["n"] == 1:
            raise raised("the handler's own")

    _, thread = scene.loop(transport.consume_events_forever, "trex.momentum", "#", handle)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    transport.publish_events([("a.b", {"n": number}) for number in (1, 2)])

    wait_for(lambda: scene.dead() and seen == [1, 2])
    assert thread.is_alive()
    wait_for(lambda: scene.broker.snapshot()["trex.momentum"].unsettled == 0)
    assert scene.broker.messages("trex.momentum") == []


class Exits(Exception):
    def __str__(self):
        raise SystemExit("no words")


def test_an_exception_that_cannot_be_written_down_ends_its_message_alone(scene):
    transport = scene.transport()

    def handle(*_):
        raise Exits

    scene.loop(transport.consume_events_forever, "trex.momentum", "#", handle)
    scene.loop(transport.consume_rpc_forever, "trex.slots.req", handle)
    wait_for(lambda: consumers(scene, "trex.momentum") and consumers(scene, "trex.slots.req"))
    transport.publish_event("a.b", {})
    with pytest.raises(RpcRemoteError, match="Exits"):
        transport.call_rpc("trex.slots.req", {}, correlation_id="c", timeout=5)

    wait_for(lambda: len(scene.dead()) == 2)
    assert [scene.broker.snapshot()[queue].ready for queue in ("trex.momentum", "trex.slots.req")] == [0, 0]


def test_a_run_that_comes_near_the_brokers_consumer_timeout_is_told_of_once(scene, monkeypatch, caplog):
    monkeypatch.setattr(consumer, "LONG", 0.05)
    monkeypatch.setattr(consumer, "LOOK_EVERY", 0.01)
    transport, go_on = scene.transport(), threading.Event()
    scene.loop(transport.consume_events_forever, "trex.momentum", "#", lambda *_: go_on.wait(10))
    wait_for(lambda: consumers(scene, "trex.momentum"))
    transport.publish_event("a.b", {})

    def told():
        return [each.getMessage() for each in caplog.records if getattr(each, "action", "") == "long_run"]

    wait_for(told)
    threading.Event().wait(0.1)
    go_on.set()
    [said] = told()
    assert "trex.momentum" in said
    assert "consumer_timeout" in said


def test_a_loop_that_does_not_consume_and_a_broker_that_is_blocked_are_alarms_with_their_end(
    scene, monkeypatch
):
    monkeypatch.setattr(broker_watch, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(broker_watch, "PATIENCE", 0.05)
    heard = []
    transport = scene.transport(alarm_callback=lambda code, _, fields: heard.append(code))
    transport.declare_topology()
    scene.broker.declare_queue("ears")
    scene.broker.bind("trex.alerts", "ears", "#")
    scene.loop(transport.consume_events_forever, "trex.momentum", "#", lambda *_: None)
    wait_for(lambda: consumers(scene, "trex.momentum"))

    def told(code):
        bodies = [json.loads(message.body) for message in scene.broker.messages("ears")]
        return [(each["about"], each["state"]) for each in bodies if each["code"] == code]

    [looped] = transport._consumers
    subscription = looped._server._subscription
    looped._server._subscription = None
    wait_for(lambda: told("consumer_lost") == [("trex.momentum", "holds")])
    looped._server._subscription = subscription
    wait_for(lambda: told("consumer_lost") == [("trex.momentum", "holds"), ("trex.momentum", "resolved")])
    scene.broker.block()
    wait_for(lambda: "connection_blocked" in heard)
    scene.broker.unblock()
    wait_for(lambda: [state for _, state in told("connection_blocked")][-1:] == ["resolved"])


def test_close_leaves_no_thread_behind(scene):
    before, heard = set(threading.enumerate()), threading.Event()
    transport = scene.transport(alarm_callback=lambda *_: heard.set())
    stop, thread = scene.loop(transport.consume_events_forever, "trex.momentum", "price.*", lambda *_: None)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    scene.broker.delete_queue("trex.events.dlq")
    with pytest.raises(TransportUnavailableError):
        transport.publish_event("nobody.listens", {})
    assert heard.wait(5)
    stop.set()
    thread.join(5)
    transport.close()

    wait_for(lambda: set(threading.enumerate()) <= before)


def test_close_leaves_no_thread_behind_of_a_transport_that_never_reached_its_broker():
    before, heard = set(threading.enumerate()), threading.Event()
    with RabbitMQTransport("amqp://127.0.0.1:1", timeout=0.1, alarm_callback=lambda *_: heard.set()) as never:
        with pytest.raises(TransportUnavailableError, match="nobody answers"):
            never.publish_event("a.b", {})
        assert heard.wait(5)

    wait_for(lambda: set(threading.enumerate()) <= before)


def test_close_under_a_running_loop_ends_it(scene):
    transport, ended = scene.transport(), []

    def consume(stop):
        with pytest.raises(TransportUnavailableError, match="closed"):
            transport.consume_events_forever("trex.momentum", "#", lambda *_: None, stop)
        ended.append(True)

    _, thread = scene.loop(consume)
    wait_for(lambda: consumers(scene, "trex.momentum"))
    transport.close()
    thread.join(5)

    assert ended == [True]


def test_a_queue_that_would_lose_messages_is_refused(scene):
    scene.broker.declare_queue("trex.momentum", arguments={"x-message-ttl": 1000})
    transport = scene.transport()

    with pytest.raises(QueueMismatch, match="x-message-ttl"):
        transport.consume_events_forever("trex.momentum", "#", lambda *_: None, threading.Event())


def test_its_prefetch_is_the_snapshot_prefetch(scene):
    transport, begun, go_on = scene.transport(snapshot_prefetch=3), threading.Event(), threading.Event()

    def handle(key, payload):
        begun.set()
        go_on.wait(10)

    transport.declare_strategy_queue("trex.momentum", "#")
    transport.publish_events([("a.b", {"n": number}) for number in range(10)])
    scene.loop(transport.consume_events_forever, "trex.momentum", "#", handle)
    assert begun.wait(5)

    wait_for(lambda: scene.broker.snapshot()["trex.momentum"].unsettled == 3)
    go_on.set()


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_answered_with_what_the_handler_returned(scene):
    transport, seen = scene.transport(), []

    def answer(request: RpcRequest) -> RpcResponse:
        seen.append(request)
        return RpcResponse({"accepted": request.payload["id"]})

    scene.loop(transport.consume_rpc_forever, "trex.intent.req", answer)
    wait_for(lambda: consumers(scene, "trex.intent.req"))

    assert transport.call_rpc("trex.intent.req", {"id": 7}, correlation_id="c-1", timeout=5) == {
        "accepted": 7
    }
    [request] = seen
    assert request.payload == {"id": 7}
    assert request.correlation_id == "c-1"
    assert request.reply_to.startswith(DIRECT_REPLY)
    assert request.properties["headers"] == {}
    assert request.properties["redelivered"] is False


def test_an_empty_body_is_an_empty_object(scene):
    transport, seen = scene.transport(), []

    def answer(request):
        seen.append(request.payload)
        return RpcResponse({})

    scene.loop(transport.consume_rpc_forever, "trex.slots.req", answer)
    wait_for(lambda: consumers(scene, "trex.slots.req"))
    transport.call_rpc("trex.slots.req", {}, correlation_id="c", timeout=5)

    assert seen == [{}]


async def test_a_handler_that_raises_is_told_to_the_caller_and_is_a_dead_letter(scene):
    transport = scene.transport()

    def answer(request):
        raise KeyError("instrument")

    scene.loop(transport.consume_rpc_forever, "trex.intent.req", answer)
    wait_for(lambda: consumers(scene, "trex.intent.req"))

    with pytest.raises(RpcRemoteError, match="KeyError: 'instrument'") as caught:
        transport.call_rpc("trex.intent.req", {"id": 7}, correlation_id="c", timeout=5)
    assert caught.value.type == "KeyError"
    letter = await letter_of(scene)
    assert letter.rpc
    assert letter.queue == "trex.intent.req"
    assert scene.broker.messages("trex.intent.req") == []


def test_a_handler_that_exits_ends_its_request_alone_and_the_next_one_is_answered(scene):
    transport = scene.transport()

    def answer(request):
        if request.payload.get("exit"):
            raise SystemExit(1)
        return RpcResponse({})

    scene.loop(transport.consume_rpc_forever, "trex.intent.req", answer)
    wait_for(lambda: consumers(scene, "trex.intent.req"))

    with pytest.raises(RpcRemoteError, match="SystemExit"):
        transport.call_rpc("trex.intent.req", {"exit": True}, correlation_id="c-1", timeout=5)
    assert transport.call_rpc("trex.intent.req", {}, correlation_id="c-2", timeout=5) == {}
    assert len(scene.dead()) == 1


@pytest.mark.parametrize(
    ("queue", "options", "unsettled"),
    [
        ("trex.intent.req", {}, 1),
        ("trex.live-1.intent.req", {"intent_prefetch": 2}, 2),
        ("trex.slots.req", {}, 8),
        ("trex.slots.req", {"snapshot_prefetch": 3}, 3),
    ],
)
async def test_intents_come_one_by_one_and_other_requests_as_many_as_the_snapshot_prefetch_says(
    scene, queue, options, unsettled
):
    transport, begun, go_on = scene.transport(**options), threading.Event(), threading.Event()

    def answer(request):
        begun.set()
        go_on.wait(10)
        return RpcResponse({})

    scene.loop(transport.consume_rpc_forever, queue, answer)
    wait_for(lambda: consumers(scene, queue))
    other = MemoryTransport(scene.broker, world=fake_world())
    await other.open()
    for _ in range(10):
        await other.send(Outgoing("", queue, b"{}", Properties.build()))
    await other.close()
    assert begun.wait(5)

    wait_for(lambda: scene.broker.snapshot()[queue].unsettled == unsettled)
    # And no more come.
    threading.Event().wait(0.05)
    assert scene.broker.snapshot()[queue].unsettled == unsettled
    go_on.set()
    wait_for(lambda: scene.broker.snapshot()[queue].unsettled == 0)


def test_a_close_in_the_middle_of_a_call_leaves_it_unknown(scene):
    transport, raised = scene.transport(), []
    scene.broker.declare_queue("trex.price.req")

    def call():
        with pytest.raises(RpcUnknownError, match="may be obeyed"):
            transport.call_rpc("trex.price.req", {}, correlation_id="c", timeout=20)
        raised.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    wait_for(lambda: scene.broker.messages("trex.price.req"))
    transport.close()
    thread.join(5)

    assert raised == [True]


def test_a_handler_that_returns_no_response_has_failed(scene):
    transport = scene.transport()
    scene.loop(transport.consume_rpc_forever, "trex.intent.req", lambda _: {"id": 7})
    wait_for(lambda: consumers(scene, "trex.intent.req"))

    with pytest.raises(RpcRemoteError, match="expected an RpcResponse"):
        transport.call_rpc("trex.intent.req", {}, correlation_id="c", timeout=5)


def test_nobody_bound_is_told_at_once(scene):
    transport = scene.transport()
    transport.declare_topology()
    since = time.monotonic()

    with pytest.raises(RpcUnreachableError):
        transport.call_rpc("trex.nobody.req", {}, correlation_id="c", timeout=5)
    assert time.monotonic() - since < 0.2


def test_a_request_whose_caller_gave_up_is_not_started(scene):
    transport, seen, begun, go_on = scene.transport(), [], threading.Event(), threading.Event()

    def answer(request):
        seen.append(request.correlation_id)
        begun.set()
        go_on.wait(10)
        return RpcResponse({})

    scene.loop(transport.consume_rpc_forever, "trex.slots.req", answer)
    wait_for(lambda: consumers(scene, "trex.slots.req"))
    caller = threading.Thread(
        target=transport.call_rpc,
        args=("trex.slots.req", {}),
        kwargs={"correlation_id": "first", "timeout": 10},
    )
    caller.start()
    assert begun.wait(5)
    with pytest.raises(RpcTimeoutError, match=r"trex\.slots\.req .*second.* 0\.05"):
        transport.call_rpc("trex.slots.req", {}, correlation_id="second", timeout=0.05)
    go_on.set()
    caller.join(5)

    assert transport.call_rpc("trex.slots.req", {}, correlation_id="third", timeout=5) == {}
    assert seen == ["first", "third"]
    wait_for(lambda: scene.broker.snapshot()["trex.slots.req"].unsettled == 0)


@pytest.mark.parametrize("queue", ["trex.intent.req", "trex.live-1.intent.req"])
def test_intents_of_every_instance_come_one_at_a_time_to_one_consumer(scene, queue):
    first, second = scene.transport(), scene.transport()
    at_once, most, lock = 0, 0, threading.Lock()

    def answer(request):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        threading.Event().wait(0.005)
        with lock:
            at_once -= 1
        return RpcResponse({})

    for transport in (first, second):
        scene.loop(transport.consume_rpc_forever, queue, answer)
    wait_for(lambda: consumers(scene, queue) == 2)
    callers = [
        threading.Thread(
            target=first.call_rpc, args=(queue, {}), kwargs={"correlation_id": str(number), "timeout": 10}
        )
        for number in range(20)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(10)

    assert most == 1


def test_a_call_to_a_broker_that_is_not_there_ends_at_its_timeout(scene):
    scene.broker.stop()
    transport = scene.transport()
    since = time.monotonic()

    with pytest.raises(TransportUnavailableError, match="nothing was sent"):
        transport.call_rpc("trex.slots.req", {}, correlation_id="c", timeout=0.2)
    assert time.monotonic() - since < 1


async def test_what_is_broadcast_reaches_the_control_queue_of_every_instance(scene):
    transport, seen = scene.transport(), []

    def answer(request):
        seen.append(request.payload["pause"])
        return RpcResponse({})

    for key in ("default", "live-1"):
        transport.declare_topology(key)
        queue = control_queue(key, namespace="trex")
        scene.loop(transport.consume_rpc_forever, queue, answer)
        wait_for(lambda queue=queue: consumers(scene, queue))
    other = MemoryTransport(scene.broker, world=fake_world())
    await other.open()
    await other.send(Outgoing("trex.broadcast", "", b'{"pause": true}', Properties.build()))
    await other.close()

    wait_for(lambda: seen == [True, True])


def test_a_daemon_answers_channels_of_its_own_as_they_were_declared(scene, caplog):
    transport = scene.transport()
    transport.declare_topology("arm-2", channels=[RpcChannel("move", ordered=True)])

    scene.loop(transport.consume_rpc_forever, "trex.arm-2.move.req", lambda _: RpcResponse({}))
    wait_for(lambda: consumers(scene, "trex.arm-2.move.req"))

    assert transport.call_rpc("trex.arm-2.move.req", {}, correlation_id="c", timeout=5) == {}
    assert not [record for record in caplog.records if "x-single-active-consumer" in record.getMessage()]
