from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass

import pytest

from leveret import Context, GiveUp, HardFailure, Leveret, Message, RetryPolicy, SoftFailure
from leveret.core import handover
from leveret.testing import TestLeveret

EXACT = RetryPolicy(first_delay=1, factor=2, max_attempts=3)


@pytest.fixture
def app():
    return Leveret("shop", retry=EXACT)


def refusing(t: TestLeveret, number: int, *, after: str = handover.HANDLER_DONE) -> None:
    """Have the first *number* publishes after a hand-over point answered with a nack, the first time it is reached."""

    async def strike(point: str, message_id: str | None) -> None:
        if point == after:
            t.handover = None
            t.broker.refuse_next(number)

    t.handover = strike


# ── Returned ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_handler_that_returns_nothing_is_done(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> None: ...

    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {"id": 1})
        [run] = t.runs("charge")
        assert (run.outcome, run.message_id, run.type, run.attempt, run.error) == (
            "done",
            id,
            "order.placed",
            1,
            None,
        )
        assert (t.waiting(), t.dead()) == ([], [])


@pytest.mark.parametrize(
    "form", ["one", "list", "tuple", "generator", "plain", "plain generator", "async generator"]
)
async def test_what_a_handler_returns_is_published(app, form):
    messages = [Message("order.charged", {"part": 1}), Message("order.charged", {"part": 2})]
    forms = {"one": messages[0], "list": messages, "tuple": tuple(messages), "plain": messages}
    if form in {"one", "list", "tuple", "generator"}:

        async def charge(order: dict):
            return forms.get(form) or (message for message in messages)

    elif form == "plain":

        def charge(order: dict):
            return messages

    elif form == "plain generator":

        def charge(order: dict):
            yield from messages

    else:

        async def charge(order: dict):
            for message in messages:
                yield message

    app.worker("order.placed")(charge)

    @app.worker("order.charged")
    async def ship(order: dict) -> None: ...

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        parts = [message.payload["part"] for message in t.published("order.charged")]
        assert parts == ([1] if form == "one" else [1, 2])
        assert [run.outcome for run in t.runs("ship")] == ["done"] * len(parts)


