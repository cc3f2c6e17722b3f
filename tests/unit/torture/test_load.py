"""The load: what ends a publish or a call in a way that none may end fails the run."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import leveret
from leveret.core.errors import BadPayload
from leveret.proof.record import FileRecord, MemoryRecord
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
