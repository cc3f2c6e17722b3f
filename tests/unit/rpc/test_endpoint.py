from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace

import pytest
from tests.unit.running_app import RunningApp

from leveret import (
    AppNotOpen,
    BadPayload,
    Context,
    Leveret,
    NotFound,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnreachableError,
    WorkerDefinition,
)
from leveret.cli.apps import declared
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Binding
from leveret.rpc.endpoint import define_rpc
from leveret.testing import TestLeveret
from leveret.testing.fake_clock import idle


@dataclass
class Order:
    id: int
    count: int = 1


@dataclass
class Price:
    cents: int


@pytest.fixture
def app():
    return Leveret("shop", broker="memory://", store="memory://")


async def test_a_call_is_answered_by_the_handler_of_its_channel(app):
    @app.rpc("price")
    async def price(order: Order) -> Price:
        return Price(500 * order.count)

    async with RunningApp(app) as t:
        assert await app.call("price", {"id": 1, "count": 3}) == {"cents": 1500}
        assert await app.call("price", Order(1)) == {"cents": 500}
        assert t.broker._queues["shop.price.req"].arguments == {
            "x-queue-type": "classic", "x-dead-letter-exchange": "shop.events.dlq"
        }  # fmt: skip


async def test_the_function_itself_comes_back_and_a_unit_test_just_calls_it(app):
    @app.rpc("price")
    async def price(order: dict) -> dict:
        return {"cents": order["id"]}

    assert await price({"id": 5}) == {"cents": 5}


async def test_a_plain_def_answers_from_a_thread_and_without_an_answer_the_object_is_empty(app):
    @app.rpc("ping")
    def ping() -> None:
        pass

    async with RunningApp(app):
        assert await app.call("ping") == {}


async def test_a_handler_may_know_how_long_its_caller_waits(app):
    seen = []

    @app.rpc("price")
    async def price(ctx: Context) -> None:
        seen.append((ctx.remaining(), ctx.worker, ctx.redelivered, ctx.properties.correlation_id))

    async with RunningApp(app):
        await app.call("price", timeout=2, correlation_id="mine")
    assert seen == [(2.0, "price", False, "mine")]


async def test_a_name_with_a_dot_is_the_queue_itself(app):
    @app.rpc("robots.arm-2.move.req", single=True)
    async def move() -> dict:
        return {"moved": True}

    async with RunningApp(app) as t:
        assert await app.call("robots.arm-2.move.req") == {"moved": True}
        assert t.broker._queues["robots.arm-2.move.req"].arguments["x-single-active-consumer"] is True


def test_what_is_declared_for_a_channel_is_known_before_the_app_is_open(app):
    @app.rpc("intent", queue_type="quorum")
    async def intent() -> None: ...

    found = declared(app).topology
    [queue] = [queue for queue in found.queues if queue.name == "shop.intent.req"]
    assert (queue.queue_type, dict(queue.arguments)) == (
        "quorum", {"x-dead-letter-exchange": "shop.events.dlq", "x-single-active-consumer": True},
    )  # fmt: skip
    assert Binding("shop.direct", "shop.intent.req", "default.intent") in found.bindings


async def test_a_channel_is_also_reached_through_the_direct_exchange(app):
    seen = []

    @app.rpc("price")
    async def price(order: dict) -> None:
        seen.append(order)

    async with RunningApp(app) as t:
        t.broker.bind("shop.direct", "shop.price.req", "other.price")
        await t.outside.send(Outgoing("shop.direct", "default.price", b'{"id": 1}', Properties.build()))
        await idle()
    assert seen == [{"id": 1}]


async def test_what_a_handler_raises_reaches_its_caller_and_the_dead_letters_and_no_group_replay(app):
    runs = []

    @app.rpc("price")
    async def price(order: dict) -> None:
        runs.append(order)
        raise KeyError("url")

    async with RunningApp(app) as t:
        await t.clock.advance(1)
        with pytest.raises(RpcRemoteError, match="KeyError: 'url'"):
            await app.call("price", {"id": 1})
        await t.clock.advance(1)
        [letter] = (await app.dead_letters.list()).items
        assert (letter.rpc, letter.worker, letter.attempts) == (True, "price", 1)
        report = asyncio.ensure_future(app.dead_letters.replay(worker="price"))
        await t.clock.advance(5)
        assert (await report).done == 0
        assert len(runs) == 1
        again = asyncio.ensure_future(app.dead_letters.replay(letter.id, rpc=True))
        await t.clock.advance(5)
        assert (await again).done == 1
        assert len(runs) == 2
        letters = (await app.dead_letters.list()).items
        assert [each.rpc for each in letters] == [True]
        assert letters[0].first_letter == letter.id


