from __future__ import annotations

import asyncio
import threading

import pytest

from leveret.core.errors import NotFound, PublishRefused, PublishTimeout, QueueMismatch, Unroutable
from leveret.core.message import Outgoing
from leveret.core.properties import Properties
from leveret.testing.fake_clock import FakeClock
from leveret.testing.worlds import fake_world
from leveret.transports.memory import MemoryBroker, MemoryTransport


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def broker():
    broker = MemoryBroker()
    broker.declare_queue("q")
    return broker


@pytest.fixture
async def transport(broker, clock):
    transport = MemoryTransport(broker, world=fake_world(clock=clock))
    await transport.open()
    yield transport
    await transport.close()


def message(queue="q", body=b"", *, mandatory=True, **properties):
    return Outgoing("", queue, body, Properties.build(**properties), mandatory)


async def until(condition):
    while not condition():  # noqa: ASYNC110 - nothing tells, and the loop's next turns are all that is waited for
        await asyncio.sleep(0)


async def test_the_same_name_is_the_same_broker_and_no_name_is_nobody_elses():
    assert MemoryBroker.named("shared") is MemoryBroker.named("shared")
    assert MemoryBroker.named("shared") is not MemoryBroker.named("other")
    assert MemoryBroker.named("shared").display == "memory://shared"
    assert MemoryBroker().display == "memory://"


async def test_messages_shows_what_lies_ready_with_its_tag_and_takes_nothing(broker, transport):
    await transport.send(message(body=b"a", headers={"mine": 1}))
    await transport.send(message(body=b"b", mandatory=False))
    first, second = broker.messages("q")
    assert (first.body, dict(first.properties.headers)) == (
        b"a",
        {"mine": 1, "leveret-tag": (await transport.get("q")).tag},
    )
    assert (second.body, dict(second.properties.headers)) == (b"b", {})
    with pytest.raises(NotFound, match="nowhere"):
        broker.messages("nowhere")


async def test_a_snapshot_tells_ready_unsettled_and_consumers_of_each_queue(broker, transport):
    broker.declare_queue("empty")
    for _ in range(3):
        await transport.send(message())
    got = asyncio.Event()
    await transport.consume("q", lambda _: got.set(), prefetch=1)
    await got.wait()
    assert broker.snapshot() == {"q": (2, 1, 1), "empty": (0, 0, 0)}


async def test_purge_takes_what_is_ready_and_leaves_what_is_in_hand(broker, transport):
    for _ in range(3):
        await transport.send(message())
    in_hand = await transport.get("q")
    assert broker.purge("q") == 2
    assert in_hand.requeue() is True
    assert len(broker.messages("q")) == 1


async def test_observers_hear_of_each_accepted_publish_and_of_no_other(broker, transport):
    heard = []
    broker.on_publish.append(lambda outgoing, queues: heard.append((outgoing.body, list(queues))))
    broker.refuse_next(1)
    for body in (b"refused", b"taken"):
        await asyncio.gather(transport.send(message(body=body)), return_exceptions=True)
    await asyncio.gather(transport.send(message("nobody")), return_exceptions=True)
    await transport.send(message("nobody", b"to nobody", mandatory=False))
    assert heard == [(b"taken", ["q"]), (b"to nobody", [])]


async def test_quiet_waits_for_what_is_ready_and_for_what_is_in_hand(broker, transport):
    await transport.send(message())
    while_ready = asyncio.create_task(broker.quiet())
    await asyncio.sleep(0)
    delivery = await transport.get("q")
    while_in_hand = asyncio.create_task(broker.quiet())
    # Each answer makes them look again.
    for _ in range(3):
        await transport.send(message("nobody", mandatory=False))
    assert (while_ready.done(), while_in_hand.done()) == (False, False)
    delivery.ack()
    await asyncio.wait_for(asyncio.gather(while_ready, while_in_hand), 5)


async def test_quiet_waits_for_answers_that_are_on_their_way(broker, transport):
    sent = transport.send(message("nobody", mandatory=False))
    await asyncio.wait_for(broker.quiet(), 5)
    assert sent.done()


