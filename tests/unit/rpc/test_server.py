from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import pytest
import pytest_asyncio
from tests.unit.running_app import HeardAlarms

from leveret.core import handover
from leveret.core.dead_letter import DeadLetter
from leveret.core.errors import HardFailure, RpcRemoteError, RpcTimeoutError, RpcUnknownError
from leveret.core.instances import RpcChannel, channel_topology, shared_topology
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Names, RMQExchangeConfig
from leveret.dead_letters.reading import read
from leveret.pipeline.parts import Parts
from leveret.pipeline.publishing import Publisher
from leveret.pipeline.recall import REMEMBERED_SECONDS
from leveret.rpc.client import RpcClient
from leveret.rpc.server import Request, RpcServer
from leveret.stores.memory import MemoryData, MemoryStore
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryBroker, MemoryTransport

NAMES = Names("shop")
QUEUE = "shop.price.req"


class Process:
    """One that serves the queue; its handlers are this test."""

    def __init__(self, scene: Scene, seed: int) -> None:
        world = fake_world(seed, scene.clock)
        self.transport = MemoryTransport(scene.broker, world=world)
        self.parts = Parts(
            names=NAMES,
            exchange=RMQExchangeConfig(NAMES.events),
            world=world,
            transport=self.transport,
            store=MemoryStore(clock=scene.clock, data=MemoryData()),
            alarms=HeardAlarms(),
            base=shared_topology("shop")
            + channel_topology(RpcChannel("price", ordered=True), "default", "shop"),
            holder=f"web-{seed}/4711/abcdef",
        )
        self.requests: list[Request] = []
        self.server = RpcServer(
            self.parts,
            Publisher(self.parts, timeout=10, known_types=dict),
            QUEUE,
            prefetch=8,
            on_request=self.requests.append,
            name="price",
        )

    async def start(self) -> None:
        await self.transport.open()
        await self.transport.declare(self.parts.base)
        await self.server.start()
        await idle()

    def finish(self, number: int, result: object) -> asyncio.Future[None]:
        return asyncio.ensure_future(self.server.finish(self.requests[number], result))


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker()
        self.outside = MemoryTransport(self.broker, world=fake_world(9, self.clock))
        self.here = Process(self, 1)
        self.client = RpcClient(self.outside, fake_world(8, self.clock))

    async def call(self, payload=None, **options) -> asyncio.Future[dict]:
        calling = asyncio.ensure_future(self.client.call(QUEUE, payload, **options))
        await idle()
        return calling

    async def send(self, body: bytes = b"{}", **properties) -> None:
        """Send a request as a stranger does."""
        await self.outside.send(Outgoing("", QUEUE, body, Properties.build(**properties), mandatory=False))
        await idle()

    @property
    def lying(self) -> tuple[int, int]:
        """Requests in the queue: ready, unsettled."""
        found = self.broker.snapshot()[QUEUE]
        return found.ready, found.unsettled

    async def letters(self) -> list[DeadLetter]:
        """Take what lies in the dead-letter queue."""
        found = []
        while (delivery := await self.outside.get(NAMES.dead_letters)) is not None:
            found.append(
                read(delivery, namespace="shop", events=NAMES.events, now=0, new_id=fake_world(7).new_id)
            )
            delivery.ack()
        return found


@pytest_asyncio.fixture
async def scene():
    scene = Scene()
    await scene.outside.open()
    await scene.here.start()
    yield scene
    scene.outside.abort()
    scene.here.transport.abort()
    await idle()


async def test_a_request_is_answered_then_acked_and_the_answer_says_by_whom(scene):
    asking = asyncio.ensure_future(scene.client.ask(QUEUE, {"id": 1}, correlation_id="mine"))
    await idle()
    [request] = scene.here.requests
    assert (request.payload, request.correlation_id, request.redelivered) == ({"id": 1}, "mine", False)
    assert scene.lying == (0, 1)
    await scene.here.finish(0, {"cents": 5})
    answer = await asking
    assert (answer.payload, answer.by) == ({"cents": 5}, "web-1/4711")
    assert (scene.lying, scene.here.server.in_hand, scene.here.server.answered) == ((0, 0), 0, 1)