async def test_a_payload_that_does_not_fit_is_an_error_to_its_caller_and_the_handler_is_not_called(app):
    @app.rpc("price")
    async def price(order: Order) -> None:
        raise AssertionError

    async with RunningApp(app):
        with pytest.raises(RpcRemoteError, match=r"Undecodable: the body does not fit Order"):
            await app.call("price", {"id": "text"})


async def test_requests_that_expire_in_their_queue_vanish_through_the_keeper_and_are_counted(app):
    started = asyncio.Event()
    runs = []

    @app.rpc("price", prefetch=1)
    async def price(order: dict) -> None:
        runs.append(order["id"])
        started.set()
        await asyncio.sleep(0) if order["id"] else await asyncio.get_running_loop().create_future()

    async with RunningApp(app) as t:
        await t.clock.advance(1)
        calls = [asyncio.ensure_future(app.call("price", {"id": n}, timeout=5)) for n in range(4)]
        await started.wait()
        await t.clock.advance(5)
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in ended] == [RpcTimeoutError] * 4
        await t.runner.endpoints[0].drop()
        t.broker.drop_connections()
        await t.clock.advance(2)
        # The one that ran is back and has expired as well.
        assert t.runner.keeper.expired_requests == 4
        assert (t.data.letters, t.ready("shop.price.req"), runs) == ({}, 0, [0])


async def test_a_request_that_comes_too_late_is_not_started(app):
    @app.rpc("price")
    async def price(order: dict) -> None:
        raise AssertionError

    async with RunningApp(app) as t:
        await t.send("shop.price.req", b"{}", headers={"leveret-timeout-ms": 0})
        server = t.runner.endpoints[0].server
        assert (server.lapsed, server.failed, t.unsettled("shop.price.req")) == (1, 0, 0)


async def test_as_many_handlers_run_at_once_as_the_prefetch_says(app):
    most = running = 0

    @app.rpc("price", prefetch=3)
    async def price(order: dict) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async with RunningApp(app):
        await asyncio.gather(*(app.call("price", {"id": n}) for n in range(10)))
    assert most == 3


async def test_a_stop_lets_a_handler_end_and_its_caller_hear_of_it(app):
    may_end, started = asyncio.Event(), asyncio.Event()

    @app.rpc("price")
    async def price() -> dict:
        started.set()
        await may_end.wait()
        return {"cents": 5}

    told = []
    await app.open()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(app.running(stopping=lambda _: may_end.set(), stopped=told.append))
        calling = asyncio.ensure_future(app.call("price"))
        await started.wait()
    assert await calling == {"cents": 5}
    assert (told[0].finished, told[0].dropped) == (1, 0)
    await app.close()


async def test_a_handler_that_outlasts_the_grace_is_ended_and_its_request_goes_back():
    app = Leveret("shop", broker="memory://", store="memory://", shutdown_grace=0.05)
    started = asyncio.Event()

    @app.rpc("price")
    async def price() -> None:
        started.set()
        await asyncio.get_running_loop().create_future()

    told = []
    await app.open()
    async with app.running(stopped=told.append):
        calling = asyncio.ensure_future(app.call("price"))
        await started.wait()
    assert (told[0].finished, told[0].dropped) == (0, 1)
    calling.cancel()
    await app.close()


async def test_test_leveret_answers_calls_too(app):
    @app.rpc("price")
    async def price(order: dict) -> dict:
        if order["id"] < 0:
            raise ValueError("no such order")
        return {"cents": 5}

    async with TestLeveret(app) as t:
        assert await app.call("price", {"id": 1}) == {"cents": 5}
        with pytest.raises(RpcRemoteError, match="no such order"):
            await app.call("price", {"id": -1})
        await t.advance(seconds=1)
        [letter] = t.dead("price")
        assert letter.rpc
        with pytest.raises(RpcUnreachableError):
            await app.call("nobody")
        await t.crash()
        assert await app.call("price", {"id": 1}) == {"cents": 5}


async def test_time_that_a_test_lets_pass_ends_a_call(app):
    @app.rpc("price")
    async def price(order: dict) -> None:
        await t.clock.sleep(60)

    async with TestLeveret(app) as t:
        calling = asyncio.ensure_future(app.call("price", {}, timeout=5))
        await t.advance(seconds=5)
        with pytest.raises(RpcTimeoutError):
            await calling
        await t.advance(seconds=60)


async def test_channels_run_by_name_beside_workers_or_without_them(app):
    @app.rpc("price")
    async def price() -> dict:
        return {"cents": 5}

    @app.worker("order.placed")
    async def charge(order: dict) -> None: ...

    async with app:
        async with app.running(workers=["price"]):
            assert await app.call("price") == {"cents": 5}
            assert app._open.runner.consumers == []
        async with app.running(workers=["charge"]):
            assert app._open.runner.endpoints == []
        with pytest.raises(NotFound, match="this app has charge, price"):
            async with app.running(workers=["nobody"]):
                pass


