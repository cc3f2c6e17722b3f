"""Acts on what waits, where the store does not answer for one of them."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.running_app import RunningApp

from leveret import Leveret
from leveret.core.errors import StoreUnavailable
from leveret.core.message import retry_key
from leveret.core.properties import Properties
from leveret.core.retry_entry import RetryEntry
from leveret.retry.acts import WAITED_FOR


@pytest.fixture
async def t():
    app = Leveret("shop", broker="memory://", store="memory://")

    @app.worker
    async def charge(body: bytes) -> None: ...

    async with RunningApp(app) as running:
        await running.clock.advance(1)
        await running.store.put([entry("a"), entry("b")])
        yield running


def entry(name: str) -> RetryEntry:
    return RetryEntry(
        namespace="shop", key=retry_key("shop.charge", name), queue="shop.charge", worker="charge", retry_id=name,
        message_id=name, failure=1, wait=86_400.0, body=b"", properties=Properties.build(message_id=name).raw,
    )  # fmt: skip


def states(t: RunningApp) -> dict[str, str]:
    return {row.retry_id: row.state for row, _ in t.data.retries.values()}


@pytest.mark.parametrize("call", ["hold", "report"])
async def test_an_act_that_the_store_never_answers_for_keeps_no_other_from_being_done(t, call, caplog):
    caplog.set_level("INFO")
    first = None

    async def before(name, *arguments) -> None:
        nonlocal first
        if name == call:
            # The rows of a hold, or the act of a report.
            first = first or arguments[0]
            if arguments[0] == first:
                raise StoreUnavailable("57014: too long")

    t.store.before = before
    asked = [asyncio.ensure_future(t.app.retries.hold(name)) for name in "ab"]
    await t.clock.advance(10)
    answered = [(await each).answered for each in asked]
    assert answered == [False, True]
    assert states(t)["b"] == "held"
    assert "cannot look for acts: 57014: too long" in caplog.text
    t.store.before = None
    await t.clock.advance(10)
    assert states(t) == {"a": "held", "b": "held"}
    assert await t.store.asked("shop", ["retries.hold"]) == []


async def test_one_that_is_to_undo_another_waits_until_the_store_has_answered_for_that(t):
    failures = WAITED_FOR - 1

    async def before(name, *_) -> None:
        nonlocal failures
        if name == "hold" and failures:
            failures -= 1
            raise StoreUnavailable("no route to db-1")

    t.store.before = before
    asked = [asyncio.ensure_future(act("a")) for act in (t.app.retries.hold, t.app.retries.release)]
    await t.clock.advance(10)
    assert [(await each).done for each in asked] == [1, 1]
    assert states(t)["a"] == "waiting"
