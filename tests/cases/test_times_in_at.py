"""Times in `at=`: an aware moment, exactly that one, in any zone; the past is now; what names no moment is refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from leveret import Context, Leveret, SoftFailure
from leveret.testing import TestLeveret

START = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def ran():
    return []


@pytest.fixture
def app(ran):
    app = Leveret("shop")

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append(ctx.message_id)

    return app


@pytest.mark.parametrize(
    "at",
    [
        START + timedelta(hours=3),
        (START + timedelta(hours=3)).astimezone(timezone(timedelta(hours=-9, minutes=-30))),
        datetime(2026, 10, 25, 4, 0, tzinfo=BERLIN),
        START + timedelta(microseconds=10_800_000_001),
    ],
    ids=["UTC", "half an hour's zone", "a named zone", "a microsecond more"],
)
async def test_it_is_that_moment_in_any_zone_and_never_a_millisecond_before(app, ran, at):
    async with TestLeveret(app, start=START) as t:
        id = await t.publish("order.placed", {}, at=at)
        await t.advance(hours=3, seconds=-0.001)
        assert ran == []
        await t.advance(seconds=0.002)
        assert ran == [id]


async def test_the_hour_that_comes_twice_is_two_hours(app, ran):
    """In Berlin 02:30 came twice that night: in summer time, and an hour later in winter time."""
    twice = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    async with TestLeveret(app, start=START) as t:
        await t.publish("order.placed", {}, id="winter", at=twice.replace(fold=1))
        await t.publish("order.placed", {}, id="summer", at=twice)
        assert [(entry.message_id, entry.due_in) for entry in t.waiting()] == [
            ("summer", 1800),
            ("winter", 5400),
        ]
        await t.advance(minutes=30)
        assert ran == ["summer"]
        await t.advance(hours=1)
        assert ran == ["summer", "winter"]


@pytest.mark.parametrize(
    "at",
    [
        START,
        START - timedelta(microseconds=1),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(1900, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ],
)
async def test_what_has_passed_is_now(app, ran, at):
    async with TestLeveret(app, start=START) as t:
        id = await t.publish("order.placed", {}, at=at)
        assert ran == [id]
        assert t.dead() == []


@pytest.mark.parametrize("at", [datetime(2100, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)])
async def test_the_far_future_waits(app, ran, at):
    async with TestLeveret(app, start=START) as t:
        id = await t.publish("order.placed", {}, at=at)
        await t.advance(days=2)
        [entry] = t.waiting()
        assert entry.message_id == id
        assert entry.due_at == pytest.approx(at.timestamp(), abs=1e-3)
        assert (ran, t.dead()) == ([], [])


@pytest.mark.parametrize(
    "at",
    [
        datetime(2026, 10, 25, 3, 0),  # noqa: DTZ001 - that is the fault
        date(2026, 10, 25),
        "2026-10-25T03:00:00+00:00",
        math.nan,
        math.inf,
        -math.inf,
        True,
        1_792_886_400,
        datetime.max.replace(tzinfo=UTC),
        timedelta(hours=3),
    ],
    ids=repr,
)
async def test_what_names_no_moment_is_refused_and_nothing_is_sent(app, ran, at):
    async with TestLeveret(app, start=START) as t:
        sent = []
        t.broker.on_publish.append(lambda message, queues: sent.append(message))
        with pytest.raises(ValueError, match=r"^at="):
            await app.publish("order.placed", {}, at=at)
        await t.advance(days=1)
        assert (sent, ran, t.waiting(), t.dead()) == ([], [], [], [])


@pytest.mark.parametrize(
    ("more", "said"), [({"delay": 0}, "delay=…, at=…"), ({"expiration": 60}, "with delay or at")]
)
async def test_at_goes_with_neither_delay_nor_expiration(app, ran, more, said):
    async with TestLeveret(app, start=START) as t:
        with pytest.raises(ValueError, match=said):
            await app.publish("order.placed", {}, at=START, **more)
        assert (ran, t.waiting()) == ([], [])


async def test_a_retry_is_rescheduled_to_a_moment_in_the_same_way():
    app = Leveret("shop")
    ran = []

    @app.worker("order.placed")
    async def charge(ctx: Context) -> None:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise SoftFailure("503", retry_after=86400)

    async with TestLeveret(app, start=START) as t:
        await t.publish("order.placed", {})
        for at in (datetime(2026, 10, 25, 3), math.nan, math.inf, True, "soon"):  # noqa: DTZ001 - that is the fault
            with pytest.raises(ValueError, match=r"^at="):
                await app.retries.reschedule(worker="charge", at=at)
        report = await app.retries.reschedule(worker="charge", at=datetime(2026, 10, 25, 4, tzinfo=BERLIN))
        assert report.done == 1
        await t.advance(hours=3, seconds=-0.001)
        assert ran == [1]
        await t.advance(seconds=0.001)
        assert ran == [1, 2]
