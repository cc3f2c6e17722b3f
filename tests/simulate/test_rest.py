"""A run comes to rest, or fails and says what is left; what waits for its time, or for ever by its own word, may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.simulate.test_mutants import let_some_publishes_hang, never_publish_some_of_what_is_due

from leveret import Leveret, RetryPolicy, SoftFailure
from leveret.pipeline.consumer import WorkerConsumer
from leveret.rpc.client import RpcClient
from leveret.simulate import simulate_app
from leveret.simulate.batch import told
from leveret.simulate.run import Result, plan_of, simulate
from leveret.simulate.scene import shop_asks
from leveret.simulate.shrink import shrink


def lived(messages: int = 40) -> Result:
    """A run without faults."""
    return simulate(plan_of(3, shop_asks(3, messages), faults=()))


def faults_of(result: Result) -> list[str]:
    return [str(fault) for fault in result.verdict.faults]


def test_what_never_goes_out_is_told_as_an_entry_of_the_store_and_as_its_backlog(
    monkeypatch: pytest.MonkeyPatch,
):
    never_publish_some_of_what_is_due(monkeypatch)
    result = lived(120)
    assert result.wrong == {"rest", "backlog"}
    left = [fault for fault in result.verdict.faults if fault.rule == "rest"]
    assert len(left) == result.verdict.waiting > 0
    assert all("waits in the retry store (waiting), and was due 12" in fault.told for fault in left)
    assert f"backlog: the retry store still holds {len(left)} messages" in faults_of(result)
    small = shrink(result)
    subject = small.verdict.faults[-1].subject
    story = list(told(small))
    assert story[0] == "1 messages, 0 faults are enough:"
    assert any(line.startswith(f"  rest: {subject} waits") for line in story)
    assert f"{subject}:" in story


def test_a_publish_that_never_ends_is_told_with_the_process_that_cannot_stop(monkeypatch: pytest.MonkeyPatch):
    let_some_publishes_hang(monkeypatch)
    result = lived(20)
    assert any(fault.startswith("rest: producer-2 1 published o3-000007 ") for fault in faults_of(result))
    assert "rest: producer-2 1 was to end, and has not in 60 s" in faults_of(result)


def test_a_call_that_never_ends_is_told(monkeypatch: pytest.MonkeyPatch):
    async def hanging(*_: Any, **__: Any) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(RpcClient, "ask", hanging)
    assert any("rest: caller 1 made call caller 1:0 " in fault for fault in faults_of(lived()))


def test_a_queue_that_is_not_worked_off_is_told(monkeypatch: pytest.MonkeyPatch):
    whole = WorkerConsumer.start

    async def start(self: WorkerConsumer) -> None:
        if self.queue != "shop.audit":
            await whole(self)

    monkeypatch.setattr(WorkerConsumer, "start", start)
    assert any("rest: shop.audit holds " in fault and "0 consumers" in fault for fault in faults_of(lived()))


def test_what_is_due_long_after_the_run_may_wait():
    asks = shop_asks(3, 40)
    plan = plan_of(3, (*asks[1:], replace(asks[0], wait=90_000.0)), faults=())
    result = simulate(plan)
    assert result.passed, faults_of(result)
    assert result.verdict.waiting == 2


def make_app(policy: RetryPolicy, failure: SoftFailure) -> Leveret:
    app = Leveret("mine", retry=policy)

    @app.worker("order.placed")
    async def charge(order: dict) -> None:
        raise failure

    return app


def test_a_policy_may_wait_longer_than_the_run():
    patient = RetryPolicy(first_delay=7200, max_delay=7200)
    simulate_app(
        lambda: make_app(patient, SoftFailure("503")), [("order.placed", {})] * 3, runs=1, faults="none"
    )


def test_a_handler_may_put_its_message_off_for_ever():
    busy = SoftFailure("busy", retry_after=30, counted=False)
    simulate_app(lambda: make_app(RetryPolicy(), busy), [("order.placed", {})], runs=1, faults="none")


def test_an_app_that_does_not_stop_is_told():
    @asynccontextmanager
    async def lifespan(_: Leveret) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().create_future()

    def stubborn() -> Leveret:
        app = Leveret("mine", lifespan=lifespan)

        @app.worker("order.placed")
        async def charge(order: dict) -> None:
            pass

        return app

    with pytest.raises(AssertionError, match=r"rest: worker-1 1 was to end, and has not in 60 s"):
        simulate_app(stubborn, [("order.placed", {})], runs=1, faults="none")