async def test_it_is_not_acked_before_its_reply_is_confirmed(scene):
    calling = await scene.call()
    scene.broker.lose_next_confirm()
    finishing = scene.here.finish(0, {})
    await idle()
    assert (scene.lying, finishing.done()) == ((0, 1), False)
    assert await calling == {}
    finishing.cancel()
    await asyncio.wait([finishing])


async def test_a_body_of_no_bytes_is_an_empty_object(scene):
    await scene.send(b"")
    assert scene.here.requests[0].payload == {}


async def test_a_request_without_reply_to_is_just_acked(scene):
    await scene.send(b'{"id": 1}')
    await scene.here.finish(0, {"nobody": "hears"})
    assert scene.lying == (0, 0)


async def test_a_reply_that_comes_back_is_just_acked(scene, caplog):
    caplog.set_level(logging.DEBUG, "leveret")
    await scene.send(b"{}", reply_to="gone", correlation_id="c")
    await scene.here.finish(0, {})
    assert (scene.lying, await scene.letters()) == ((0, 0), [])
    assert "nobody waits for a reply any more" in caplog.text


async def test_a_reply_goes_to_a_plain_queue_as_well(scene):
    scene.broker.declare_queue("answers")
    await scene.send(b"{}", reply_to="answers", correlation_id="c")
    await scene.here.finish(0, {"cents": 5})
    [reply] = scene.broker.messages("answers")
    assert (reply.body, reply.properties.correlation_id) == (b'{"cents":5}', "c")


async def test_a_client_that_is_gone_before_the_reply_harms_nobody(scene):
    calling = await scene.call()
    calling.cancel()
    await asyncio.wait([calling])
    await scene.outside.close()
    await scene.here.finish(0, {})
    assert scene.lying == (0, 0)


async def test_a_handler_that_raises_makes_a_dead_letter_and_its_caller_hears_why(scene):
    calling = await scene.call({"id": 7})
    try:
        {}["url"]
    except KeyError as error:
        await scene.here.finish(0, error)
    with pytest.raises(RpcRemoteError) as told:
        await calling
    assert (told.value.type, told.value.message) == ("KeyError", "'url'")
    assert told.value.traceback.endswith("KeyError: 'url'\n")
    [letter] = await scene.letters()
    assert (letter.rpc, letter.ending, letter.body, letter.worker) == (
        True,
        "hard failure",
        b'{"id":7}',
        "price",
    )
    assert (letter.queue, letter.error, letter.reason) == (QUEUE, "KeyError", "KeyError: 'url'")
    assert "KeyError" in letter.traceback
    assert (scene.lying, scene.here.server.failed) == ((0, 0), 1)


async def test_a_failure_says_its_reason(scene):
    calling = await scene.call()
    await scene.here.finish(0, HardFailure("no such order"))
    with pytest.raises(RpcRemoteError, match="HardFailure: no such order"):
        await calling


async def test_a_caller_that_does_not_say_that_it_understands_errors_gets_none(scene):
    scene.broker.declare_queue("answers")
    await scene.send(b"{}", reply_to="answers", correlation_id="c")
    await scene.here.finish(0, ValueError("no"))
    assert scene.broker.messages("answers") == []
    [letter] = await scene.letters()
    assert letter.rpc, "a stranger's request is a request too, so that no group replay takes it"


@pytest.mark.parametrize("body", [b"[1]", b"no json", b"\xff", b'{"a": 1, "a": 2}'])
async def test_a_body_that_is_no_json_object_is_a_dead_letter_and_not_given_out(scene, body):
    await scene.send(body, reply_to="nobody", headers={"leveret-accepts": "error"})
    assert (scene.here.requests, scene.lying) == ([], (0, 0))
    [letter] = await scene.letters()
    assert (letter.ending, letter.rpc, letter.body, letter.attempts) == ("undecodable", True, body, 0)


