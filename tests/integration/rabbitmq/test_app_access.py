"""What the broker does not let an app do: log in, publish, read, share a queue; told with the remedy (B28, D11, R9)."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid

import pytest
from tests.rabbitmq_app import HeardAlarms, QueueRow
from tests.rabbitmq_scene import until

from leveret import AccessRefused, HardFailure, QueueMismatch
from leveret.core.urls import parse_broker
from leveret.pipeline.batches import IN_USE_TOLD_AFTER
from leveret.ports import World
from leveret.runtime.opening import Stand
from leveret.runtime.world import DaemonThreads, SystemClock, random_uuid
from leveret.stores.sqlite.store import SqliteStore
from leveret.transports.rabbitmq.transport import RabbitTransport

SECRET = "s3cr3t-never-shown"


class HurriedTime(SystemClock):
    """A clock that runs forty times as fast as the system's: two minutes are three seconds."""

    FACTOR = 40.0

    def now(self):
        return super().now() * self.FACTOR

    def monotonic(self):
        return super().monotonic() * self.FACTOR

    def call_later(self, seconds, callback):
        return asyncio.get_running_loop().call_later(seconds / self.FACTOR, callback)

    async def sleep(self, seconds):
        await asyncio.sleep(seconds / self.FACTOR)


@pytest.fixture
def user(rabbitmq):
    """A user of the broker who may do nothing yet, and how to let them do something."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    rabbitmq.ctl("add_user", name, SECRET)

    def may(*, configure=".*", write=".*", read=".*"):
        rabbitmq.ctl("set_permissions", name, configure, write, read)
        return f"{name}:{SECRET}"

    return may


@pytest.mark.parametrize("what", ["password", "vhost"])
async def test_b28_a_wrong_password_or_vhost_is_told_at_open_and_nothing_stays_open(place, what, caplog):
    caplog.set_level(logging.DEBUG)
    vhost, login = ("/", f"guest:{SECRET}") if what == "password" else ("/nowhere", "guest:guest")
    app = place.app(broker=place.url(login=login) + vhost)
    with pytest.raises(AccessRefused) as caught:
        await app.open()
    said = str(caught.value)
    port = place.broker.proxy.port
    if what == "password":
        assert said.startswith(
            f'RabbitMQ at 127.0.0.1:{port} does not let "guest" in on vhost "/": ACCESS_REFUSED - Login was refused '
            "using authentication mechanism PLAIN."
        )
        assert "Not tried again." in said
        assert "rabbitmqctl add_user shop; rabbitmqctl set_permissions shop" in said
    else:
        assert f'127.0.0.1:{port} does not let "guest" in on vhost "nowhere": NOT_ALLOWED - ' in said
    assert app._open is None
    assert SECRET not in said + caplog.text + repr(app)


async def test_b28_a_password_that_is_changed_at_run_time_means_an_alarm_and_long_waits(
    place, user, monkeypatch, caplog
):
    caplog.set_level(logging.DEBUG)
    # The first wait, and the longest, which is 30 s as it comes.
    monkeypatch.setattr("leveret.transports.rabbitmq.link.DELAYS", (0.2, 4.0))
    monkeypatch.setattr("leveret.pipeline.broker_watch.PATIENCE", 2.0)
    login = user()
    app = place.app(login=login)
    ran = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.append(order["id"])

    ctl, name = place.broker.node.ctl, login.partition(":")[0]
    async with app.running():
        alarms = HeardAlarms(app)
        display = app._open.parts.transport.display
        await asyncio.to_thread(ctl, "change_password", name, "another")
        accepted = place.broker.proxy.accepted
        place.broker.proxy.cut()
        await until(lambda: alarms.holding == {("consumer_lost", display)})
        # One try each of the two connections, and from there on the longest wait.
        assert place.broker.proxy.accepted - accepted <= 4
        assert any("does not let" in record.getMessage() for record in caplog.records)
        await asyncio.to_thread(ctl, "change_password", name, SECRET)
        await until(lambda: not alarms.holding)
        await app.publish("order.placed", {"id": 1})
        await until(lambda: ran == [1])
    assert alarms.told["consumer_lost"] == 1
    assert SECRET not in caplog.text


async def test_without_the_right_to_send_dead_letters_one_is_kept_in_hand_and_the_next_message_is_done(
    place, user, monkeypatch
):
    monkeypatch.setattr("leveret.pipeline.publishing.HELD_BACKOFF", (0.2,))
    ours = rf"^{place.namespace}\."
    # Dead letters go by the default exchange, which is called amq.default here.
    app = place.app(login=user(configure=ours, write=ours, read=ours))
    ran = []
    confirmed = asyncio.Event()

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.append(order["id"])
        if order["id"] == 1:
            # The refusal closes the channel; what is unconfirmed there is published again, and may come twice.
            await confirmed.wait()
            raise HardFailure("410 gone")

    async with app.running():
        alarms = HeardAlarms(app)
        await app.publish("order.placed", {"id": 1})
        confirmed.set()
        await until(lambda: ("dlq_publish_failed", f"{place.namespace}.events.dlq") in alarms.holding)
        for number in range(2, 12):
            await app.publish("order.placed", {"id": number})
        await until(lambda: set(ran) == set(range(1, 12)))
        await place.until_rows(charge=QueueRow(0, 1, 1))
        assert app._open.runner.consumers[0].held == 1
        await asyncio.to_thread(user, configure=ours, write=rf"{ours}|^amq\.default$", read=ours)
        await until(lambda: app._open.runner.in_hand == 0)
        async with asyncio.timeout(10):
            while not (letters := (await app.dead_letters.list()).items):  # noqa: ASYNC110 - no event tells of it
                await asyncio.sleep(0.05)
        assert "410 gone" in letters[0].reason
        assert alarms.told == {"dlq_publish_failed": 1}
        assert alarms.holding == set()
    # The handler ran once: it is the step after it that was repeated.
    assert ran.count(1) == 1


async def test_without_the_right_to_read_dead_letters_they_lie_safe_and_the_log_says_that_it_is_missing(
    place, user, monkeypatch, caplog
):
    monkeypatch.setattr("leveret.pipeline.batches.IN_USE_EVERY", 0.2)
    monkeypatch.setattr("leveret.pipeline.batches.IN_USE_TOLD_AFTER", 0.0)
    app = place.app(login=user())
    dlq = f"{place.namespace}.events.dlq"
    ran = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        ran.append(order["id"])
        if order["id"] == 1:
            raise HardFailure("410 gone")

    def told(action):
        return [r.getMessage() for r in caplog.records if getattr(r, "action", "") == action]

    async with app:
        # Taken away once all is declared: whoever lacks it at first cannot even open the app.
        await asyncio.to_thread(user, read=rf"^{place.namespace}\.(?!events\.dlq$)")
        async with app.running():
            await app.publish("order.placed", {"id": 1})
            await app.publish("order.placed", {"id": 2})
            await until(lambda: sorted(ran) == [1, 2] and told("no_right"))
            await place.until_rows(**{"charge": QueueRow(0, 0, 1), "events.dlq": QueueRow(1, 0, 0)})
            await asyncio.to_thread(user)
            async with asyncio.timeout(10):
                while not (await app.dead_letters.list()).items:  # noqa: ASYNC110 - no event tells of it
                    await asyncio.sleep(0.05)
    [said] = told("no_right")
    assert said.startswith(f"{dlq} is not consumed, and what arrives lies there: ")
    assert f"access to queue '{dlq}' in vhost '/' refused for user" in said
    assert told("in_use") == []


async def test_without_the_right_to_read_them_an_app_that_declares_dead_letters_is_not_opened(place, user):
    app = place.app(login=user(read=rf"^{place.namespace}\.(?!events\.dlq$)"))
    with pytest.raises(AccessRefused, match=rf"{place.namespace}\.events\.dlq.* refused for user"):
        await app.open()
    assert app._open is None


def consumes(app):
    """Whether it consumes retry queue and dead-letter queue."""
    runner = app._open.runner
    intakes = (runner.retry_service.intake, runner.keeper.intake)
    return all(intake is not None and intake.consuming for intake in intakes)


@pytest.fixture
async def hurried(place, tmp_path):
    """An app as another process has it, on a clock that runs fast."""
    opened = []

    def hurried(file):
        app = place.app()
        world = World(
            clock=HurriedTime(), random=random.Random(len(opened)), new_id=random_uuid, threads=DaemonThreads
        )
        url = parse_broker(place.url(), "the test")
        app._stand = Stand(
            world=world,
            transport=lambda: RabbitTransport(url, world=world),
            store=lambda: SqliteStore(tmp_path / file, clock=world.clock),
        )
        opened.append(app)
        return app

    return hurried


async def test_r9_of_two_processes_on_one_file_one_consumes_and_the_other_takes_over(place):
    one, other = place.app(), place.app()
    async with other:
        async with one.running(), asyncio.timeout(30):
            await until(lambda: one._open.runner.retry_service.working)
            async with other.running():
                await place.until_rows(**{"retry": QueueRow(0, 0, 1), "events.dlq": QueueRow(0, 0, 1)})
                # It stands by: it does not even ask the broker.
                standing = await other._open.runner.retry_service.standing()
                assert standing.holder == one._open.parts.holder
                assert not other._open.runner.retry_service.working
                assert not other._open.runner.keeper.working
        # A clean stop releases the lease, and a standby asks twice a second.
        async with other.running():
            await until(lambda: other._open.runner.retry_service.working)
            await place.until_rows(**{"retry": QueueRow(0, 0, 1), "events.dlq": QueueRow(0, 0, 1)})


async def test_r9_a_second_file_on_one_namespace_is_told_after_two_minutes_and_consumes_when_the_first_ends(
    place, hurried, caplog
):
    one, other = hurried("one.db"), hurried("other.db")

    def told():
        return [record for record in caplog.records if getattr(record, "action", "") == "in_use"]

    async with other:
        async with one.running():
            await until(lambda: consumes(one))
            clock = other._open.parts.world.clock
            began = clock.monotonic()
            stack = other.running()
            await stack.__aenter__()
            await until(lambda: len(told()) == 2)
            assert clock.monotonic() - began >= IN_USE_TOLD_AFTER
            said = {record.getMessage().partition(":")[0] for record in told()}
            assert said == {
                f"another store or program consumes {place.namespace}.{queue}"
                for queue in ("retry", "events.dlq")
            }
            assert "in exclusive use" in told()[0].getMessage()
        await until(lambda: consumes(other))
        await stack.__aexit__(None, None, None)
    assert len(told()) == 2


@pytest.mark.parametrize("queue", ["retry", "events.dlq"])
async def test_r9_an_existing_quorum_queue_is_refused_with_the_remedy(place, queue):
    name = place.queue(queue)
    await place.broker.declare_queue(name, {"x-queue-type": "quorum"})
    app = place.app()
    with pytest.raises(QueueMismatch) as caught:
        await app.open()
    said = str(caught.value)
    assert name in said
    assert "x-queue-type" in said
    assert "quorum" in said
    assert "classic" in said
    assert app._open is None
    await place.broker.delete_queue(name)
    async with app:
        assert (await place.rows())[queue] == QueueRow(0, 0, 0)