async def test_the_message_is_acked_only_after_all_its_results_are_confirmed(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> list[Message]:
        return [Message("order.charged", {}), Message("order.charged", {})]

    @app.worker("order.charged")
    async def ship(order: dict) -> None: ...

    unsettled = []

    async def note(point: str, message_id: str | None) -> None:
        if point == handover.RESULTS_CONFIRMED:
            unsettled.append(
                (t.broker.snapshot()["shop.charge"].unsettled, len(t.published("order.charged")))
            )

    async with TestLeveret(app) as t:
        t.handover = note
        await t.publish("order.placed", {})
        assert unsettled == [(1, 2)]
        assert t.broker.snapshot()["shop.charge"].unsettled == 0


async def test_a_refused_result_keeps_its_input_in_hand_and_does_not_run_the_handler_again(app):
    calls = []

    @app.worker("order.placed")
    async def charge(order: dict) -> list[Message]:
        calls.append(order)
        return [Message("order.charged", {"part": part}) for part in (1, 2, 3)]

    @app.worker("order.charged")
    async def ship(order: dict) -> None: ...

    async with TestLeveret(app) as t:
        refusing(t, 2)
        await t.publish("order.placed", {})
        assert t.runs("charge") == []
        assert t.broker.snapshot()["shop.charge"].unsettled == 1
        assert len(t.published("order.charged")) == 1
        await t.advance(seconds=1)
        assert [run.outcome for run in t.runs("charge")] == ["done"]
        assert sorted(message.payload["part"] for message in t.published("order.charged")) == [1, 2, 3]
        assert len(calls) == 1


async def test_a_result_bears_the_same_id_when_its_input_is_run_again(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> list[Message]:
        return [
            Message("order.charged", {}),
            Message("order.charged", {}),
            Message("order.charged", {}, id="mine"),
        ]

    @app.worker("order.charged")
    async def ship(order: dict) -> None: ...

    async def strike(point: str, message_id: str | None) -> None:
        if point == handover.RESULTS_CONFIRMED:
            t.handover = None
            t.broker.lose_next_ack()

    async with TestLeveret(app) as t:
        t.handover = strike
        await t.publish("order.placed", {})
        await t.crash()
        ids = [message.id for message in t.published("order.charged")]
        assert len(ids) == 6
        assert ids[:3] == ids[3:]
        assert len(set(ids)) == 3
        assert ids[2] == "mine"


@pytest.mark.parametrize(
    ("result", "reason", "body"),
    [
        (Message("order.lost", {"id": 1}), "312 NO_ROUTE", b'{"id":1}'),
        (Message("order.charged", {"at": object}), "cannot be written as JSON", b"{'at': <class 'object'>}"),
        (Message("", {"id": 1}), "message type ''", b"{'id': 1}"),
        (Message("order.charged", {}, headers={"x-death": 1}), "belongs to the broker", b"{}"),
        (Message("order.charged", {}, priority=999), "priority", b"{}"),
        ("no message", "result 1 is a str, not a Message", b"'no message'"),
    ],
    ids=["unroutable", "payload", "type", "header", "property", "no message"],
)
async def test_a_result_that_cannot_go_is_a_dead_letter_of_its_own(app, result, reason, body):
    @app.worker("order.placed")
    async def charge(order: dict) -> list[object]:
        return [Message("order.charged", {"ok": True}), result]

    @app.worker("order.charged")
    async def ship(order: dict) -> None: ...

    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {})
        assert [run.outcome for run in t.runs("charge")] == ["done"]
        assert [message.payload for message in t.published("order.charged")] == [{"ok": True}]
        [letter] = t.dead()
        assert (letter.ending, letter.worker, letter.attempts, letter.body) == (
            "unroutable result",
            "charge",
            0,
            body,
        )
        assert reason in letter.reason
        assert letter.message_id not in (None, id)


async def test_a_result_that_the_broker_answers_with_404_is_a_dead_letter_of_its_own(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> Message:
        t.broker.delete_exchange("shop.events")
        return Message("order.charged", {"id": 1})

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert [run.outcome for run in t.runs("charge")] == ["done"]
        assert [(letter.ending, letter.error) for letter in t.dead()] == [
            ("unroutable result", "PublishRefused")
        ]


async def test_a_generator_that_fails_half_way_publishes_nothing(app):
    @app.worker("order.placed")
    async def charge(order: dict):
        yield Message("order.charged", {})
        raise SoftFailure("the second half is missing")

    @app.worker("order.placed")
    def book(order: dict):
        yield Message("order.charged", {})
        raise SoftFailure("the second half is missing")

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert t.published("order.charged") == []
        assert [entry.reason for entry in t.waiting()] == ["the second half is missing"] * 2


@pytest.mark.parametrize("value", [5, "text", b"bytes", {"a": 1}, True])
async def test_a_value_that_means_nothing_is_ignored_and_told_once(app, value, caplog):
    @app.worker("order.placed")
    async def charge(order: dict):
        return value

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.publish("order.placed", {})
        assert [run.outcome for run in t.runs()] == ["done", "done"]
    told = [record.message for record in caplog.records if "which is ignored" in record.message]
    assert len(told) == 1
    assert f"returned a {type(value).__name__}" in told[0]
    assert "test_outcomes.py:" in told[0]


# ── Soft and hard failures ────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_soft_failure_with_tries_left_waits_with_its_reason(app):
    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise SoftFailure("the card service answered 503")

    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {"id": 1}, headers={"trace": "x"})
        [run] = t.runs()
        assert (run.outcome, run.delay, run.counted, run.max_attempts) == ("soft", 1.0, True, 3)
        [entry] = t.waiting("charge")
        assert (entry.reason, entry.error, entry.message_id, entry.type) == (
            "the card service answered 503",
            "SoftFailure",
            id,
            "order.placed",
        )
        assert (entry.attempt, entry.max_attempts, entry.due_in, entry.queue) == (1, 3, 1.0, "shop.charge")
        await t.advance(seconds=1)
        assert [run.outcome for run in t.runs()] == ["soft", "done"]


async def test_the_copies_for_observers_say_what_failed(app):
    @app.worker("order.placed")
    async def charge(order: dict, ctx: Context) -> None:
        raise SoftFailure("503") if ctx.attempt == 1 else HardFailure("410")

    async with TestLeveret(app) as t:
        t.broker.declare_queue("watching")
        t.broker.bind("shop.observer", "watching")
        await t.publish("order.placed", {"id": 1})
        await t.run_until_idle()
        soft, hard = (json.loads(message.body) for message in t.broker.messages("watching"))
        assert (soft["data_type"], soft["data"]["retry"]["reason"]) == ("soft-failure", "503")
        assert (hard["data_type"], hard["error"]) == ("hard-failure", "HardFailure: 410")


async def test_a_soft_failure_whose_tries_are_used_up_is_dead(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        raise SoftFailure("503")

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {"id": 1})
        await t.run_until_idle()
        assert [(run.outcome, run.attempt) for run in t.runs()] == [("soft", 1), ("soft", 2), ("dead", 3)]
        [letter] = t.dead("charge")
        assert (letter.ending, letter.reason, letter.attempts) == (
            "retries exhausted",
            "retries exhausted: 503",
            3,
        )
        assert letter.died_at - letter.first_failed_at == 3.0


async def test_a_soft_failure_that_allows_no_retry_is_dead_now(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        raise SoftFailure("503", retry_max=0)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert [(letter.ending, letter.attempts) for letter in t.dead()] == [("retries exhausted", 1)]


async def test_a_hard_failure_is_dead_now_with_reason_cause_and_the_users_own_line(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        try:
            order["url"]
        except KeyError as error:
            raise HardFailure("no url in it") from error

    async with TestLeveret(app) as t:
        id = await t.publish("order.placed", {"id": 1})
        [letter] = t.dead("charge")
        assert (letter.ending, letter.reason, letter.error) == (
            "hard failure",
            "HardFailure: no url in it",
            "HardFailure",
        )
        assert (letter.message_id, letter.queue, letter.exchange, letter.routing_key) == (
            id, "shop.charge", "shop.events", "order.placed",
        )  # fmt: skip
        assert (letter.attempts, letter.body) == (1, b'{"id":1}')
        assert "KeyError: 'url'" in letter.traceback
        assert 'raise HardFailure("no url in it") from error' in letter.traceback
        assert "delivery.py" not in letter.traceback


@pytest.mark.parametrize("failure", [SoftFailure("503"), HardFailure("410")])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_failure_that_is_returned_counts_as_raised_and_is_told_once(app, failure, plain, caplog):
    if plain:

        def charge(order: dict):
            return failure

    else:

        async def charge(order: dict):
            return failure

    app.worker("order.placed")(charge)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.publish("order.placed", {})
        assert [run.outcome for run in t.runs()] == (
            ["soft"] * 2 if isinstance(failure, SoftFailure) else ["dead"] * 2
        )
        assert {entry.reason for entry in [*t.waiting(), *t.dead()]} <= {"503", "HardFailure: 410"}
    told = [record.message for record in caplog.records if "it counts as raised" in record.message]
    assert len(told) == 1
    assert f"Write: raise {type(failure).__name__}" in told[0]


# ── Any other exception ───────────────────────────────────────────────────────────────────────────────────────────────


class Base(BaseException):
    pass


def endless() -> None:
    endless()


def too_deep() -> None:
    endless()


def leave() -> None:
    raise SystemExit(3)


def cancelled() -> None:
    raise asyncio.CancelledError


def other() -> None:
    raise Base("mine")


def wrong() -> None:
    {}["url"]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("fail", "error", "reason"),
    [
        (wrong, "KeyError", "KeyError: 'url'"),
        (leave, "SystemExit", "SystemExit: 3"),
        (too_deep, "RecursionError", "RecursionError: maximum recursion depth exceeded"),
        (cancelled, "CancelledError", "CancelledError"),
        (other, "Base", "Base: mine"),
    ],
)
async def test_any_other_exception_is_a_soft_failure(app, fail, error, reason, plain):
    if plain:

        def charge(order: dict) -> None:
            fail()

    else:

        async def charge(order: dict) -> None:
            fail()

    app.worker("order.placed")(charge)

    async with TestLeveret(app, fail_fast=False) as t:
        await t.publish("order.placed", {"id": 1})
        [entry] = t.waiting("charge")
        assert (entry.error, entry.attempt) == (error, 1)
        assert entry.reason.startswith(reason)
        # However deep it was, what is kept of it ends in the user's own line.
        assert 0 < len(entry.traceback) < 5000
        assert f"in {'endless' if fail is too_deep else fail.__name__}" in entry.traceback
        await t.run_until_idle()
        assert [(run.outcome, run.unexpected) for run in t.runs()] == [
            ("soft", True),
            ("soft", True),
            ("dead", True),
        ]
        assert [letter.ending for letter in t.dead()] == ["retries exhausted"]
        # The worker is alive, and so is its loop.
        await t.publish("order.placed", {"id": 2})
        assert len(t.waiting("charge")) == 1


@pytest.mark.parametrize("fail", [wrong, leave, cancelled])
async def test_any_other_exception_is_a_hard_failure_where_the_worker_says_so(app, fail):
    @app.worker("order.placed", unexpected="dead")
    async def charge(order: dict) -> None:
        fail()

    async with TestLeveret(app, fail_fast=False) as t:
        await t.publish("order.placed", {"id": 1})
        assert [(letter.ending, letter.attempts) for letter in t.dead()] == [("hard failure", 1)]


async def test_what_the_policy_names_is_not_unexpected(app):
    left = [ConnectionResetError("cut"), KeyError("url")]

    @app.worker(
        "order.placed",
        unexpected="dead",
        retry=RetryPolicy(retry_on={OSError: RetryPolicy(first_delay=7), LookupError: GiveUp("bad data")}),
    )
    async def charge(order: dict) -> None:
        raise left.pop(0)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        assert [entry.due_in for entry in t.waiting()] == [7.0]
        await t.advance(seconds=7)
        assert [letter.reason for letter in t.dead()] == ["bad data: KeyError: 'url'"]


@pytest.mark.parametrize("unexpected", ["retry", "dead"])
async def test_a_timeout_is_a_soft_failure_whatever_the_unexpected_is(app, unexpected):
    @app.worker("order.placed", timeout=30, unexpected=unexpected)
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            await t.clock.sleep(60)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.advance(seconds=30)
        assert [(entry.error, entry.due_in) for entry in t.waiting()] == [("TimeoutError", 1.0)]
        await t.advance(seconds=1)
        assert [(run.outcome, run.unexpected) for run in t.runs()] == [("soft", False), ("done", False)]


async def test_a_handler_that_ends_in_spite_of_its_timeout_has_failed_all_the_same(app):
    @app.worker("order.placed", timeout=30)
    async def charge(order: dict, ctx: Context) -> None:
        if ctx.attempt == 1:
            try:
                await t.clock.sleep(60)
            except asyncio.CancelledError:
                raise SoftFailure("gave up", retry_after=5) from None

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.advance(seconds=30)
        assert [(entry.reason, entry.due_in) for entry in t.waiting()] == [("gave up", 5.0)]


async def test_a_coroutine_that_nobody_awaited_is_a_soft_failure(app):
    @app.worker("order.placed")
    def charge(order: dict):
        return asyncio.sleep(0)

    @app.worker("order.placed")
    async def book(order: dict):
        return asyncio.sleep(0)

    async with TestLeveret(app, fail_fast=False) as t:
        await t.publish("order.placed", {})
        assert {entry.worker: entry.reason for entry in t.waiting()} == {
            name: f"RuntimeError: {name} returned a coroutine that nobody awaited: is an await missing?"
            for name in ("charge", "book")
        }


# ── Bodies that cannot be read ────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Order:
    id: int


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff\xfe", "JSON travels as UTF-8"),
        (b"[1]", "the body is an array, and a JSON object is required"),
        (b'{"id": "1"}', "the body does not fit Order: Expected `int`, got `str` - at `$.id`"),
        (b"", "the body is empty"),
    ],
)
async def test_a_body_that_does_not_fit_is_a_dead_letter_with_its_bytes_and_the_handler_is_not_called(
    app, body, reason
):
    called = []

    @app.worker("order.placed")
    async def charge(order: Order) -> None:
        called.append(order)

    async with TestLeveret(app) as t:
        await t.publish("order.placed", body)
        [letter] = t.dead("charge")
        assert (letter.ending, letter.body, letter.attempts, letter.error) == (
            "undecodable",
            body,
            0,
            "Undecodable",
        )
        assert reason in letter.reason
        assert called == []
        await t.publish("order.placed", {"id": 1})
        assert called == [Order(1)]


