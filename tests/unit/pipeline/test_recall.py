from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import weakref

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret, Message
from leveret.core.message import Outgoing
from leveret.core.outcome import ONLY_ACK
from leveret.core.properties import Properties
from leveret.pipeline.recall import _FORGOTTEN, Recall
from leveret.testing.fake_clock import FakeClock, idle


@pytest.fixture
def app():
    return Leveret("shop", broker="memory://", store="memory://")


def cut_at_the_next_publish(t: RunningApp) -> None:
    def cut(*_) -> None:
        t.broker.on_publish.clear()
        t.broker.drop_connections()

    t.broker.on_publish.append(cut)


async def test_two_messages_that_look_alike_are_not_run_again_where_a_cut_comes_while_both_run(app):
    runs = []
    go_on = asyncio.Event()

    @app.worker
    async def tick(body: bytes) -> None:
        runs.append(body)
        await go_on.wait()

    async with RunningApp(app) as t:
        await t.send("shop.tick", b"tick")
        await t.send("shop.tick", b"tick")
        t.broker.drop_connections()
        await t.clock.advance(1)
        go_on.set()
        await t.clock.advance(1)
        assert len(runs) == 2
        assert t.broker.snapshot()["shop.tick"][:2] == (0, 0)


async def test_a_message_that_looks_like_one_that_was_cut_off_is_run_all_the_same(app):
    runs = []
    go_on = asyncio.Event()

    @app.worker
    async def tick(body: bytes) -> None:
        runs.append(body)
        await go_on.wait()

    async with RunningApp(app) as t:
        await t.send("shop.tick", b"tick")
        await t.send("shop.tick", b"tick")
        t.broker.drop_connections()
        await t.clock.advance(1)
        go_on.set()
        await t.clock.advance(1)
        go_on.clear()
        before = len(runs)
        # A third one, which is cut off before anybody starts it.
        cut_at_the_next_publish(t)
        await t.send("shop.tick", b"tick")
        go_on.set()
        await t.clock.advance(1)
        assert len(runs) == before + 1


async def test_a_redelivery_that_took_the_place_of_a_run_goes_back_where_the_run_meets_a_fault_of_ours(app):
    stay = asyncio.Event()

    @app.worker
    async def tick(body: bytes) -> list[Message]:
        await stay.wait()
        return [Message("tick", {}, mandatory=False)] if body == b"tick" else []

    async with RunningApp(app) as t:
        [consumer] = t.runner.consumers
        road = consumer.road
        plain, faults = road._obey, [RuntimeError("a fault of ours")]

        async def faulty(hand):
            if faults:
                raise faults.pop()
            return await plain(hand)

        road._obey = faulty
        await t.send("shop.tick", b"tick", message_id="a")
        t.broker.drop_connections()
        await idle()
        stay.set()
        await t.clock.advance(10)
        assert faults == []
        assert t.broker.snapshot()["shop.tick"][:2] == (0, 0)
        assert len(road.recall) == 0


async def test_an_outcome_that_cannot_be_done_for_a_fault_of_ours_ends_as_a_dead_letter(app):
    runs = []

    @app.worker(max_deliveries=3)
    async def tick(body: bytes) -> Message:
        runs.append(body)
        return Message("nobody", {}, mandatory=False)

    async with RunningApp(app) as t:
        [consumer] = t.runner.consumers
        plain = consumer.road._obey

        async def faulty(hand):
            if type(hand.decision).__name__ == "Bury":
                return await plain(hand)
            raise RuntimeError("a fault of ours")

        consumer.road._obey = faulty
        await t.send("shop.tick", b"tick", message_id="a")
        await t.clock.advance(60)
        assert len(runs) == 3
        assert [letter.ending for letter in t.data.letters.values()] == ["worker died"]
        assert len(consumer.road.recall) == 0


async def test_an_ordered_message_is_not_run_where_its_delivery_went_stale_while_its_start_was_counted(app):
    runs = []

    @app.worker(prefetch=1)
    async def tick(body: bytes) -> None:
        runs.append(body)

    async with RunningApp(app) as t:
        count_may_go_on = asyncio.Event()

        async def slow(name, *_):
            if name == "count_start" and not count_may_go_on.is_set():
                await count_may_go_on.wait()

        t.store.before = slow
        cut_at_the_next_publish(t)
        await t.send("shop.tick", b"tick", message_id="a")
        # It is flagged, and being counted; now another process gets it.
        consumer = t.runner.consumers[0]
        await consumer._subscription.cancel()
        t.broker.drop_connections()
        await idle()
        count_may_go_on.set()
        await idle()
        assert runs == []
        assert t.ready("shop.tick") == 1


