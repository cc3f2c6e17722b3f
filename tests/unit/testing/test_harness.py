# ruff: noqa: PT012 - leaving the block of a TestLeveret is what raises
from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from leveret import (
    Context,
    GiveUp,
    HardFailure,
    Leveret,
    LeveretError,
    Message,
    PublishRefused,
    PublishTimeout,
    RetryPolicy,
    SoftFailure,
    Unroutable,
)
from leveret.core import handover
from leveret.testing import TestLeveret, harness, settling

EXACT = RetryPolicy(first_delay=1, factor=2, max_attempts=4)


def shop(**options) -> Leveret:
    return Leveret("shop", **options)


def failing(app: Leveret, *errors: BaseException | None, name: str = "charge", **options):
    """A worker that fails as told, run by run, and then succeeds; the list of its attempts."""
    left = list(errors)
    attempts: list[int] = []

    @app.worker("order.placed", name=name, **options)
    async def handler(order: dict, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return attempts


# ── The example of its documentation ──────────────────────────────────────────────────────────────────────────────────


async def test_the_block_of_the_documentation_works_as_pasted():
    app = Leveret("shop", broker="amqp://shop:secret@nowhere.invalid")
    failing(app, SoftFailure("503"), retry=RetryPolicy(first_delay=0.2, max_attempts=5))

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1, "cents": 500})
        [entry] = t.waiting("charge")
        assert (entry.attempt, entry.due_in) == (1, 0.2)
        await t.advance(seconds=0.2)
        await t.run_until_idle()
        assert t.runs("charge")[-1].outcome == "done"
        assert t.dead() == []
        assert t.published("order.charged") == []
        await t.crash()
        t.broker.refuse_next(1)


def test_pytest_does_not_take_it_for_a_collection_of_tests():
    assert TestLeveret.__test__ is False


def test_importing_it_needs_no_pytest():
    code = "import sys; from leveret.testing import TestLeveret; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_it_works_in_a_plain_asyncio_run():
    app = shop()
    attempts = failing(app)

    async def main() -> None:
        async with TestLeveret(app) as t:
            await t.publish("order.placed", {})

    asyncio.run(main())
    asyncio.run(main())
    assert attempts == [1, 1]


# ── The app, before and after ─────────────────────────────────────────────────────────────────────────────────────────


async def test_an_app_that_names_neither_broker_nor_namespace_runs_as_test():
    app = Leveret()
    attempts = failing(app)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert "test.charge" in t.broker.snapshot()
    assert attempts == [1]


async def test_the_app_is_as_it_was_once_the_block_is_left():
    app = shop(broker="memory://", store="memory://")
    attempts = failing(app)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
    async with app:
        await app.publish("order.placed", {})
        assert (await app.counts()).queued == 1
        await app.run(until_idle=True, signals=False)
    assert attempts == [1, 1]
    assert len(t.runs()) == 1


async def test_an_app_that_is_open_already_is_refused():
    app = shop(broker="memory://", store="memory://")
    async with app:
        with pytest.raises(LeveretError, match="is open already"):
            await TestLeveret(app).__aenter__()
    async with TestLeveret(app):
        with pytest.raises(LeveretError, match="is open already"):
            await TestLeveret(app).__aenter__()


async def test_several_tests_of_one_app_share_nothing():
    app = shop()
    failing(app, HardFailure("no"), HardFailure("no"))
    for _ in range(2):
        async with TestLeveret(app) as t:
            assert (t.dead(), t.runs(), t.published()) == ([], [], [])
            await t.publish("order.placed", {})
            assert (len(t.dead()), len(t.runs()), len(t.published())) == (1, 1, 1)


async def test_two_apps_can_be_tested_at_once():
    one, two = shop(), shop()
    failing(one, SoftFailure("a"), retry=EXACT)
    failing(two, SoftFailure("b"), retry=EXACT)
    async with TestLeveret(one) as first, TestLeveret(two) as second:
        await first.publish("order.placed", {})
        await second.publish("order.placed", {})
        await first.advance(seconds=1)
        assert (len(first.waiting()), len(second.waiting())) == (0, 1)
        assert (first.now - second.now) == timedelta(seconds=1)