# ── Kept in hand ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("failure", [SoftFailure("503"), HardFailure("410")])
async def test_a_refused_envelope_is_sent_again_with_backoff_and_the_handler_is_not(app, failure, caplog):
    calls = []

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        calls.append(order)
        raise failure

    caplog.set_level(logging.INFO, "leveret")
    async with TestLeveret(app) as t:
        refusing(t, 3)
        began = t.now
        await t.publish("order.placed", {"id": 1})
        for seconds in (1, 2):
            assert (t.runs(), t.broker.snapshot()["shop.charge"].unsettled) == ([], 1)
            await t.advance(seconds=seconds)
        assert t.runs() == []
        await t.advance(seconds=3.99)
        assert t.runs() == []
        await t.advance(seconds=0.01)
        assert [run.outcome for run in t.runs()] == ["soft" if isinstance(failure, SoftFailure) else "dead"]
        assert len(calls) == 1
        assert (t.now - began).total_seconds() == 7
        assert len(t.waiting()) + len(t.dead()) == 1
    alarms = [record.message for record in caplog.records if "dlq_publish_failed" in record.message]
    assert len(alarms) == 2, alarms
    assert "kept unacked" in alarms[0]
    assert "resolved" in alarms[1]


async def test_while_one_message_is_kept_in_hand_the_others_go_on(app):
    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        if order["id"] == 0:
            raise HardFailure("410")

    async with TestLeveret(app) as t:
        refusing(t, 1)
        await t.publish("order.placed", {"id": 0})
        await t.publish("order.placed", {"id": 1})
        assert [run.outcome for run in t.runs()] == ["done"]
        await t.advance(seconds=1)
        assert [run.outcome for run in t.runs()] == ["done", "dead"]


async def test_when_all_that_may_be_in_hand_is_held_nothing_new_is_taken(app):
    calls = []

    @app.worker("order.placed", prefetch=2)
    async def charge(order: dict) -> None:
        calls.append(order["id"])
        raise HardFailure("410")

    async with TestLeveret(app) as t:

        async def strike(point: str, message_id: str | None) -> None:
            if point == handover.HANDLER_DONE and len(calls) <= 2:
                t.broker.refuse_next()

        t.handover = strike
        for id in range(4):
            await t.publish("order.placed", {"id": id})
        assert (calls, t.broker.snapshot()["shop.charge"].ready) == ([0, 1], 2)
        await t.advance(seconds=1)
        assert (calls, len(t.dead())) == ([0, 1, 2, 3], 4)


@pytest.mark.parametrize(
    ("failure", "queue"), [(SoftFailure("503"), "shop.retry"), (HardFailure("410"), "shop.events.dlq")]
)
async def test_a_queue_of_ours_that_was_deleted_is_declared_again(app, failure, queue):
    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        t.broker.delete_queue(queue)
        raise failure

    async with TestLeveret(app) as t:
        await t.publish("order.placed", {})
        await t.advance(seconds=1)
        assert len(t.waiting()) + len(t.dead()) == 1