async def test_quiet_can_leave_queues_out(broker, transport):
    broker.declare_queue("letters")
    await transport.send(message("letters"))
    await asyncio.wait_for(broker.quiet(lambda queue: queue != "letters"), 5)
    everywhere = asyncio.create_task(broker.quiet())
    await asyncio.sleep(0)
    broker.delete_queue("letters")
    await asyncio.wait_for(everywhere, 5)


@pytest.mark.parametrize("calm", [lambda b: b.purge("q"), lambda b: b.delete_queue("q")])
async def test_quiet_hears_of_what_is_taken_away(broker, transport, calm):
    await transport.send(message())
    quiet = asyncio.create_task(broker.quiet())
    await asyncio.sleep(0)
    calm(broker)
    await asyncio.wait_for(quiet, 5)


async def test_quiet_hears_of_what_expires(broker, transport, clock):
    await transport.send(message(expiration="1000"))
    quiet = asyncio.create_task(broker.quiet())
    await clock.advance(1)
    await asyncio.wait_for(quiet, 5)


async def test_a_body_over_128_mib_is_refused_alone(broker, transport):
    # Zero pages that nobody touches: the test takes no such memory.
    too_big, largest = bytes(128 * 1024 * 1024 + 1), bytes(128 * 1024 * 1024)
    ends = await asyncio.gather(
        transport.send(message(body=too_big)),
        transport.send(message(body=largest)),
        return_exceptions=True,
    )
    assert isinstance(ends[0], PublishRefused)
    assert ends[0].code == 406
    assert "134217729" in str(ends[0])
    assert ends[1] is None


async def test_a_full_queue_refuses_though_another_one_took_the_message(broker, transport):
    broker.declare_exchange("x", "fanout")
    broker.declare_queue("full", {"x-max-length": 0, "x-overflow": "reject-publish"})
    broker.bind("x", "full")
    broker.bind("x", "q")
    with pytest.raises(PublishRefused, match="full"):
        await transport.send(Outgoing("x", "key", b"", Properties.build()))
    assert len(broker.messages("q")) == 1


async def test_a_ttl_of_the_queue_and_one_of_the_message_the_shorter_holds(broker, transport, clock):
    broker.declare_queue("short", {"x-message-ttl": 1000})
    await transport.send(message("short", expiration="5000"))
    await transport.send(message("short", expiration="10"))
    await clock.advance(0.9)
    # The second one is due, and stands behind one that is not.
    assert broker.snapshot()["short"].ready == 2
    await clock.advance(0.1)
    assert broker.snapshot()["short"].ready == 0


async def test_what_expired_while_others_stood_before_it_is_not_handed_out(broker, transport, clock):
    await transport.send(message(body=b"first"))
    await transport.send(message(body=b"second", expiration="1000"))
    await transport.send(message(body=b"third"))
    await clock.advance(2)
    assert [(await transport.get("q")).body for _ in range(2)] == [b"first", b"third"]


async def test_a_ttl_of_nothing_is_delivered_to_whoever_has_room_and_expires_otherwise(broker, transport):
    taken = []
    subscription = await transport.consume("q", taken.append, prefetch=1)
    await transport.send(message(body=b"taken", expiration="0"))
    await transport.send(message(body=b"late", expiration="0"))
    assert [delivery.body for delivery in taken] == [b"taken"]
    await subscription.cancel()
    assert taken[0].ack() is True
    assert await transport.get("q") is None