async def test_the_lifespan_is_entered_before_the_first_message_and_left_at_the_end():
    told = []

    @asynccontextmanager
    async def lifespan(app):
        told.append("entered")
        yield "the pool"
        told.append("left")

    app = shop(lifespan=lifespan)

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        told.append(ctx.state)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert told == ["entered", "the pool"]
    assert told == ["entered", "the pool", "left"]


async def test_a_lifespan_that_fails_leaves_the_app_as_it_was():
    @asynccontextmanager
    async def lifespan(app):
        raise OSError("no database")
        yield

    app = shop(lifespan=lifespan)
    for _ in range(2):
        with pytest.raises(OSError, match="no database"):
            await TestLeveret(app).__aenter__()


async def test_an_error_in_the_block_is_not_hidden_even_while_a_handler_hangs():
    app = shop()

    @app.worker("order.placed")
    async def charge() -> None:
        await asyncio.Event().wait()

    with pytest.raises(KeyError, match="mine"):
        async with TestLeveret(app):
            await app.publish("order.placed", {})
            raise KeyError("mine")
    async with TestLeveret(app):
        pass


# ── Publishing ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_publish_takes_what_the_apps_publish_takes_and_returns_the_id():
    app = shop()
    seen = []

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        seen.append((order, ctx.message_id, dict(ctx.headers)))

    async with TestLeveret(app) as t:
        assert await t.publish("order.placed", {"id": 1}, id="one", headers={"trace": "x"}) == "one"
        assert await t.publish(Message("order.placed", {"id": 2}, id="two")) == "two"
        with pytest.raises(Unroutable, match=r'Did you mean "order\.placed"'):
            await t.publish("order.palced", {})
    assert seen == [({"id": 1}, "one", {"trace": "x"}), ({"id": 2}, "two", {})]


async def test_publish_returns_when_every_handler_has_settled():
    app = shop()
    done = []

    @app.worker("order.placed")
    async def charge(order: dict) -> Message:
        await asyncio.sleep(0.02)
        return Message("order.charged", order)

    @app.worker("order.charged")
    def ship(order: dict) -> None:
        time.sleep(0.02)
        done.append(order)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1})
        assert done == [{"id": 1}]


async def test_what_was_published_is_shown_with_its_payload_results_included():
    app = shop()

    @app.worker("order.placed")
    async def charge(order: dict) -> list[Message]:
        return [
            Message("order.charged", {"paid": True}, headers={"by": "card"}),
            Message("order.charged", b"raw"),
        ]

    @app.worker("order.charged")
    async def ship(body: bytes) -> None: ...

    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {"id": 1})
        [placed] = t.published("order.placed")
        assert (placed.type, placed.payload, placed.id, placed.body) == (
            "order.placed",
            {"id": 1},
            id,
            b'{"id":1}',
        )
        first, second = t.published("order.charged")
        assert (first.payload, first.headers) == ({"paid": True}, {"by": "card"})
        assert second.payload == second.body == b"raw"
        assert t.published() == [placed, first, second]


async def test_a_retry_is_not_published_again():
    app = shop()
    failing(app, SoftFailure("503"), retry=EXACT)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.run_until_idle()
        assert len(t.runs("charge")) == 2
        assert len(t.published()) == 1