async def test_an_ordered_message_whose_ack_is_lost_while_its_start_is_forgotten_is_acked_again(app):
    runs = []

    @app.worker(prefetch=1)
    async def tick(body: bytes) -> None:
        runs.append(body)

    async with RunningApp(app) as t:

        async def slow(name, *_) -> None:
            if name == "forget_starts":
                await t.clock.sleep(5)

        t.store.before = slow
        cut_at_the_next_publish(t)
        t.broker.lose_next_ack()
        tagged = Outgoing("", "shop.tick", b"tick", Properties.build(message_id="a"))
        await t.outside.send(tagged)
        await t.clock.advance(1)
        assert runs == [b"tick"]
        t.broker.drop_connections()
        await t.clock.advance(30)
        assert runs == [b"tick"]
        assert t.broker.snapshot()["shop.tick"][:2] == (0, 0)


COUNTED = """
import asyncio
from leveret import Leveret
from tests.unit.running_app import RunningApp

app = Leveret("shop", broker="memory://", store="memory://")

@app.worker(prefetch=1)
async def tick(body: bytes) -> None:
    await asyncio.get_running_loop().create_future()

async def main():
    t = RunningApp(app)
    await t.__aenter__()
    await t.send("shop.tick", b"tick")
    t.runner.consumers[0].road.recall.running = lambda delivery: None
    t.broker.drop_connections()
    await t.runner.consumers[0].drop()
    t.runner.consumers[0]._stopping = False
    t.broker.drop_connections()
    await t.clock.advance(1)
    print(sorted(t.data.starts))

asyncio.run(main())
"""


def test_starts_of_a_message_without_an_id_are_counted_under_one_name_in_every_process():
    path = os.pathsep.join([*filter(None, sys.path), "."])
    told = {
        subprocess.run(
            [sys.executable, "-c", COUNTED],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(told) == 1
    assert "shop.tick" in told.pop()


class PlainDelivery:
    """As much of a delivery as a recall looks at; it can be told whether anybody still has it."""

    def __init__(self) -> None:
        self.queue, self.tag, self.body, self.properties = "shop.tick", "tag-1", b"{}", Properties.build()
        self.exchange, self.routing_key, self.redelivered, self.stale = "", "shop.tick", False, False


def test_an_acked_message_is_remembered_without_its_body():
    recall = Recall(FakeClock())
    delivery = PlainDelivery()
    hand = recall.begin(delivery, _FORGOTTEN)
    hand.decision = ONLY_ACK
    recall.end(hand, acked=True)
    kept = weakref.ref(delivery)
    del delivery, hand
    assert kept() is None
    again = recall.ended(PlainDelivery())
    assert again is not None
    assert again.confirmed


def test_that_a_quorum_queue_sorts_headers_makes_no_other_message_of_a_redelivery():
    recall = Recall(FakeClock())
    first, again = PlainDelivery(), PlainDelivery()
    first.properties = Properties.build(headers={"z": 1, "a": {"z": 1, "a": 2}, "m": None}, message_id="one")
    again.properties = Properties.build(
        headers={"a": {"z": 1, "a": 2}, "m": None, "x-delivery-count": 1, "z": 1}, message_id="one"
    )
    hand = recall.begin(first, _FORGOTTEN)
    first.stale = True
    assert recall.running(again) is hand


def test_nor_that_it_counts_in_headers_that_were_there_and_empty():
    recall = Recall(FakeClock())
    first, again = PlainDelivery(), PlainDelivery()
    first.properties = Properties(b"\x20\x80" + bytes(4) + b"\x03one")
    again.properties = first.properties.edit(add={"x-delivery-count": 1})
    hand = recall.begin(first, _FORGOTTEN)
    first.stale = True
    assert recall.running(again) is hand


@pytest.mark.parametrize(
    "headers", [{"a": 1, "z": 2}, {"a": 2, "z": 1, "m": 0}, {"a": 2}, {"z": 2, "a": 1.0}]
)
def test_with_other_headers_it_is_another_message(headers):
    recall = Recall(FakeClock())
    first, other = PlainDelivery(), PlainDelivery()
    first.properties = Properties.build(headers={"z": 1, "a": 2})
    other.properties = Properties.build(headers=headers)
    recall.begin(first, _FORGOTTEN)
    first.stale = True
    assert recall.running(other) is None


async def test_what_a_quorum_queue_counts_makes_no_other_message_of_a_redelivery(app):
    runs = []
    go_on = asyncio.Event()

    @app.worker(prefetch=1, queue_type="quorum")
    async def tick(body: bytes) -> None:
        runs.append(body)
        await go_on.wait()

    async with RunningApp(app) as t:
        await t.send("shop.tick", b"tick", headers={"zeal": 1, "kept": 1})
        for _ in range(10):
            t.broker.drop_connections()
            await t.clock.advance(1)
        go_on.set()
        await t.clock.advance(1)
        assert runs == [b"tick"]
        assert t.broker.snapshot()["shop.tick"][:2] == (0, 0)
        assert t.data.letters == {}