async def test_a_caller_hears_that_its_body_is_no_json_object(scene):
    channel_replies = []
    channel = await scene.outside.call_channel(
        on_reply=lambda *reply: channel_replies.append(reply), on_return=print, on_gone=print
    )
    properties = Properties.build(reply_to="amq.rabbitmq.reply-to", headers={"leveret-accepts": "error"})
    channel.send(Outgoing("", QUEUE, b"[1]", properties))
    await idle()
    [(body, found)] = channel_replies
    assert found.header("leveret-error") == "Undecodable"
    assert "JSON object" in json.loads(body)["message"]


@pytest.mark.parametrize("result", [[1], "text", 7, {"a": float("nan")}, b"{}"])
async def test_an_answer_that_is_no_json_object_is_a_failure_of_the_handler(scene, result):
    calling = await scene.call()
    await scene.here.finish(0, result)
    with pytest.raises(RpcRemoteError, match="BadPayload"):
        await calling
    assert len(await scene.letters()) == 1


async def test_a_request_whose_caller_gave_up_meanwhile_is_not_started_and_counted(scene, caplog):
    caplog.set_level(logging.INFO, "leveret")
    calling = await scene.call(timeout=2)
    [request] = scene.here.requests
    assert (request.expired(), request.remaining()) == (False, 2.0)
    await scene.clock.advance(2)
    with pytest.raises(RpcTimeoutError):
        await calling
    assert (request.expired(), request.remaining()) == (True, 0.0)
    scene.here.server.skip(request)
    assert (scene.lying, scene.here.server.lapsed, scene.here.server.in_hand) == ((0, 0), 1, 0)
    assert "its caller has given up" in caplog.text
    assert await scene.letters() == []


async def test_the_wait_is_counted_on_the_servers_own_clock_from_the_delivery(scene):
    await scene.send(b"{}", headers={"leveret-timeout-ms": 1500})
    [request] = scene.here.requests
    await scene.clock.advance(1.4)
    assert not request.expired()
    await scene.clock.advance(0.1)
    assert request.expired()


async def test_a_request_that_says_no_timeout_never_expires(scene):
    await scene.send(b"{}")
    await scene.clock.advance(86400)
    assert (scene.here.requests[0].expired(), scene.here.requests[0].remaining()) == (False, None)


async def test_a_replayed_request_is_run_though_its_caller_gave_up_and_nobody_is_answered(scene):
    scene.broker.declare_queue("answers")
    headers = {"leveret-timeout-ms": 1000, "leveret-replays": 1, "leveret-first-letter": "x"}
    await scene.send(b"{}", reply_to="answers", headers=headers)
    [request] = scene.here.requests
    await scene.clock.advance(5)
    assert not request.expired()
    await scene.here.finish(0, {})
    assert (scene.lying, scene.broker.messages("answers")) == ((0, 0), [])


async def test_a_reply_that_fails_is_tried_again_until_it_is_confirmed(scene):
    calling = await scene.call(timeout=10)
    scene.broker.refuse_next(2)
    finishing = scene.here.finish(0, {"cents": 5})
    await idle()
    assert (finishing.done(), scene.here.server.held, scene.lying) == (False, 1, (0, 1))
    await scene.clock.advance(3)
    await finishing
    assert (await calling, scene.here.server.held, scene.lying) == ({"cents": 5}, 0, (0, 0))


async def test_a_reply_is_given_up_with_its_caller(scene):
    calling = await scene.call(timeout=2)
    scene.broker.block()
    finishing = scene.here.finish(0, {})
    await scene.clock.advance(2)
    with pytest.raises(RpcTimeoutError):
        await calling
    await finishing
    assert scene.lying == (0, 0)
    scene.broker.unblock()


