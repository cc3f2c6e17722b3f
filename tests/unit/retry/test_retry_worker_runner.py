"""RetryWorkerRunner: everything in its order, with what was injected or on the memory backend."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Self

import pytest

from leveret.core.errors import BrokerUnreachable, ConfigError, LeaseLost, StoreUnavailable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.core.topology import Binding, Names, Queue, RMQExchangeConfig, Topology
from leveret.retry import RetryWorkerRunner
from leveret.retry.exchanges import observer_exchange
from leveret.runtime.backends import RuntimeInfra, create_publisher
from leveret.runtime.config import load_config
from leveret.stores.documents import MemoryDocumentStore
from leveret.testing.fake_clock import FakeClock
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryTransport
from leveret.transports.memory_broker import MemoryBroker

JOBS = RMQExchangeConfig("jobs")


def a_config(tmp_path: Path, **code):
    given = {"broker": "memory://", "store": f"sqlite:///{tmp_path}/leveret.db"} | code
    return load_config(code=given, environ={}, file="/dev/null")


class Recorder:
    """Publisher and consumer manager in one, which write down what is asked of them."""

    def __init__(self, *, fail: str = "") -> None:
        self.calls: list[str] = []
        self.published: list[dict] = []
        self.fail = fail
        self.consumer = None
        self.consuming = asyncio.Event()

    def note(self, what: str) -> None:
        self.calls.append(what)
        if what == self.fail:
            raise RuntimeError(f"{what} failed")

    async def __call__(self, message: dict) -> None:
        self.note("publish")
        self.published.append(message)

    async def setup(self) -> None:
        self.note("publisher setup")

    async def teardown(self) -> None:
        self.note("publisher teardown")

    def factory(self, consumer):
        self.note("factory")
        self.consumer = consumer
        return Manager(self)


class Manager:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    async def setup(self) -> None:
        self.recorder.note("consumer setup")

    async def start_consuming(self) -> None:
        self.recorder.note("consume")
        self.recorder.consuming.set()

    async def stop_consuming(self) -> None:
        self.recorder.note("stop consuming")


class RecordedStore(MemoryDocumentStore):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__(collection_name="retries", doc_id_field="retry_key")
        self.recorder = recorder

    def query(self, params, *, sort_by=None):
        self.recorder.note("pending")
        return super().query(params, sort_by=sort_by)


def an_injected_runner(recorder: Recorder, config, **changes) -> RetryWorkerRunner:
    given = {
        "exchange": JOBS,
        "retry_store": RecordedStore(recorder),
        "republish_publisher": recorder,
        "consumer_manager_factory": recorder.factory,
    }
    return RetryWorkerRunner(config, "retry", **(given | changes))


# ── Injected ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_with_injected_parts_it_needs_no_broker_and_sets_up_in_order(tmp_path):
    recorder = Recorder()
    runner = an_injected_runner(recorder, a_config(tmp_path, broker="amqp://nowhere.invalid"))
    await runner.setup()
    await runner.setup()
    assert recorder.calls == ["publisher setup", "factory", "consumer setup", "pending"]
    recorder.calls.clear()
    await runner.teardown()
    await runner.teardown()
    assert recorder.calls == ["stop consuming", "publisher teardown"]
    assert not (tmp_path / "leveret.db").exists()


@pytest.mark.parametrize(
    ("fail", "undone"),
    [
        ("publisher setup", []),
        ("factory", ["publisher teardown"]),
        ("consumer setup", ["publisher teardown"]),
        ("pending", ["stop consuming", "publisher teardown"]),
    ],
)
async def test_where_a_step_fails_what_was_set_up_is_torn_down(tmp_path, fail, undone):
    recorder = Recorder(fail=fail)
    runner = an_injected_runner(recorder, a_config(tmp_path))
    with pytest.raises(RuntimeError, match=fail):
        await runner.setup()
    assert recorder.calls[recorder.calls.index(fail) + 1 :] == undone


async def test_a_part_that_fails_to_tear_down_is_told_and_stops_no_other(tmp_path, caplog):
    recorder = Recorder(fail="stop consuming")
    runner = an_injected_runner(recorder, a_config(tmp_path))
    await runner.setup()
    await runner.teardown()
    assert recorder.calls[-1] == "publisher teardown"
    assert "the consumer could not be torn down: RuntimeError: stop consuming failed" in caplog.text


async def test_run_consumes_until_it_is_cancelled_and_then_tears_down(tmp_path):
    recorder = Recorder()
    running = asyncio.create_task(an_injected_runner(recorder, a_config(tmp_path)).run())
    await recorder.consuming.wait()
    await recorder.consumer({"data_type": "soft-failure", "data": {"a": 1, "retry": {"after": 0}}})
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert recorder.calls[-2:] == ["stop consuming", "publisher teardown"]


class Foreign:
    """A store of another program: no leases."""

    def __init__(self) -> None:
        self._inner = MemoryDocumentStore(collection_name="retries", doc_id_field="retry_key")
        for name in ("insert", "exists", "get_document", "query", "delete", "update", "upsert_many",
                     "get_doc_id_field", "get_document_type"):  # fmt: skip
            setattr(self, name, getattr(self._inner, name))


async def test_two_runners_on_one_store_share_its_lease(tmp_path):
    store = MemoryDocumentStore(collection_name="retries", doc_id_field="retry_key")
    await store.insert({"retry_key": "a", "message": {"a": 1}, "fire_at": 0})
    recorders = [Recorder(), Recorder()]
    runners = [an_injected_runner(each, a_config(tmp_path), retry_store=store) for each in recorders]
    for runner in runners:
        await runner.setup()
    await asyncio.sleep(0)
    for runner in reversed(runners):
        await runner.teardown()
    assert "publish" not in recorders[1].calls


async def test_a_store_without_leases_takes_one_in_the_store_that_is_configured(tmp_path):
    recorder = Recorder()
    runner = an_injected_runner(recorder, a_config(tmp_path), retry_store=Foreign())
    await runner.setup()
    await runner.teardown()
    assert (tmp_path / "leveret.db").exists()


async def test_where_no_store_is_named_the_lease_lies_in_the_default_one_and_how_far_it_goes_is_told(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config = load_config(code={"broker": "memory://"}, environ={}, file="/dev/null")
    store, recorders = Foreign(), [Recorder(), Recorder()]
    await store.insert({"retry_key": "a", "message": {"a": 1}, "fire_at": 0})
    runners = [an_injected_runner(each, config, retry_store=store) for each in recorders]
    for runner in runners:
        await runner.setup()
    for runner in reversed(runners):
        await runner.teardown()
    assert "publish" not in recorders[1].calls
    assert "Foreign has no leases, so that this one lies in sqlite:///leveret.db" in caplog.text


# ── On the memory backend ─────────────────────────────────────────────────────────────────────────────────────────────


class Scene:
    """A memory broker under a clock that stands still, with a pipeline of other programs on it."""

    def __init__(self, tmp_path: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.world = fake_world(clock=clock)
        self.broker = MemoryBroker()
        self.transport = MemoryTransport(self.broker, world=self.world)
        self.infra = RuntimeInfra(world=self.world, transport=self.transport)
        self.tmp_path = tmp_path

    def runner(self, exchange: RMQExchangeConfig = JOBS, **changes) -> RetryWorkerRunner:
        config = a_config(self.tmp_path, namespace="shop", store="memory://")
        store = MemoryDocumentStore(collection_name="r", doc_id_field="retry_key", clock=self.clock)
        given = {"exchange": exchange, "infra": self.infra, "retry_store": store}
        return RetryWorkerRunner(config, "retry", **(given | changes))

    async def queue(self, name: str, exchange: RMQExchangeConfig = JOBS, key: str | None = None) -> None:
        bindings = () if key is None else (Binding(exchange.name, name, key),)
        await self.transport.declare(
            Topology(exchanges=(exchange,), queues=(Queue(name),), bindings=bindings)
        )

    async def publish(self, message, exchange: RMQExchangeConfig = JOBS, key: str = "soft-failure") -> None:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self.transport.send(Outgoing(exchange.name, key, body, Properties.build()))

    async def got(self, queue: str) -> list[dict]:
        found = []
        while (delivery := await self.transport.get(queue)) is not None:
            delivery.ack()
            found.append(json.loads(delivery.body))
        return found


@pytest.fixture
async def scene(tmp_path):
    scene = Scene(tmp_path, FakeClock())
    await scene.transport.open()
    yield scene
    await scene.transport.close()


class Running:
    """A runner at work, as a block."""

    def __init__(self, scene: Scene, runner: RetryWorkerRunner) -> None:
        self.scene = scene
        self.runner = runner

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.runner.run())
        await self.scene.clock.advance(0)
        return self

    async def __aexit__(self, *_) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def a_failure(**more) -> dict:
    message = {
        "data_type": "page",
        "data": {"doc_id": "d1"},
        "job_id": "j1",
        "_replay_routing_key": "fast.page",
        "retry": {"after": 5},
    }
    outer = {"data_type": "soft-failure", "data": message, "job_id": "j1"}
    return outer | {"origin": {"type": "parser", "name": "h"}} | more


async def test_a_message_goes_straight_back_to_the_queue_that_failed_it(scene):
    await scene.queue("jobs.parser", key="fast.page")
    await scene.queue("jobs.other", key="fast.page")
    async with Running(scene, scene.runner()):
        await scene.publish(a_failure())
        await scene.clock.advance(4)
        assert await scene.got("jobs.parser") == []
        await scene.clock.advance(1)
        assert await scene.got("jobs.parser") == [a_failure()["data"]]
        assert await scene.got("jobs.other") == []


async def test_without_such_a_queue_it_goes_through_the_exchange_with_its_key(scene):
    await scene.queue("elsewhere", key="fast.page")
    async with Running(scene, scene.runner()):
        await scene.publish(a_failure())
        await scene.clock.advance(5)
        assert await scene.got("elsewhere") == [a_failure()["data"]]


async def test_a_queue_that_was_there_and_is_gone_is_waited_for_and_told_once(scene, caplog):
    caplog.set_level("INFO", "leveret")
    await scene.queue("jobs.parser", key="fast.page")
    async with Running(scene, scene.runner()):
        await scene.publish(a_failure())
        await scene.clock.advance(5)
        assert len(await scene.got("jobs.parser")) == 1
        scene.broker.delete_queue("jobs.parser")
        await scene.publish(a_failure())
        await scene.clock.advance(5 + 60)
        assert told(caplog) == [("alarm", "retry_republish_failed")]
        assert "queue jobs.parser is gone; what failed there stays stored until it is back" in caplog.text
        await scene.queue("jobs.parser", key="fast.page")
        await scene.clock.advance(300)
        assert await scene.got("jobs.parser") == [a_failure()["data"]]
        assert told(caplog) == [("alarm", "retry_republish_failed"), ("resolved", "retry_republish_failed")]


async def test_that_a_worker_has_no_queue_of_its_own_is_told_once(scene, caplog):
    await scene.queue("elsewhere", key="fast.page")
    async with Running(scene, scene.runner()):
        for number in range(3):
            await scene.publish(a_failure(job_id=f"j{number}"))
        await scene.clock.advance(5)
    assert [record.action for record in caplog.records].count("missing") == 1
    assert "there is no queue jobs.parser: what failed there goes back through exchange jobs" in caplog.text


async def test_nothing_goes_straight_to_the_queue_that_watches(scene):
    await scene.queue("elsewhere", key="fast.page")
    failure = a_failure(origin={"type": "retry_worker", "name": "h"})
    async with Running(scene, scene.runner()):
        await scene.publish(failure)
        await scene.clock.advance(5)
        assert await scene.got("elsewhere") == [failure["data"]]


async def test_a_priority_that_is_none_is_left_out(scene):
    await scene.queue("jobs.parser", key="fast.page")
    failure = a_failure()
    failure["data"]["priority"] = True
    async with Running(scene, scene.runner()):
        await scene.publish(failure)
        await scene.clock.advance(5)
        assert await scene.got("jobs.parser") == [failure["data"]]


async def test_a_route_function_that_gives_no_key_keeps_what_it_was_asked_for(scene):
    async def nowhere(message):
        return ()

    publisher = create_publisher(scene.infra, exchange=JOBS, route_func=nowhere)
    async with Running(scene, scene.runner(republish_publisher=publisher)):
        await scene.publish(a_failure())
        await scene.clock.advance(60)
        await scene.queue("jobs.parser")
        await scene.clock.advance(60)
        assert len(await scene.got("jobs.parser")) == 1


async def test_what_waits_for_the_broker_when_the_lease_goes_is_not_sent_by_who_had_it(scene):
    """As on a machine that was suspended: what waits for the broker wakes before anything else has looked."""
    await scene.queue("jobs.parser")
    held = True
    publisher = create_publisher(scene.infra, exchange=JOBS).guarded(lambda: held)
    scene.broker.block()
    sending = asyncio.create_task(publisher.to_worker("parser", a_failure()["data"]))
    await scene.clock.advance(0)
    held = False
    scene.broker.unblock()
    with pytest.raises(LeaseLost, match="the lease ended before the message was handed over"):
        await sending
    assert await scene.got("jobs.parser") == []


async def test_on_a_direct_pipeline_it_watches_beside_and_gives_back_to_the_pipeline(scene):
    pipeline = RMQExchangeConfig("pipe", "direct")
    observer = observer_exchange(pipeline)
    await scene.queue("elsewhere", pipeline, "fast.page")
    async with Running(scene, scene.runner(observer, republish_exchange=pipeline)):
        await scene.publish(a_failure(), observer)
        await scene.clock.advance(5)
        assert await scene.got("elsewhere") == [a_failure()["data"]]


async def test_a_pipeline_that_is_a_fanout_is_watched_in_place(scene):
    fanout = RMQExchangeConfig("pipe", "fanout")
    await scene.queue("pipe.parser", fanout, "")
    async with Running(scene, scene.runner(observer_exchange(fanout))):
        await scene.publish(a_failure(), fanout, "")
        assert await scene.got("pipe.parser") == [a_failure()]
        await scene.clock.advance(5)
        assert await scene.got("pipe.parser") == [a_failure()["data"]]


def test_where_a_direct_exchange_is_watched_the_data_exchange_has_to_be_named(scene):
    observer = observer_exchange(RMQExchangeConfig("pipe", "direct"))
    with pytest.raises(ConfigError, match=r'republish_exchange=RMQExchangeConfig\("pipe", "direct"\)'):
        scene.runner(observer)
    scene.runner(observer, republish_exchange=observer)


async def test_a_direct_exchange_cannot_be_watched_and_that_is_told_before_anything_starts(scene):
    with pytest.raises(ConfigError, match=r"jobs is direct: .*observer_exchange"):
        await scene.runner(RMQExchangeConfig("jobs", "direct")).setup()


async def test_what_is_no_soft_failure_is_none_of_its_business(scene):
    async with Running(scene, scene.runner()):
        for body in (b"", b"{", b"[1]", b"null", b"\xff", b'{"data_type": "page"}'):
            await scene.publish(body)
        await scene.clock.advance(5)
        queue = scene.broker.snapshot()["jobs.retry_worker"]
        assert (queue.ready, queue.unsettled) == (0, 0)
    assert await scene.transport.get(Names("shop").dead_letters) is None


async def test_a_soft_failure_that_cannot_be_read_becomes_a_dead_letter_and_the_next_is_taken(scene):
    await scene.queue("jobs.parser")
    async with Running(scene, scene.runner()):
        await scene.publish(a_failure(data=[]))
        await scene.publish(a_failure())
        await scene.clock.advance(5)
        letter = await scene.transport.get("shop.events.dlq")
        assert letter is not None
        assert json.loads(letter.body) == a_failure(data=[])
        assert "expected the failed message, an object" in letter.properties.header("leveret-reason")
        assert len(await scene.got("jobs.parser")) == 1
        queue = scene.broker.snapshot()["jobs.retry_worker"]
        assert (queue.ready, queue.unsettled) == (0, 0)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b'"\xe9"', id="latin-1"),
        pytest.param(b"9" * 5000, id="a number of 5 000 digits"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="100 000 lists in each other"),
    ],
)
async def test_b15_a_soft_failure_that_json_cannot_be_read_from_becomes_a_dead_letter(scene, value):
    body = b'{"data_type": "soft-failure", "origin": {"type": "parser"}, "data": {"n": %s}}' % value
    async with Running(scene, scene.runner()):
        await scene.publish(body)
        await scene.clock.advance(5)
        letter = await scene.transport.get("shop.events.dlq")
        assert letter is not None
        assert letter.body == body
        assert "malformed envelope: the body is no JSON" in letter.properties.header("leveret-reason")


async def test_while_the_store_is_away_the_envelope_stays_in_hand_and_is_stored_later(scene):
    class Away(MemoryDocumentStore):
        fails = 3

        async def insert(self, doc, overwrite_existing=False):
            self.fails -= 1
            if self.fails >= 0:
                raise OSError("away")
            return await super().insert(doc, overwrite_existing)

    store = Away(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    await scene.queue("jobs.parser")
    async with Running(scene, scene.runner(retry_store=store)):
        await scene.publish(a_failure())
        await scene.clock.advance(1 + 2 + 4)
        assert len([row async for row in store.query({})]) == 1
        await scene.clock.advance(5)
        assert len(await scene.got("jobs.parser")) == 1


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Alarms, by what was told of which condition."""
    return [
        (record.action, record.code)
        for record in caplog.records
        if record.name == "leveret.alarms" and hasattr(record, "code")
    ]