async def test_a_delayed_message_waits_and_is_published_when_its_time_has_come():
    app = shop()
    attempts = failing(app)
    async with TestLeveret(app, start=datetime(2026, 1, 1, tzinfo=UTC)) as t:
        await t.publish("order.placed", {"id": 1}, delay=90)
        await t.publish("order.placed", {"id": 2}, at=datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
        assert [(entry.kind, entry.attempt, entry.due_in) for entry in t.waiting()] == [
            ("delayed", 0, 60.0),
            ("delayed", 0, 90.0),
        ]
        assert (attempts, t.published()) == ([], [])
        await t.advance(minutes=1)
        assert [message.payload for message in t.published()] == [{"id": 2}]
        await t.advance(seconds=30)
        assert attempts == [1, 1]


async def test_a_delayed_message_that_is_cancelled_is_dead():
    app = shop()
    failing(app)
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {}, delay=90)
        await app.retries.cancel(id)
        assert t.waiting() == []
        assert [letter.ending for letter in t.dead()] == ["cancelled"]


async def test_where_no_answer_comes_time_passes_until_the_publish_gives_up():
    app = shop()
    attempts = failing(app)
    async with TestLeveret(app) as t:
        began = t.now
        t.broker.lose_next_confirm()
        with pytest.raises(PublishTimeout, match="in 10 s"):
            await t.publish("order.placed", {})
        assert t.now - began == timedelta(seconds=10)
        t.broker.block()
        with pytest.raises(PublishTimeout, match="blocked by an alarm"):
            await t.publish("order.placed", {}, timeout=2)
        t.broker.unblock()
    assert attempts == [1]


# ── Time ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_clock_starts_where_it_is_told_and_stands():
    app = shop()
    start = datetime(2026, 11, 30, 14, 2, tzinfo=UTC)
    async with TestLeveret(app, start=start) as t:
        assert t.now == start
        await t.advance(seconds=1, minutes=1, hours=1, days=1)
        assert t.now == start + timedelta(days=1, hours=1, minutes=1, seconds=1)
        await t.advance(timedelta(hours=2))
        await t.advance()
        assert t.now == start + timedelta(days=1, hours=3, minutes=1, seconds=1)


def test_a_start_without_a_time_zone_is_refused():
    with pytest.raises(ValueError, match="aware datetime"):
        TestLeveret(shop(), start=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused


async def test_a_time_that_cannot_be_meant_is_refused():
    async with TestLeveret(shop()) as t:
        with pytest.raises(ValueError, match="does not go back"):
            await t.advance(seconds=-1)
        with pytest.raises(ValueError, match="does not go back"):
            await t.advance(days=float("nan"))
        with pytest.raises(TypeError, match=r"Write advance\(seconds=5\)"):
            await t.advance(5)


async def test_a_retry_comes_back_when_it_is_due_and_not_before():
    app = shop()
    attempts = failing(app, SoftFailure("503"), SoftFailure("503"), retry=EXACT)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.advance(seconds=0.4)
        [entry] = t.waiting("charge")
        assert (attempts, entry.due_in) == ([1], 0.6)
        await t.advance(seconds=0.59)
        assert attempts == [1]
        await t.advance(seconds=0.01)
        assert (attempts, t.waiting()[0].due_in) == ([1, 2], 2.0)
        assert t.waiting("another") == []


@pytest.mark.parametrize("seconds", [0.2, 0.3, 12345.7, 12345.678, 400 * 86400.0])
async def test_a_retry_comes_at_its_time_however_long_it_waits(seconds):
    app = shop()
    attempts = failing(app, SoftFailure("later", retry_after=seconds))
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.advance(seconds=seconds - 0.1)
        assert attempts == [1]
        await t.advance(seconds=0.1)
        assert attempts == [1, 2]


async def test_a_month_passes_in_no_time():
    app = shop()
    failing(app, SoftFailure("later", retry_after=20 * 86400))
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        began = time.perf_counter()
        await t.advance(days=30)
        assert time.perf_counter() - began < 2
        assert len(t.runs()) == 2


async def test_run_until_idle_jumps_from_due_time_to_due_time():
    app = shop()
    failing(app, *[SoftFailure("503")] * 4, retry=EXACT)
    async with TestLeveret(app) as t:
        began = t.now
        await t.publish("order.placed", {})
        await t.run_until_idle()
        assert t.now - began == timedelta(seconds=1 + 2 + 4)
        assert [(run.outcome, run.attempt) for run in t.runs("charge")] == [
            ("soft", 1),
            ("soft", 2),
            ("soft", 3),
            ("dead", 4),
        ]
        [letter] = t.dead("charge")
        assert (letter.ending, letter.body, t.dead("another")) == ("retries exhausted", b"{}", [])


async def test_run_until_idle_leaves_what_is_held_by_hand():
    app = shop()
    attempts = failing(app, SoftFailure("503"), retry=EXACT)
    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {})
        await app.retries.hold(id)
        await t.run_until_idle()
        assert (attempts, [entry.state for entry in t.waiting()]) == ([1], ["held"])
        await app.retries.release(id)
        await t.run_until_idle()
        assert attempts == [1, 2]