async def test_a_failed_request_stays_in_hand_until_its_dead_letter_is_confirmed(scene):
    await scene.send(b"{}", correlation_id="c")
    scene.broker.refuse_next(2)
    finishing = scene.here.finish(0, ValueError("no"))
    await idle()
    assert (finishing.done(), scene.here.server.held, scene.lying) == (False, 1, (0, 1))
    await scene.clock.advance(3)
    await finishing
    assert (len(await scene.letters()), scene.lying) == (1, (0, 0))


async def test_the_dead_letter_queue_that_somebody_deleted_is_declared_again(scene):
    await scene.send(b"{}")
    scene.broker.delete_queue(NAMES.dead_letters)
    finishing = scene.here.finish(0, ValueError("no"))
    await scene.clock.advance(1)
    await finishing
    assert len(await scene.letters()) == 1


async def cut(scene: Scene) -> None:
    scene.broker.drop_connections()
    await idle()


async def test_a_cut_while_a_handler_runs_does_not_run_it_twice_and_its_redelivery_is_acked(scene):
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build()))
    await idle()
    await cut(scene)
    assert len(scene.here.requests) == 1
    await scene.here.finish(0, {})
    assert (scene.lying, scene.here.server.in_hand) == ((0, 0), 0)


async def test_what_ended_during_a_cut_is_answered_and_acked_when_it_comes_back_and_not_run_again(scene):
    scene.broker.declare_queue("answers")
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build(reply_to="answers")))
    await idle()
    scene.broker.stop()
    await scene.here.finish(0, {"cents": 5})
    assert scene.here.server.in_hand == 0
    scene.broker.start()
    await idle()
    assert len(scene.here.requests) == 1
    assert [reply.body for reply in scene.broker.messages("answers")] == [b'{"cents":5}']
    assert (scene.lying, scene.here.server.in_hand) == ((0, 0), 0)


async def test_what_failed_during_a_cut_becomes_one_dead_letter_when_it_comes_back(scene):
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build()))
    await idle()
    scene.broker.stop()
    await scene.here.finish(0, ValueError("no"))
    scene.broker.start()
    await idle()
    assert (len(await scene.letters()), len(scene.here.requests), scene.lying) == (1, 1, (0, 0))


async def test_a_cut_between_dead_letter_and_ack_makes_no_second_dead_letter(scene):
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build()))
    await idle()

    async def cut_once(point: str, _: str | None) -> None:
        if point == handover.DEAD_LETTER_CONFIRMED:
            scene.broker.drop_connections()

    scene.here.parts.world = replace(scene.here.parts.world, reached=cut_once)
    await scene.here.finish(0, ValueError("no"))
    await idle()
    assert (len(await scene.letters()), len(scene.here.requests), scene.lying) == (1, 1, (0, 0))


async def test_an_ack_that_was_lost_is_sent_again_and_nothing_is_run_again(scene):
    calling = await scene.call()
    scene.broker.lose_next_ack()
    await scene.here.finish(0, {})
    await calling
    assert scene.lying == (0, 1)
    await cut(scene)
    assert (scene.lying, len(scene.here.requests)) == ((0, 0), 1)


async def test_what_ended_long_ago_is_not_remembered(scene):
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build()))
    await idle()
    scene.broker.lose_next_ack()
    await scene.here.finish(0, {})
    await scene.clock.advance(REMEMBERED_SECONDS + 1)
    await cut(scene)
    assert [request.redelivered for request in scene.here.requests] == [False, True]


async def test_the_ack_of_a_request_that_was_not_started_may_be_lost_too(scene):
    calling = await scene.call(timeout=1)
    await scene.clock.advance(1)
    with pytest.raises(RpcTimeoutError):
        await calling
    await scene.outside.send(
        Outgoing("", QUEUE, b"{}", Properties.build(headers={"leveret-timeout-ms": 1000}))
    )
    await scene.clock.advance(1)
    scene.broker.lose_next_ack()
    scene.here.server.skip(scene.here.requests[-1])
    await cut(scene)
    assert len(scene.here.requests) == 2