async def test_a_channel_whose_consumer_is_gone_raises_the_same_alarm_as_a_workers(app):
    @app.rpc("price")
    async def price() -> None: ...

    async with RunningApp(app, knobs=lambda knobs: replace(knobs, watches=True)) as t:
        await t.runner.endpoints[0].server._subscription.cancel()
        await t.clock.advance(15)
        assert ("consumer_lost", "shop.price.req") in t.alarms.holding


async def test_requests_that_lie_in_the_queue_of_a_channel_are_counted_as_queued(app):
    @app.rpc("price", prefetch=1)
    async def price(order: Order) -> None:
        await asyncio.get_running_loop().create_future()

    async with RunningApp(app, knobs=lambda knobs: replace(knobs, grace=0)) as t:
        for _ in range(3):
            await t.send("shop.price.req", b'{"id": 1}')
        await idle()
        counts = await app.counts()
        assert (counts.running, counts.queued) == (1, 2)


@pytest.mark.parametrize("grace", [30, 0], ids=["its handler ends", "its handler is ended"])
async def test_an_ordered_channel_is_left_to_the_next_process_only_when_nothing_runs_here_any_more(
    app, grace
):
    running = asyncio.Event()
    go_on = asyncio.Event()
    told = []

    @app.rpc("move", prefetch=1, single=True)
    async def move(order: dict) -> None:
        running.set()
        try:
            await go_on.wait()
        finally:
            told.append("here")

    async with RunningApp(app, knobs=lambda knobs: replace(knobs, grace=grace)) as t:
        # The next process: its consumer waits for ours to leave.
        await t.outside.consume(
            "shop.move.req", lambda request: told.append(request.body), prefetch=1, exclusive=False
        )
        for order in (b'{"id": 1}', b'{"id": 2}'):
            await t.send("shop.move.req", order)
        await running.wait()
        stopping = asyncio.ensure_future(t._stack.aclose())
        await idle()
        if grace:
            assert told == []
            go_on.set()
        await t.clock.advance(1)
        assert told == ["here", b'{"id": 2}' if grace else b'{"id": 1}']
        await stopping
        # None of it was handed to and fro meanwhile.
        assert t.broker.snapshot()["shop.move.req"].ready == (0 if grace else 1)


async def test_until_idle_waits_for_requests_too(app):
    seen = []

    @app.rpc("price")
    async def price(order: dict) -> None:
        seen.append(order["id"])

    async with app:
        calling = asyncio.ensure_future(app.call("price", {"id": 1}))
        await asyncio.sleep(0.01)
        await app.run(until_idle=True, signals=False)
        await calling
    assert seen == [1]


async def test_a_call_on_an_app_that_is_not_open_says_so(app):
    with pytest.raises(AppNotOpen, match=r'call\("price"\)'):
        await app.call("price", {})


@pytest.mark.parametrize("channel", ["", "a b", "#", "x" * 65, "q." * 128])
async def test_a_channel_that_cannot_be_meant_is_refused_and_nothing_is_sent(app, channel):
    async with app:
        with pytest.raises(ValueError, match=r"name|queue"):
            await app.call(channel, {})


async def test_a_payload_that_cannot_be_written_is_refused(app):
    async with app:
        with pytest.raises(BadPayload, match=r'payload\["a"\]'):
            await app.call("price", {"a": {1}})


def test_every_fault_of_a_declaration_is_told_at_once():
    def price(id, cents): ...

    options = {"prefech": 3, "prefetch": 0, "single": "yes", "queue_type": "fast"}
    with pytest.raises(WorkerDefinition) as told:
        define_rpc("a b", price, options, None)
    said = str(told.value)
    assert "@app.rpc on price (test_endpoint.py:" in said
    assert "has 6 faults" in said
    for part in (
        "did you mean prefetch",
        "prefetch=0",
        "single='yes'",
        "queue_type='fast'",
        "'a b'",
        "one parameter",
    ):
        assert part in said


def test_a_handler_that_yields_is_refused(app):
    async def price():
        yield {}

    with pytest.raises(WorkerDefinition, match="one answer"):
        app.rpc("price")(price)


def test_the_name_of_the_channel_is_not_left_out(app):
    with pytest.raises(WorkerDefinition, match=r'as in @app.rpc\("price"\)'):

        @app.rpc
        async def price(): ...


def test_a_channel_is_answered_by_one_handler(app):
    @app.rpc("price")
    async def price(): ...

    with pytest.raises(WorkerDefinition, match="answered already"):
        app.rpc("price")(price)