async def test_what_returns_after_its_time_expires_at_once(broker, transport, clock):
    broker.declare_queue("dead")
    broker.declare_queue("short", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    await transport.send(message("short", expiration="1000"))
    delivery = await transport.get("short")
    await clock.advance(5)
    assert broker.snapshot()["dead"].ready == 0
    delivery.requeue()
    assert broker.snapshot()["dead"].ready == 1


async def test_what_would_go_round_for_ever_is_dropped(broker, transport, clock):
    broker.declare_queue(
        "loop", {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "loop"}
    )
    await transport.send(message("loop"))
    await clock.advance(10)
    assert broker.snapshot()["loop"].ready == 0


async def test_dead_letters_without_an_exchange_are_gone_and_disturb_nobody(broker, transport, clock):
    broker.declare_queue("short", {"x-message-ttl": 10, "x-dead-letter-exchange": "nowhere"})
    await transport.send(message("short"))
    await clock.advance(1)
    assert broker.snapshot()["short"].ready == 0
    await transport.send(message("q"))


async def test_a_dead_letter_keeps_its_tag_and_fits_into_a_full_queue(broker, transport, clock):
    broker.declare_queue("dead", {"x-max-length": 0, "x-overflow": "reject-publish"})
    broker.declare_queue("short", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    await transport.send(message("short", expiration="10"))
    [waiting] = broker.messages("short")
    await clock.advance(1)
    [letter] = broker.messages("dead")
    assert letter.properties.header("leveret-tag") == waiting.properties.header("leveret-tag") is not None


async def test_a_quorum_queue_counts_cuts_and_shares_what_was_asked_for_exclusively(broker, transport):
    broker.declare_queue("quorum", {"x-queue-type": "quorum"})
    await transport.send(message("quorum", delivery_mode=1))
    counts = []
    await transport.consume(
        "quorum", lambda d: counts.append(d.properties.header("x-delivery-count")), prefetch=1, exclusive=True
    )
    await transport.consume("quorum", counts.append, prefetch=1, exclusive=True)
    for _ in range(3):
        await asyncio.sleep(0)
        broker.stop()
        broker.start()
        await until(lambda: transport.state == "connected")
    await asyncio.sleep(0)
    assert counts == [None, 1, 2, 3]


async def test_messages_that_come_back_stand_where_they_stood(broker, transport):
    for body in (b"a", b"b", b"c", b"d", b"e"):
        await transport.send(message(body=body))
    in_hand = [await transport.get("q") for _ in range(4)]
    for place in (2, 0, 3, 1):
        in_hand[place].requeue()
    assert [outgoing.body for outgoing in broker.messages("q")] == [b"a", b"b", b"c", b"d", b"e"]


async def test_an_ack_that_makes_room_calls_no_receiver_before_it_returns(broker, transport):
    deep, deepest = 0, 0

    def take(delivery):
        nonlocal deep, deepest
        deep += 1
        deepest = max(deepest, deep)
        delivery.ack()
        deep -= 1

    await transport.consume("q", take, prefetch=1)
    await asyncio.gather(*(transport.send(message()) for _ in range(2000)))
    await asyncio.wait_for(broker.quiet(), 5)
    assert deepest == 1


async def test_three_consumers_take_turns(broker, transport):
    taken = []
    for name in "abc":
        await transport.consume("q", lambda delivery, name=name: taken.append(name) or delivery, prefetch=10)
    for _ in range(6):
        await transport.send(message())
    assert taken == list("abcabc")


async def test_a_queue_declared_otherwise_is_refused_and_stays(broker):
    broker.declare_queue("mine", {"x-max-length": 5})
    broker.declare_queue("mine", {"x-max-length": 5})
    with pytest.raises(QueueMismatch, match="mine"):
        broker.declare_queue("mine", {"x-max-length": 6})
    with pytest.raises(QueueMismatch, match="mine"):
        broker.declare_queue("mine", {"x-max-length": 5}, auto_delete=True)
    assert list(broker.snapshot()) == ["q", "mine"]


async def test_a_lost_ack_brings_the_message_back_at_the_next_cut(broker, transport):
    await transport.send(message(body=b"done"))
    taken = []
    await transport.consume("q", taken.append, prefetch=5)
    await until(lambda: taken)
    broker.lose_next_ack()
    assert taken[0].ack() is True
    assert taken[0].ack() is False
    assert broker.snapshot()["q"].unsettled == 1
    broker.drop_connections()
    await until(lambda: len(taken) == 2)
    assert (taken[1].body, taken[1].redelivered, taken[1].tag) == (b"done", True, taken[0].tag)
    assert taken[1].ack() is True
    assert broker.snapshot()["q"] == (0, 0, 1)


async def test_a_refused_publish_is_not_stored(broker, transport):
    broker.refuse_next(2)
    ends = await asyncio.gather(*(transport.send(message()) for _ in range(3)), return_exceptions=True)
    assert [type(end) for end in ends] == [PublishRefused, PublishRefused, type(None)]
    assert [end.code for end in ends[:2]] == [None, None]
    assert len(broker.messages("q")) == 1


async def test_what_was_held_while_blocked_is_answered_one_by_one_after_it(broker, transport):
    broker.block()
    sent = [transport.send(outgoing) for outgoing in (message(), message("nobody"), message())]
    assert transport.buffered > 0
    drained = asyncio.create_task(transport.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    broker.unblock()
    ends = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(end) for end in ends] == [type(None), Unroutable, type(None)]
    await asyncio.wait_for(drained, 5)


def test_what_one_event_loop_left_is_there_in_the_next(broker, clock):
    world = fake_world(clock=clock)
    left = []

    async def first():
        transport = MemoryTransport(broker, world=world)
        await transport.open()
        broker.declare_queue("short")
        await transport.send(message(body=b"in hand"))
        await transport.send(message(body=b"ready"))
        await transport.send(message("short", expiration="1000"))
        left.append(await transport.get("q"))
        # Neither closed nor settled: the loop ends as a process ends.

    async def second():
        transport = MemoryTransport(broker, world=world)
        await transport.open()
        again, ready = await transport.get("q"), await transport.get("q")
        assert (again.body, again.redelivered) == (b"in hand", True)
        assert (ready.body, ready.redelivered) == (b"ready", False)
        # The timer that the first loop set died with it.
        await clock.advance(2)
        assert broker.snapshot()["short"].ready == 0
        await transport.close()

    asyncio.run(first())
    asyncio.run(second())
    assert (left[0].stale, left[0].ack()) == (True, False)


def test_a_consumer_of_a_loop_that_is_gone_holds_up_nobody(broker):
    world = fake_world()

    async def first():
        transport = MemoryTransport(broker, world=world)
        await transport.open()
        await transport.consume("q", print, prefetch=10)

    asyncio.run(first())
    assert broker.snapshot()["q"].consumers == 0

    async def second():
        sender = MemoryTransport(broker, world=world)
        await sender.open()
        await sender.send(message(body=b"one"))
        assert (await sender.get("q")).body == b"one"
        await sender.close()

    asyncio.run(second())


def test_two_loops_in_two_threads_use_one_broker(broker):
    number = 2000
    seen = []
    consuming = threading.Event()

    async def consumer():
        transport = MemoryTransport(broker, world=fake_world())
        await transport.open()
        enough = asyncio.get_running_loop().create_future()

        def take(delivery):
            seen.append(delivery.body)
            delivery.ack()
            if len(seen) == number:
                enough.set_result(None)

        await transport.consume("q", take, prefetch=50)
        consuming.set()
        await asyncio.wait_for(enough, 30)
        await transport.close()

    async def publisher():
        transport = MemoryTransport(broker, world=fake_world(1))
        await transport.open()
        for start in range(0, number, 100):
            await transport.ready()
            await asyncio.gather(
                *(transport.send(message(body=str(n).encode())) for n in range(start, start + 100))
            )
        await asyncio.wait_for(broker.quiet(), 30)
        await transport.close()

    thread = threading.Thread(target=lambda: asyncio.run(consumer()))
    thread.start()
    consuming.wait(30)
    asyncio.run(publisher())
    thread.join(30)
    assert seen == [str(n).encode() for n in range(number)]


async def test_a_stop_between_send_and_answer_is_unknown(broker, transport):
    sent = transport.send(message())
    broker.stop()
    broker.start()
    with pytest.raises(PublishTimeout, match="same id"):
        await sent
    assert len(broker.messages("q")) == 1