ONE_ALARM = [("alarm", "retry_store_unavailable"), ("resolved", "retry_store_unavailable")]


async def test_that_its_store_is_away_is_told_once_and_that_it_is_back_as_well(scene, caplog):
    caplog.set_level("INFO", "leveret")

    class Away(MemoryDocumentStore):
        away = True

        async def insert(self, doc, overwrite_existing=False):
            if self.away:
                raise StoreUnavailable("no route to db-1")
            return await super().insert(doc, overwrite_existing)

    store = Away(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    await scene.queue("jobs.parser")
    async with Running(scene, scene.runner(retry_store=store)):
        for number in range(3):
            message = a_failure()["data"] | {"data": {"doc_id": f"d{number}"}}
            await scene.publish(a_failure(data=message))
        await scene.clock.advance(100)
        assert told(caplog) == ONE_ALARM[:1]
        assert "they wait in jobs.retry_worker" in caplog.text
        store.away = False
        await scene.clock.advance(40)
        assert told(caplog) == ONE_ALARM
        assert len(await scene.got("jobs.parser")) == 3


async def test_that_what_is_published_cannot_be_removed_is_told_once_and_that_it_is_over(scene, caplog):
    caplog.set_level("INFO", "leveret")

    class ReadOnly(MemoryDocumentStore):
        read_only = True

        async def delete(self, doc_id, *, expected=None):
            if self.read_only:
                raise StoreUnavailable("the store is read-only")
            return await super().delete(doc_id, expected=expected)

    store = ReadOnly(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    await scene.queue("jobs.parser")
    async with Running(scene, scene.runner(retry_store=store)):
        for number in range(3):
            await scene.publish(a_failure(data=a_failure()["data"] | {"number": number}))
        await scene.clock.advance(5 + 60)
        assert told(caplog) == ONE_ALARM[:1]
        assert "retries of jobs cannot be removed; they are published, and not again" in caplog.text
        store.read_only = False
        await scene.clock.advance(60)
        assert told(caplog) == ONE_ALARM
        assert len(await scene.got("jobs.parser")) == 3
    assert [row async for row in store.query({})] == []


async def test_that_the_lease_cannot_be_asked_for_is_told_although_nothing_fails_meanwhile(scene, caplog):
    caplog.set_level("INFO", "leveret")
    away = False

    class Store(MemoryDocumentStore):
        def lease(self, name):
            lease = super().lease(name)
            renew = lease.acquire_or_renew

            async def acquire_or_renew(*given):
                if away:
                    raise StoreUnavailable("no route to db-1")
                return await renew(*given)

            lease.acquire_or_renew = acquire_or_renew
            return lease

    store = Store(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    async with Running(scene, scene.runner(retry_store=store)):
        await scene.clock.advance(5)
        assert told(caplog) == []
        away = True
        await scene.clock.advance(60)
        assert told(caplog) == ONE_ALARM[:1]
        away = False
        await scene.clock.advance(1)
        assert told(caplog) == ONE_ALARM


async def test_c05_dropped_between_stored_and_acked_the_envelope_comes_again_and_is_one_row(
    scene, monkeypatch
):
    monkeypatch.setattr("leveret.retry.exchanges.GRACE", 0.01)

    class Slow(MemoryDocumentStore):
        stored = asyncio.Event()
        answers = asyncio.Event()

        async def insert(self, doc, overwrite_existing=False):
            await super().insert(doc, overwrite_existing)
            self.stored.set()
            await self.answers.wait()

    slow = Slow(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    async with Running(scene, scene.runner(retry_store=slow)):
        await scene.publish(a_failure())
        await slow.stored.wait()
    slow.answers.set()
    await scene.queue("jobs.parser")
    async with Running(scene, scene.runner(retry_store=slow)):
        await scene.clock.advance(0)
        assert len([row async for row in slow.query({})]) == 1
        await scene.clock.advance(5)
        assert len(await scene.got("jobs.parser")) == 1


async def test_a_clean_stop_between_stored_and_acked_leaves_no_copy_even_without_a_document(scene):
    class Slow(MemoryDocumentStore):
        stored = asyncio.Event()
        answers = asyncio.Event()

        async def insert(self, doc, overwrite_existing=False):
            await super().insert(doc, overwrite_existing)
            self.stored.set()
            await self.answers.wait()

    slow = Slow(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    failure = a_failure()
    failure["data"]["data"] = {}
    async with Running(scene, scene.runner(retry_store=slow)) as running:
        await scene.publish(failure)
        await slow.stored.wait()
        running.task.cancel()
        await scene.clock.advance(0)
        slow.answers.set()
    queue = scene.broker.snapshot()["jobs.retry_worker"]
    assert (queue.ready, queue.unsettled) == (0, 0)
    assert len([row async for row in slow.query({})]) == 1


async def test_a_row_of_the_plain_old_key_goes_straight_where_its_message_went_straight_before(scene):
    """Another program's retry worker stored it, beside this one, with the key that it came with: its queue's name."""
    store = MemoryDocumentStore(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    message = a_failure()["data"] | {"_replay_routing_key": "jobs.parser"}
    await store.insert(
        {"retry_key": "job:j1:doc:d1:part:0", "message": message, "fire_at": scene.clock.now() + 5}
    )
    await scene.queue("jobs.parser", key="fast.page")
    await scene.queue("jobs.other", key="#")
    async with Running(scene, scene.runner(retry_store=store)):
        await scene.clock.advance(5)
        assert await scene.got("jobs.parser") == [message]
        assert await scene.got("jobs.other") == []


async def test_a_plain_key_that_merely_looks_like_a_queue_goes_through_the_exchange(scene):
    store = MemoryDocumentStore(collection_name="r", doc_id_field="retry_key", clock=scene.clock)
    message = a_failure()["data"] | {"_replay_routing_key": "jobs.created"}
    await store.insert({"retry_key": "job:j1:doc:d1:part:0", "message": message, "fire_at": 0})
    await scene.queue("elsewhere", key="jobs.created")
    async with Running(scene, scene.runner(retry_store=store)):
        assert await scene.got("elsewhere") == [message]


async def test_what_went_straight_before_waits_for_its_queue_where_that_is_gone(scene):
    """Its key is that queue's name by now; on a topic, only this runner's own queue would take it."""
    failure = a_failure()
    failure["data"]["_replay_routing_key"] = "jobs.parser"
    async with Running(scene, scene.runner()):
        await scene.publish(failure)
        await scene.clock.advance(60)
        await scene.queue("jobs.parser", key="fast.page")
        await scene.clock.advance(60)
        assert await scene.got("jobs.parser") == [failure["data"]]


async def test_messages_bear_priority_type_and_persistence(scene):
    await scene.queue("jobs.parser")
    message = a_failure()
    message["data"]["priority"] = 2
    async with Running(scene, scene.runner()):
        await scene.publish(message)
        await scene.clock.advance(5)
        delivery = await scene.transport.get("jobs.parser")
        assert delivery is not None
        found = delivery.properties
        assert (found.priority, found.type, found.delivery_mode) == (2, "page", 2)


async def test_it_warns_that_a_publisher_to_a_shared_exchange_is_not_told_of_a_missing_retry_queue(
    scene, caplog
):
    runner = scene.runner()
    await runner.setup()
    await runner.teardown()
    assert "a publisher is not told where jobs.retry_worker is missing" in caplog.text


async def test_a_shared_connection_is_used_and_not_closed(scene):
    runner = scene.runner()
    await runner.setup()
    await runner.teardown()
    assert scene.transport.state == "connected"


async def test_alone_it_makes_everything_from_its_settings_and_stores_in_sqlite(tmp_path):
    name = f"memory://{tmp_path.name}"
    config = a_config(tmp_path, broker=name)
    transport = MemoryTransport(MemoryBroker.named(tmp_path.name), world=fake_world())
    await transport.open()
    await transport.declare(Topology(exchanges=(JOBS,), queues=(Queue("jobs.parser"),)))
    runner = RetryWorkerRunner(config, "retry", exchange=JOBS)
    await runner.setup()
    running = asyncio.create_task(runner.run())
    arrived = asyncio.Event()
    await transport.consume("jobs.parser", lambda _: arrived.set(), prefetch=1)
    failure = json.dumps(a_failure() | {"data": {"a": 1, "retry": {"after": 0.01}}}).encode()
    await transport.send(Outgoing("jobs", "x", failure, Properties.build()))
    async with asyncio.timeout(10):
        await arrived.wait()
    running.cancel()
    await asyncio.wait([running])
    assert (tmp_path / "leveret.db").exists()
    await transport.close()


async def test_a_rabbitmq_that_does_not_answer_is_told_at_setup(tmp_path):
    with pytest.raises(BrokerUnreachable, match=r"nobody answers at 127\.0\.0\.1:1"):
        await RetryWorkerRunner(
            a_config(tmp_path, broker="amqp://127.0.0.1:1"), "retry", exchange=JOBS
        ).setup()


@pytest.mark.parametrize("given", [RMQExchangeConfig("a"), RMQExchangeConfig("b", "fanout", False)])
def test_fanout_and_topic_are_watched_in_place(given):
    assert observer_exchange(given) == given


def test_a_direct_one_is_watched_beside():
    assert observer_exchange(RMQExchangeConfig("a", "direct")) == RMQExchangeConfig("a.observer", "fanout")
