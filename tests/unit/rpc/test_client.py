from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from decimal import Decimal

import pytest
import pytest_asyncio

from leveret.core.errors import (
    BadPayload,
    LeveretError,
    PublishRefused,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    TransportUnavailableError,
)
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.ports import Delivery
from leveret.rpc import client as module
from leveret.rpc.client import RpcClient
from leveret.testing.fake_clock import FakeClock, idle
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryBroker, MemoryTransport

QUEUE = "shop.price.req"


class Scene:
    """A client, and whoever serves its queue, by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker()
        self.broker.declare_queue(QUEUE)
        self.transport = MemoryTransport(self.broker, world=fake_world(0, self.clock))
        self.server = MemoryTransport(self.broker, world=fake_world(1, self.clock))
        self.client = RpcClient(self.transport, fake_world(2, self.clock))
        self.requests: list[Delivery] = []

    async def open(self) -> None:
        await self.transport.open()
        await self.server.open()
        await self.server.consume(QUEUE, self._take, prefetch=100)

    def _take(self, delivery: Delivery) -> None:
        delivery.ack()
        self.requests.append(delivery)

    def call(self, payload=None, **options) -> asyncio.Future[dict]:
        return asyncio.ensure_future(self.client.call(QUEUE, {} if payload is None else payload, **options))

    async def reply(self, number: int, said, *, correlation_id: str | None = None, **properties) -> None:
        """Answer the request of that number."""
        found = self.requests[number].properties
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        await self.server.send(
            Outgoing(
                "", found.reply_to or "", body,
                Properties.build(correlation_id=correlation_id or found.correlation_id, **properties),
                mandatory=False,
            )
        )  # fmt: skip
        await idle()

    @property
    def channels(self) -> int:
        return sum(len(connection.addresses) for connection in self.broker._connections)


@pytest_asyncio.fixture
async def scene():
    scene = Scene()
    await scene.open()
    yield scene
    assert scene.client.waiting == 0, "every call of a test has ended, and left nothing behind"
    await scene.transport.close()
    await scene.server.close()


async def test_a_call_comes_back_with_its_answer(scene):
    calling = scene.call({"id": 1})
    await idle()
    assert scene.requests[0].body == b'{"id":1}'
    await scene.reply(0, {"cents": 500})
    assert await calling == {"cents": 500}


async def test_a_request_is_persistent_and_says_how_long_its_caller_waits(scene):
    calling = scene.call(timeout=2.5, correlation_id="mine")
    await idle()
    found = scene.requests[0].properties
    assert (found.delivery_mode, found.expiration, found.correlation_id) == (2, "2500", "mine")
    assert found.headers == {"leveret-timeout-ms": 2500, "leveret-accepts": "error"}
    assert found.message_id
    await scene.reply(0, b"")
    assert await calling == {}


async def test_calls_at_once_share_one_channel_and_each_gets_its_own_answer(scene):
    calls = [scene.call({"id": number}) for number in range(50)]
    await idle()
    assert scene.channels == 1
    for number in reversed(range(50)):
        await scene.reply(number, json.loads(scene.requests[number].body))
    assert await asyncio.gather(*calls) == [{"id": number} for number in range(50)]


async def test_a_queue_that_nobody_has_is_told_at_once(scene):
    with pytest.raises(RpcUnreachableError, match=r"shop\.nobody\.req"):
        await scene.client.call("shop.nobody.req", {})


async def test_no_answer_in_time_names_queue_id_and_timeout(scene):
    calling = scene.call(correlation_id="mine", timeout=3)
    await idle()
    await scene.clock.advance(2.999)
    assert not calling.done()
    await scene.clock.advance(0.001)
    with pytest.raises(RpcTimeoutError, match=r"shop\.price\.req \(correlation id mine\) in 3 s"):
        await calling


async def test_a_timeout_is_a_timeout_error_for_those_who_catch_that(scene):
    calling = scene.call(timeout=1)
    await idle()
    await scene.clock.advance(1)
    with pytest.raises(TimeoutError):
        await calling


async def test_wrong_late_and_repeated_replies_are_dropped_each_with_a_line_in_the_log(scene, caplog):
    caplog.set_level(logging.DEBUG, "leveret")
    late = scene.call(timeout=1)
    await idle()
    await scene.clock.advance(1)
    with pytest.raises(RpcTimeoutError):
        await late
    calling = scene.call()
    await idle()
    await scene.reply(0, {"late": True})
    await scene.reply(1, {"wrong": True}, correlation_id="nobody's")
    await scene.reply(1, {"right": True})
    await scene.reply(1, {"repeated": True})
    assert await calling == {"right": True}
    await scene.reply(1, {"repeated": "once more"})
    dropped = [record for record in caplog.records if "nobody waits for" in record.message]
    assert len(dropped) == 4


async def test_a_reply_that_is_repeated_at_once_changes_nothing(scene, caplog):
    caplog.set_level(logging.DEBUG, "leveret")
    calling = scene.call()
    await idle()
    to = scene.requests[0].properties
    for body in (b'{"first": true}', b'{"second": true}'):
        properties = Properties.build(correlation_id=to.correlation_id)
        scene.server.send(Outgoing("", to.reply_to, body, properties, mandatory=False))
    assert await calling == {"first": True}
    assert "a reply nobody waits for was dropped" in caplog.text


async def test_a_reply_without_an_id_is_dropped(scene):
    calling = scene.call()
    await idle()
    out = Outgoing("", scene.requests[0].properties.reply_to, b"{}", Properties.build(), mandatory=False)
    await scene.server.send(out)
    await idle()
    assert not calling.done()
    await scene.reply(0, {"right": True})
    assert await calling == {"right": True}


async def test_an_id_that_is_in_use_gets_a_reply_channel_of_its_own(scene):
    first, second = scene.call({"id": 1}, correlation_id="same"), scene.call({"id": 2}, correlation_id="same")
    await idle()
    assert scene.channels == 2
    await scene.reply(1, {"for": "the second"})
    assert await second == {"for": "the second"}
    await idle()
    assert scene.channels == 1
    await scene.reply(0, {"for": "the first"})
    assert await first == {"for": "the first"}


@pytest.mark.parametrize("answered", [True, False])
async def test_a_late_reply_to_an_id_that_is_used_again_is_not_taken_for_the_answer(scene, answered):
    first = scene.call({"id": 1}, correlation_id="same", timeout=1)
    await idle()
    if answered:
        await scene.reply(0, {"for": "the first"})
        assert await first == {"for": "the first"}
    else:
        await scene.clock.advance(1)
        with pytest.raises(RpcTimeoutError):
            await first
    second = scene.call({"id": 2}, correlation_id="same")
    await idle()
    await scene.reply(0, {"for": "the first", "once": "more"})
    assert not second.done()
    await scene.reply(1, {"for": "the second"})
    assert await second == {"for": "the second"}


async def test_ids_of_callers_are_remembered_up_to_a_number(scene, monkeypatch):
    monkeypatch.setattr(module, "REMEMBERED", 3)
    for number in range(5):
        calling = scene.call(correlation_id=f"id {number}")
        await idle()
        await scene.reply(number, {})
        await calling
    assert list(scene.client._used) == ["id 2", "id 3", "id 4"]


async def test_a_large_request_travels_on_a_channel_of_its_own(scene):
    calling = scene.call({"text": "x" * module.LARGE})
    await idle()
    assert scene.client._shared is None
    assert scene.channels == 1
    await scene.reply(0, {"fine": True})
    assert await calling == {"fine": True}
    await idle()
    assert scene.channels == 0


async def test_an_error_of_the_handler_comes_with_type_words_and_traceback(scene):
    calling = scene.call()
    await idle()
    said = {"message": "'url'", "traceback": "Traceback …"}
    await scene.reply(0, said, headers={"leveret-error": "KeyError"})
    with pytest.raises(RpcRemoteError) as told:
        await calling
    assert (told.value.type, told.value.message, told.value.traceback) == ("KeyError", "'url'", "Traceback …")
    assert str(told.value) == "shop.price.req answered with an error: KeyError: 'url'"


@pytest.mark.parametrize("said", [b"[1]", b"\xff", b"no json", b'{"a": NaN}'])
async def test_a_reply_that_is_no_json_object_is_an_error_over_there(scene, said):
    calling = scene.call()
    await idle()
    await scene.reply(0, said)
    with pytest.raises(RpcRemoteError, match="cannot be read"):
        await calling


@dataclass
class Order:
    id: int


async def test_a_dataclass_goes_out_as_an_object(scene):
    calling = scene.call(Order(1))
    await idle()
    assert scene.requests[0].body == b'{"id":1}'
    await scene.reply(0, {})
    await calling


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ([1], "payload is a list"),
        ("text", "payload is a str"),
        (b"{}", "payload is a bytes"),
        ({"a": [{"b": float("nan")}]}, r'payload\["a"\]\[0\]\["b"\]'),
        ({"a": {1, 2}}, r'payload\["a"\]'),
        ({"a": 2**70}, r'payload\["a"\]'),
        ({1: "a"}, "payload"),
        ({"at": Decimal("1.5")}, r'payload\["at"\]'),
    ],
)
async def test_a_payload_that_cannot_be_written_is_refused_with_its_path_and_nothing_is_sent(
    scene, payload, words
):
    with pytest.raises(BadPayload, match=words) as told:
        await scene.client.call(QUEUE, payload)
    assert "Nothing was sent" in str(told.value)
    await idle()
    assert (scene.requests, scene.channels) == ([], 0)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True, None])
async def test_a_timeout_that_cannot_be_meant_is_refused_and_nothing_is_sent(scene, timeout):
    with pytest.raises(ValueError, match="timeout"):
        await scene.client.call(QUEUE, {}, timeout=timeout)
    await idle()
    assert scene.requests == []


@pytest.mark.parametrize("queue", ["", None, 7, "q" * 256, "é" * 128])
async def test_a_queue_that_cannot_be_meant_is_refused(scene, queue):
    with pytest.raises(ValueError, match="queue"):
        await scene.client.call(queue, {})
    assert scene.channels == 0


@pytest.mark.parametrize("id", ["", 7, "i" * 256])
async def test_a_correlation_id_that_cannot_be_meant_is_refused(scene, id):
    with pytest.raises(ValueError, match="correlation_id"):
        await scene.client.call(QUEUE, {}, correlation_id=id)
    assert scene.channels == 0


async def test_a_cut_during_a_call_is_unknown_at_once(scene):
    calling = scene.call(correlation_id="mine")
    await idle()
    scene.broker.drop_connections()
    with pytest.raises(RpcUnknownError, match=r"correlation id mine.*may be obeyed, or not"):
        await calling


async def test_the_next_call_after_a_cut_works(scene):
    lost = scene.call()
    await idle()
    scene.broker.drop_connections()
    with pytest.raises(RpcUnknownError):
        await lost
    await idle()
    calling = scene.call({"id": 2})
    await idle()
    await scene.reply(-1, {"cents": 2})
    assert await calling == {"cents": 2}


async def test_fifty_cuts_leave_one_channel_and_nothing_that_waits(scene):
    for _ in range(50):
        calls = [scene.call(), scene.call(correlation_id="same"), scene.call(correlation_id="same")]
        await idle()
        scene.broker.drop_connections()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in ended] == [RpcUnknownError] * 3
        await idle()
    calling = scene.call()
    await idle()
    await scene.reply(-1, {})
    await calling
    assert (scene.channels, scene.client.waiting, scene.client._apart) == (1, 0, set())


async def test_a_broker_that_is_away_is_told_at_once_and_nothing_was_sent(scene):
    scene.broker.stop()
    await idle()
    with pytest.raises(TransportUnavailableError, match="nothing was sent"):
        await scene.client.call(QUEUE, {})
    scene.broker.start()
    await idle()
    assert scene.requests == []


async def test_a_broker_that_takes_no_messages_is_told_at_once_and_nothing_was_sent(scene):
    first = scene.call()
    await idle()
    await scene.reply(0, {})
    await first
    scene.broker.block()
    with pytest.raises(TransportUnavailableError, match="blocked"):
        await scene.client.call(QUEUE, {})
    scene.broker.unblock()
    await idle()
    assert len(scene.requests) == 1


async def test_a_request_that_the_broker_closes_the_channel_over_was_refused_and_others_are_unknown(
    scene, monkeypatch
):
    def refuse(*_, **__):
        raise PublishRefused("406 PRECONDITION_FAILED - message size", code=406)

    calls = [scene.call(), scene.call()]
    await idle()
    monkeypatch.setattr("leveret.transports.memory_broker.look_at", refuse)
    calls.append(scene.call())
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ended] == [RpcUnknownError] * 3
    with pytest.raises(TransportUnavailableError, match=r"was refused.*406") as told:
        await scene.client.call(QUEUE, {})
    assert not isinstance(told.value, RpcUnknownError)


async def test_a_request_under_way_when_the_broker_fails_within_is_unknown_for_it_may_have_been_handed_over(
    scene, monkeypatch
):
    def fail(*_, **__):
        raise PublishRefused("541 INTERNAL_ERROR", code=541)

    monkeypatch.setattr("leveret.transports.memory_broker.look_at", fail)
    with pytest.raises(RpcUnknownError, match=r"may be obeyed, or not.*541"):
        await scene.client.call(QUEUE, {})


async def test_a_large_request_that_is_refused_costs_no_other_call_its_answer(scene, monkeypatch):
    calling = scene.call()
    await idle()

    def refuse(*_, **__):
        raise PublishRefused("406 PRECONDITION_FAILED - message size", code=406)

    with monkeypatch.context() as patched:
        patched.setattr("leveret.transports.memory_broker.look_at", refuse)
        with pytest.raises(TransportUnavailableError, match="was refused"):
            await scene.client.call(QUEUE, {"text": "x" * module.LARGE})
    await scene.reply(0, {"fine": True})
    assert await calling == {"fine": True}


async def test_a_user_without_permission_is_refused_in_all_calls(scene, monkeypatch):
    def refuse(*_, **__):
        raise PublishRefused("403 ACCESS_REFUSED", code=403)

    monkeypatch.setattr("leveret.transports.memory_broker.look_at", refuse)
    ended = await asyncio.gather(scene.call(), scene.call(), return_exceptions=True)
    assert [type(each) for each in ended] == [TransportUnavailableError] * 2


async def test_a_request_that_fits_no_frame_is_not_sent(scene, monkeypatch):
    first = scene.call()
    await idle()

    def refuse(*_):
        raise PublishRefused("501 FRAME_ERROR", code=501)

    monkeypatch.setattr(scene.client._shared.channel, "send", refuse)
    with pytest.raises(TransportUnavailableError, match="cannot be sent"):
        await scene.client.call(QUEUE, {})
    await scene.reply(0, {})
    await first


async def test_a_call_that_is_cancelled_leaves_nothing_behind(scene):
    shared, own = scene.call(correlation_id="same"), scene.call(correlation_id="same")
    await idle()
    for calling in (shared, own):
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
    await idle()
    assert (scene.client.waiting, scene.channels) == (0, 1)
    await scene.reply(0, {"late": True})
    other = scene.call()
    await idle()
    await scene.reply(2, {"right": True})
    assert await other == {"right": True}


async def test_a_connection_that_does_not_come_in_time_ends_the_call_and_the_next_one_uses_it(
    scene, monkeypatch
):
    may_come = asyncio.Event()
    plain = scene.transport.call_channel
    asked = 0

    async def slowly(**receivers):
        nonlocal asked
        asked += 1
        await may_come.wait()
        return await plain(**receivers)

    monkeypatch.setattr(scene.transport, "call_channel", slowly)
    calls = [scene.call(timeout=1), scene.call(timeout=1)]
    await idle()
    await scene.clock.advance(1)
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in ended] == [TransportUnavailableError] * 2
    assert "nothing was sent" in str(ended[0])
    may_come.set()
    await idle()
    calling = scene.call()
    await idle()
    await scene.reply(0, {})
    await calling
    assert asked == 1


async def test_an_own_channel_that_comes_too_late_is_closed(scene, monkeypatch):
    first = scene.call(correlation_id="same")
    await idle()
    may_come = asyncio.Event()
    plain = scene.transport.call_channel

    async def slowly(**receivers):
        await may_come.wait()
        return await plain(**receivers)

    monkeypatch.setattr(scene.transport, "call_channel", slowly)
    second = scene.call(correlation_id="same", timeout=1)
    await idle()
    await scene.clock.advance(1)
    with pytest.raises(TransportUnavailableError):
        await second
    may_come.set()
    await idle()
    assert scene.channels == 1
    await scene.reply(0, {})
    await first


async def test_every_outcome_but_a_result_is_an_error_of_leverets(scene):
    for error in (RpcRemoteError(), RpcTimeoutError(), RpcUnknownError()):
        assert isinstance(error, LeveretError)
    assert issubclass(RpcUnreachableError, TransportUnavailableError)
    assert issubclass(RpcUnknownError, TransportUnavailableError)