async def test_run_until_idle_says_what_never_ends(monkeypatch):
    monkeypatch.setattr(harness, "MOST_JUMPS", 30)
    app = shop()

    @app.worker("report.asked")
    async def poll() -> None:
        raise SoftFailure("not ready", counted=False)

    async with TestLeveret(app) as t:
        await t.publish("report.asked", {})
        with pytest.raises(
            AssertionError, match=r"after 30 jumps.*report\.asked for poll.*failure 31: not ready"
        ):
            await t.run_until_idle()


async def test_without_jitter_delays_are_exact_and_with_it_the_seed_says_how_they_are_spread():
    app = shop()
    failing(app, *[SoftFailure("503")] * 4, retry=RetryPolicy(first_delay=100, jitter=0.5))

    async def first_delay(**options) -> float:
        async with TestLeveret(app, **options) as t:
            await t.publish("order.placed", {})
            return t.waiting()[0].due_in

    exact, one, again, two = (
        await first_delay(),
        await first_delay(jitter=True, seed=1),
        await first_delay(jitter=True, seed=1),
        await first_delay(jitter=True, seed=2),
    )
    assert exact == 100
    assert one == again != two
    assert 50 <= one <= 150


async def test_ids_are_the_same_in_every_run_of_a_test():
    app = shop()
    failing(app)

    async def an_id(seed: int) -> str:
        async with TestLeveret(app, seed=seed) as t:
            return await t.publish("order.placed", {})

    assert await an_id(1) == await an_id(1) != await an_id(2)