async def test_a_request_that_waits_for_its_start_during_a_cut_is_given_out_once(scene):
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build()))
    await idle()
    [request] = scene.here.requests
    scene.broker.stop()
    assert request.stale
    scene.broker.start()
    await idle()
    assert not request.stale
    assert len(scene.here.requests) == 1
    await scene.here.finish(0, {})
    assert scene.lying == (0, 0)


async def test_a_request_found_stale_that_has_come_back_by_the_time_it_is_skipped_is_given_out_again(scene):
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build()))
    await idle()
    [request] = scene.here.requests
    await cut(scene)
    scene.here.server.skip(request)
    assert scene.here.requests == [request, request]
    assert scene.lying == (0, 1)


async def test_a_stale_request_that_is_skipped_is_run_when_it_comes_back(scene):
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties.build()))
    await idle()
    scene.broker.stop()
    scene.here.server.skip(scene.here.requests[0])
    scene.broker.start()
    await idle()
    assert len(scene.here.requests) == 2
    assert scene.here.requests[1].redelivered


async def test_of_two_processes_one_gets_all_and_the_other_after_it_flagged(scene):
    there = Process(scene, 2)
    await there.start()
    for _ in range(3):
        await scene.send()
    assert (len(scene.here.requests), len(there.requests)) == (3, 0)
    scene.here.transport.abort()
    await idle()
    assert [request.redelivered for request in there.requests] == [True] * 3
    there.transport.abort()


async def test_a_stop_takes_no_more_and_lets_what_was_given_out_end(scene):
    first = await scene.call({"id": 1})
    await scene.here.server.stop()
    second = await scene.call({"id": 2})
    assert (len(scene.here.requests), scene.here.server.consuming) == (1, False)
    await scene.here.finish(0, {})
    assert await first == {}
    assert scene.lying == (1, 0)
    second.cancel()


async def test_what_is_given_back_is_ready_for_the_next(scene):
    await scene.send()
    await scene.here.server.stop()
    scene.here.server.give_back(scene.here.requests[0])
    assert (scene.lying, scene.here.server.in_hand) == ((1, 0), 0)


async def test_a_fault_of_our_own_gives_the_request_back_after_a_pause(scene, monkeypatch, caplog):
    await scene.send()

    async def broken(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(scene.here.server, "_conclude", broken)
    finishing = scene.here.finish(0, {})
    await idle()
    assert scene.lying == (0, 1)
    await scene.clock.advance(1)
    await finishing
    assert "a fault of ours" in caplog.text
    assert len(scene.here.requests) == 2


async def test_headers_are_shown_without_our_own(scene):
    await scene.send(b"{}", headers={"tenant": 42, "leveret-timeout-ms": 1000})
    assert scene.here.requests[0].headers == {"tenant": 42}


async def test_a_correlation_id_that_is_no_utf_8_stops_nobody(scene):
    scene.broker.declare_queue("answers")
    raw = Properties.build(reply_to="answers", correlation_id="c_").raw.replace(b"c_", b"c\xff")
    await scene.outside.send(Outgoing("", QUEUE, b"{}", Properties(raw)))
    await idle()
    await scene.here.finish(0, {})
    assert (len(scene.broker.messages("answers")), scene.lying) == (1, (0, 0))


async def test_a_caller_whose_line_is_cut_learns_that_it_is_unknown_and_the_request_is_answered_all_the_same(
    scene,
):
    calling = await scene.call()
    scene.broker.lose(scene.outside._connection)
    with pytest.raises(RpcUnknownError):
        await calling
    await scene.here.finish(0, {})
    assert scene.lying == (0, 0)
