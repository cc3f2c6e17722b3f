"""The load: what ends a publish or a call in a way that none may end fails the run."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import leveret
from leveret.core.errors import BadPayload
from leveret.proof import shop
from leveret.proof.record import AnyEvent, CallEnded, FileRecord, MemoryRecord
from leveret.runtime.world import SystemClock
from leveret.torture.load import Callers, Producers
from leveret.torture.members import Member
from leveret.torture.process import Told

#: A process of the shop whose publishes all end so.
BROKEN = """
import leveret
from leveret.core.errors import BadPayload
from leveret.torture import child, process

async def refuse(*_, **__):
    raise BadPayload("something is wrong with every publish")

leveret.Leveret.publish = leveret.Leveret.publish_many = refuse
child.run(process._main)
"""


class Refusing:
    """An app of which nothing can be had."""

    async def publish(self, *_: Any, **__: Any) -> None:
        raise BadPayload("something is wrong with every publish")

    publish_many = call = publish


def told(**said: Any) -> Told:
    return Told(
        **{
            "by": "producer-1 1", "roles": ["producer"], "record": "", "broker": "memory://", "store": "memory://",
            "namespace": "shop", "seed": 1, **said,
        }
    )  # fmt: skip


@pytest.mark.parametrize("kind", [Producers, Callers])
async def test_what_no_publish_and_no_call_may_end_with_ends_the_load(kind):
    app: Any = Refusing()
    load = kind(app, MemoryRecord("producer-1 1", lambda: 0.0, []), told())

    async with asyncio.timeout(30):
        with pytest.raises(BadPayload, match="something is wrong with every publish"):
            await load.run()


async def test_a_process_whose_load_ends_so_ends_and_whoever_watches_it_says_with_what(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "PYTHONPATH", str(Path(leveret.__file__).parents[1]))
    record = FileRecord(tmp_path / "record.jsonl", "torture")
    said: asyncio.Queue[str] = asyncio.Queue()
    producer = Member(
        "producer-1", told(record=str(tmp_path / "record.jsonl")), folder=tmp_path, record=record,
        failed=said.put_nowait, runs=[sys.executable, "-c", BROKEN],
    )  # fmt: skip
    producer.start()
    try:
        trouble = await asyncio.wait_for(said.get(), 60)
    finally:
        await producer.kill()
        record.close()

    assert trouble.startswith("producer-1 1 ended with 1; ")
    assert trouble.endswith("leveret.core.errors.BadPayload: something is wrong with every publish")


Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


async def ends_of_calls(answer: Answer, number: int) -> list[CallEnded]:
    """How so many calls of a shop's caller end, whose requests are answered so."""
    events: list[AnyEvent] = []
    app = leveret.Leveret("shop", broker="memory://", store="memory://")
    app.rpc(shop.CHANNEL)(answer)
    caller = Callers(app, MemoryRecord("caller-1 1", lambda: 0.0, events), told(calls=1000.0))
    async with app, app.running():
        calls = caller.begin()
        for _ in range(number):
            next(calls)
        await caller.rest()
    return [event for event in events if isinstance(event, CallEnded)]


def shops_own() -> Answer:
    """What the shop answers."""
    app = leveret.Leveret("shop", broker="memory://", store="memory://")
    answers: list[Answer] = []
    app.rpc = lambda *_, **__: answers.append  # type: ignore[assignment,method-assign]

    async def dies() -> None:
        raise AssertionError("nothing is deadly here")

    shop.declare(app, MemoryRecord("workers-1 1", lambda: 0.0, []), SystemClock(), dies=dies)
    return answers[0]


async def test_what_the_shop_answers_is_what_its_callers_asked_for():
    ended = await ends_of_calls(shops_own(), 50)

    assert {(end.outcome, end.right) for end in ended} == {("answered", True), ("failed", True)}


async def test_an_answer_to_another_call_is_not_the_right_one_nor_is_another_ones_failure():
    own, names = shops_own(), itertools.count(1)

    async def crossed(request: dict[str, Any]) -> dict[str, Any]:
        return await own({**request, "call": f"another#{next(names)}"})

    ended = await ends_of_calls(crossed, 50)

    assert {(end.outcome, end.right) for end in ended} == {("answered", False), ("failed", False)}


async def test_an_answer_where_a_failure_was_asked_for_is_not_the_right_one_nor_is_the_reverse():
    own = shops_own()

    async def reversed_(request: dict[str, Any]) -> dict[str, Any]:
        return await own({**request, "fails": not request["fails"]})

    ended = await ends_of_calls(reversed_, 50)

    assert {(end.outcome, end.right) for end in ended} == {("answered", False), ("failed", False)}


async def test_an_answer_that_names_no_call_is_not_the_right_one():
    async def nonsense(_: dict[str, Any]) -> dict[str, Any]:
        return {"nonsense": 1}

    assert {end.right for end in await ends_of_calls(nonsense, 5)} == {False}