# ── Handlers that take their time ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_that_talks_to_a_real_server_is_waited_for():
    app = shop()
    answers = []

    async def answer(reader, writer):
        await asyncio.sleep(0.05)
        writer.write(b"200\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()

    @app.worker("order.placed", retry=EXACT, timeout=5)
    async def charge(ctx: Context) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        answers.append(await reader.readline())
        writer.close()
        await writer.wait_closed()
        if ctx.attempt == 1:
            raise SoftFailure("once more")

    async with server, TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert answers == [b"200\n"]
        await t.advance(seconds=1)
        assert answers == [b"200\n"] * 2


async def test_a_plain_handler_runs_in_a_thread_and_is_waited_for():
    app = shop()
    threads = []

    @app.worker("order.placed")
    def charge(order: dict) -> None:
        time.sleep(0.02)
        threads.append(threading.current_thread())

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
    assert [thread.name for thread in threads] == ["leveret-charge-1"]


async def test_a_handler_that_never_ends_is_named(monkeypatch):
    monkeypatch.setattr(settling, "PATIENCE", 0.05)
    app = shop()

    @app.worker("order.placed", timeout=5)
    async def charge() -> None:
        await asyncio.Event().wait()

    with pytest.raises(
        TimeoutError, match=r"charge \(test_harness\.py:\d+\) still runs after 0\.05 s of real time"
    ):
        async with TestLeveret(app) as t:
            await t.publish("order.placed", {})


async def test_a_loop_that_never_rests_is_told_of(monkeypatch):
    monkeypatch.setattr(settling, "PATIENCE", 0.05)
    app = shop()

    async def spin() -> None:
        while spins:  # noqa: ASYNC110 - a loop that never rests is what is tried
            await asyncio.sleep(0)

    spins = [True]
    spinning = asyncio.create_task(spin())
    async with TestLeveret(app) as t:
        # Where nothing is in anybody's hand, a task of the test's own may spin as it likes.
        await t.advance(seconds=1)
        monkeypatch.setattr(t._settling, "quiet", lambda: False)
        with pytest.raises(TimeoutError, match="has not come to rest"):
            await t.advance(seconds=1)
        monkeypatch.undo()
        spins.clear()
        await spinning


@pytest.mark.parametrize("within", ["itself", "a task of its own", "a deadline of its own"])
async def test_a_timeout_strikes_on_the_clock_of_the_test(within):
    app = shop()
    ends = []

    @app.worker("order.placed", timeout=30, retry=EXACT)
    async def charge(ctx: Context) -> None:
        try:
            nap = t.clock.sleep(60)
            if within == "itself":
                await nap
            elif within == "a task of its own":
                async with asyncio.TaskGroup() as group:
                    group.create_task(nap)
            else:
                await asyncio.wait_for(nap, 1000)
        finally:
            ends.append(t.now)

    async with TestLeveret(app) as t:
        began = t.now
        await t.publish("order.placed", {})
        await t.advance(seconds=29)
        assert (ends, t.waiting()) == ([], [])
        await t.advance(seconds=1)
        assert ends == [began + timedelta(seconds=30)]
        assert [entry.reason for entry in t.waiting()] == [
            "TimeoutError: the handler ran longer than its timeout of 30 s"
        ]


async def test_a_handler_that_sleeps_on_the_clock_ends_when_its_time_has_come():
    app = shop()

    @app.worker("order.placed")
    async def charge() -> None:
        await t.clock.sleep(60)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.advance(seconds=59)
        assert t.runs() == []
        await t.run_until_idle()
        assert [(run.outcome, run.seconds) for run in t.runs()] == [("done", 60.0)]


async def test_time_passes_the_timeout_of_a_handler_that_hangs(monkeypatch):
    monkeypatch.setattr(settling, "OVERTAKEN_AFTER", 0.02)
    app = shop()

    @app.worker("order.placed", timeout=30, retry=EXACT)
    async def charge(ctx: Context) -> None:
        if ctx.attempt == 1:
            await asyncio.Event().wait()

    async with TestLeveret(app) as t:
        await app.publish("order.placed", {})
        await t.advance(minutes=1)
        assert [run.outcome for run in t.runs()] == ["soft", "done"]


# ── What nobody foresaw ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unforeseen_error_is_raised_where_the_test_waits_as_the_object_it_was():
    app = shop()
    errors = [KeyError("url"), ZeroDivisionError(), ValueError("late")]
    failing(app, *errors, retry=EXACT)
    with pytest.raises(ValueError, match="late") as last:
        async with TestLeveret(app) as t:
            with pytest.raises(KeyError) as first:
                await t.publish("order.placed", {})
            with pytest.raises(ZeroDivisionError) as second:
                await t.advance(hours=1)
            assert t.waiting()[0].due_in == 2.0
            # Nobody of the test's own waits for this one; leaving does.
            await t.clock.advance(0)
            await app.retries.now(worker="charge")
    assert [first.value, second.value, last.value] == errors


async def test_without_fail_fast_an_unforeseen_error_is_a_soft_failure_like_any_other():
    app = shop()
    error = KeyError("url")
    failing(app, error, retry=EXACT)
    async with TestLeveret(app, fail_fast=False) as t:
        await t.publish("order.placed", {})
        await t.run_until_idle()
        first, second = t.runs("charge")
        assert (first.outcome, first.error, first.unexpected) == ("soft", error, True)
        assert (second.outcome, second.error, second.unexpected) == ("done", None, False)


async def test_what_was_foreseen_is_not_raised():
    app = shop()
    foreseen = [SoftFailure("soft"), ConnectionResetError("named"), HardFailure("hard")]
    failing(app, *foreseen, retry=RetryPolicy(retry_on={OSError: RetryPolicy(first_delay=1)}))
    failing(app, KeyError("hopeless"), name="ship", retry=RetryPolicy(retry_on={LookupError: GiveUp}))
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.run_until_idle()
        assert [(run.outcome, run.unexpected) for run in t.runs("charge")] == [
            ("soft", False),
            ("soft", False),
            ("dead", False),
        ]
        assert [run.outcome for run in t.runs("ship")] == ["dead"]


# ── Crashes and faults ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_whose_ack_was_lost_is_run_again_after_a_crash():
    app = shop()
    seen = []

    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        seen.append((ctx.message_id, ctx.attempt, ctx.redelivered))

    async with TestLeveret(app) as t:
        t.broker.lose_next_ack()
        id = await t.publish("order.placed", {})
        await t.crash()
        assert seen == [(id, 1, False), (id, 1, True)]


async def test_a_handler_that_runs_when_all_dies_is_cancelled_and_run_again():
    app = shop()
    told = []
    started = asyncio.Event()

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        told.append(("begins", ctx.redelivered))
        if not ctx.redelivered:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                told.append(("cancelled", ctx.redelivered))

    async with TestLeveret(app) as t:
        await app.publish("order.placed", {})
        await started.wait()
        await t.crash()
        assert told == [("begins", False), ("cancelled", False), ("begins", True)]
        assert [run.outcome for run in t.runs()] == ["moved", "done"]


async def test_a_handler_that_ends_well_while_all_dies_is_not_acked():
    app = shop()
    seen = []
    started = asyncio.Event()

    @app.worker("order.placed")
    async def charge(ctx: Context) -> Message | None:
        seen.append(ctx.redelivered)
        if not ctx.redelivered:
            started.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return Message("order.charged", {})
        return None

    async with TestLeveret(app) as t:
        await app.publish("order.placed", {})
        await started.wait()
        await t.crash()
        assert seen == [False, True]
        assert t.published("order.charged") == []


async def test_what_waits_and_what_is_dead_survives_a_crash():
    app = shop()
    attempts = failing(app, SoftFailure("503"), HardFailure("410"), retry=EXACT)
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.publish("order.placed", {})
        store = t.store
        await t.crash()
        assert t.store is not store
        assert (len(t.waiting()), len(t.dead())) == (1, 1)
        await t.advance(seconds=1)
        assert attempts == [1, 1, 2]


async def test_what_became_due_before_a_crash_goes_at_once_after_it():
    app = shop()
    attempts = failing(app, *[SoftFailure("503")] * 250, retry=EXACT)
    async with TestLeveret(app) as t:
        for _ in range(250):
            await app.publish("order.placed", {})
        await t.advance()
        t.broker.stop()
        await t.advance(seconds=5)
        assert len(attempts) == 250
        t.broker.start()
        await t.crash()
        assert len(attempts) == 500


async def test_a_refused_confirm_keeps_the_message_in_hand_and_does_not_run_its_handler_again():
    app = shop()
    attempts = failing(app, SoftFailure("503"), retry=EXACT)
    async with TestLeveret(app) as t:
        t.handover = refusing(t, after=handover.HANDLER_DONE)
        await t.publish("order.placed", {})
        assert (attempts, t.waiting(), t.runs()) == ([1], [], [])
        await t.advance(seconds=1)
        assert (attempts, [entry.due_in for entry in t.waiting()]) == ([1], [1.0])


async def test_a_message_that_is_kept_in_hand_is_not_lost_by_a_crash():
    app = shop()
    attempts = failing(app, HardFailure("410"), HardFailure("410"))
    async with TestLeveret(app) as t:
        t.handover = refusing(t, after=handover.HANDLER_DONE)
        await t.publish("order.placed", {})
        assert (attempts, t.dead()) == ([1], [])
        await t.crash()
        assert (attempts, [letter.reason for letter in t.dead()]) == ([1, 1], ["HardFailure: 410"])


def refusing(t: TestLeveret, *, after: str):
    """Answers the first publish after a hand-over point with a nack."""
    refused = []

    async def strike(point: str, message_id: str | None) -> None:
        if point == after and not refused:
            refused.append(message_id)
            t.broker.refuse_next()

    return strike


async def test_it_can_strike_at_every_hand_over_point():
    app = shop()
    failing(app, SoftFailure("503"), HardFailure("410"), retry=EXACT)
    reached = []

    async def note(point: str, message_id: str | None) -> None:
        reached.append(point)

    async with TestLeveret(app) as t:
        t.handover = note
        await t.publish("order.placed", {})
        await t.run_until_idle()
    # A confirm and the delivery of what was confirmed may be told in either order.
    assert sorted(reached) == sorted([
        handover.PUBLISH_SENT,
        handover.DELIVERED,
        handover.HANDLER_DONE,
        handover.ENVELOPE_SENT,
        handover.ENVELOPE_CONFIRMED,
        handover.RETRY_RECEIVED,
        handover.STORED,
        handover.TAKEN_WHEN_DUE,
        handover.REPUBLISH_SENT,
        handover.REPUBLISH_CONFIRMED,
        handover.DELIVERED,
        handover.HANDLER_DONE,
        handover.DEAD_LETTER_CONFIRMED,
        handover.KEEPER_STORED,
    ])  # fmt: skip


# ── Nothing is lost ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_leaving_shows_the_ledger_where_a_message_is_gone():
    app = shop()
    release = asyncio.Event()

    @app.worker("order.placed", prefetch=1)
    async def charge(order: dict) -> None:
        await release.wait()

    with pytest.raises(AssertionError) as told:
        async with TestLeveret(app) as t:
            await app.publish("order.placed", {}, id="kept-000001")
            await app.publish("order.placed", {}, id="gone-000002")
            assert t.broker.purge("shop.charge") == 1
            release.set()
    assert str(told.value) == (
        "1 message was accepted and is nowhere now: not done, not waiting, not dead and in no queue.\n"
        "accepted=2 done=1 waiting=0 dead=0 queued=0 lost=1\n"
        "message  type          worker  accepted  done  waiting  dead  queued  lost\n"
        "…000002  order.placed  charge         1     0        0     0       0     1\n"
        "…000001  order.placed  charge         1     1        0     0       0     0"
    )


@pytest.mark.parametrize("delay", [None, 60])
async def test_a_message_that_is_gone_from_the_store_is_lost(delay):
    app = shop()
    failing(app, SoftFailure("503"), retry=EXACT)
    with pytest.raises(AssertionError, match="lost=1"):
        async with TestLeveret(app) as t:
            await t.publish("order.placed", {}, delay=delay)
            [entry] = t.waiting()
            assert await t.store.remove("shop", [(entry.key, entry.failure)]) == 1


async def test_a_message_that_one_of_two_workers_never_got_is_lost():
    app = shop()
    failing(app, name="charge")
    failing(app, name="ship")
    with pytest.raises(AssertionError, match="accepted=2 done=1 waiting=0 dead=0 queued=0 lost=1"):
        async with TestLeveret(app) as t:

            async def strike(point: str, message_id: str | None) -> None:
                if point == handover.PUBLISH_SENT:
                    t.broker.delete_queue("shop.ship")

            t.handover = strike
            await t.publish("order.placed", {})


async def test_what_lies_anywhere_at_the_end_is_not_lost(monkeypatch):
    monkeypatch.setattr(settling, "OVERTAKEN_AFTER", 0.02)
    app = shop()
    failing(app, SoftFailure("503"), HardFailure("410"), retry=EXACT)
    kept = asyncio.Event()

    @app.worker("report.asked", prefetch=1)
    async def report() -> None:
        await t.clock.sleep(60)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.publish("order.placed", {})
        await t.publish("order.placed", {}, delay=100)
        await t.publish("report.asked", {})
        await t.publish("report.asked", {})
        t.broker.delete_queue("shop.events.dlq")
        kept.set()
    accounts = t._ledger.accounts(t.broker, t._data)
    assert [(account.worker, dict(account.ends)) for account in accounts] == [
        ("charge", {"waiting": 1}),
        ("charge", {"dead": 1}),
        ("(later)", {"waiting": 1}),
        ("report", {"queued": 1}),
        ("report", {"queued": 1}),
    ]


async def test_a_retry_through_the_exchange_is_not_published_or_accepted_a_second_time():
    app = shop()
    failing(app, SoftFailure("503"), retry=EXACT, replay="exchange")
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.run_until_idle()
        assert [run.outcome for run in t.runs()] == ["soft", "done"]
        assert len(t.published()) == 1


async def test_a_replayed_message_that_is_gone_is_lost_though_its_letter_is_still_there():
    app = shop()

    @app.worker("order.placed", prefetch=1)
    async def charge(order: dict) -> None:
        if "blocks" not in order:
            raise HardFailure("410")
        await t.clock.sleep(60)

    with pytest.raises(AssertionError, match="accepted=2 done=0 waiting=0 dead=0 queued=1 lost=1"):
        async with TestLeveret(app) as t:
            await t.publish("order.placed", {})
            await t.publish("order.placed", {"blocks": True})
            await app.dead_letters.replay(worker="charge")
            assert t.broker.purge("shop.charge") == 1


async def test_a_replayed_dead_letter_is_accounted_for_where_it_is_now():
    app = shop()
    failing(app, HardFailure("410"), HardFailure("410"))
    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await app.dead_letters.replay(worker="charge")
        await t.advance()
        assert [run.outcome for run in t.runs()] == ["dead", "dead"]
        await app.dead_letters.replay(worker="charge")
        await t.advance()
        assert [run.outcome for run in t.runs()] == ["dead", "dead", "done"]
        assert t.dead() == []


async def test_random_failures_faults_and_crashes_lose_nothing():
    app = shop()
    chance = random.Random(7)

    @app.worker("order.placed", retry=RetryPolicy(first_delay=1, max_attempts=3))
    async def charge(order: dict) -> Message | None:
        match chance.randrange(5):
            case 0:
                raise SoftFailure("503")
            case 1:
                raise HardFailure("410")
            case 2:
                return Message("order.charged", order)

    @app.worker("order.charged", prefetch=3)
    async def ship(order: dict) -> None:
        if chance.random() < 0.3:
            raise SoftFailure("no stock", counted=chance.random() < 0.5)

    async with TestLeveret(app, seed=7) as t:
        faults = [
            lambda: t.broker.refuse_next(chance.randrange(3)),
            lambda: t.broker.lose_next_ack(chance.randrange(3)),
            t.broker.drop_connections,
            lambda: None,
        ]
        for number in range(300):
            message = Message("order.placed", {"id": number}, id=f"number-{number:03}")
            while True:
                with contextlib.suppress(PublishRefused):
                    await app.publish(message)
                    break
            if number % 10 == 9:
                chance.choice(faults)()
                await t.advance(seconds=chance.random())
            if number % 50 == 49:
                await t.crash()
        t.broker.refuse_next(0)
        await t.run_until_idle()
        done = {run.message_id for run in t.runs("charge") if run.outcome == "done"}
        assert len(done | {letter.message_id for letter in t.dead("charge")}) == 300


def test_contextlib_can_enter_and_leave_it_like_any_other_block():
    async def main() -> None:
        app = shop()
        failing(app)
        async with contextlib.AsyncExitStack() as stack:
            t = await stack.enter_async_context(TestLeveret(app))
            await t.publish("order.placed", {})
            assert len(t.runs()) == 1

    asyncio.run(main())
