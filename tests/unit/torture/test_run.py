"""A run: what it says of a scene whose processes do not do their part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from leveret.torture.addresses import Brokers
from leveret.torture.members import Member
from leveret.torture.process import Told
from leveret.torture.run import Run
from leveret.torture.scene import Load, Scene


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """One without processes, whose broker is in memory."""
    made = Scene(
        tmp_path, brokers=Brokers(url="memory://"), store=tmp_path / "leveret.db", load=Load(), namespace="shop",
        seed=1, queue_type="classic", lease=2.0,
    )  # fmt: skip
    await made.transport.open()
    await made.store.open()
    yield made
    await made.close()


async def test_a_run_comes_to_its_end_also_where_a_process_is_gone_for_good(scene: Scene, tmp_path: Path):
    told = Told(by="", roles=["workers"], record="", broker="", store="", namespace="shop", seed=1)
    gone = Member(
        "workers-1", told, folder=tmp_path, record=scene.record, failed=scene.troubles.append,
        runs=["/bin/sh", "-c", "exit 3"],
    )  # fmt: skip
    scene.members["workers-1"] = gone
    gone.start()

    async with asyncio.timeout(30):
        await Run(scene, [], 0.0, lambda _: None).run(asyncio.Event())

    assert (
        "not brought to rest: workers-1 is not started again: 3 lives in a row have ended as none should"
        in scene.troubles
    )


async def test_a_run_in_which_nothing_was_accepted_fails_and_says_so(scene: Scene):
    await Run(scene, [], 0.1, lambda _: None).run(asyncio.Event())

    assert scene.troubles[0] == "nothing that a producer published was accepted, of 0 publishes"


async def test_a_run_that_was_ended_at_once_says_that_there_was_nothing(scene: Scene):
    said: list[str] = []
    asked_to_stop = asyncio.Event()
    asked_to_stop.set()

    await Run(scene, [], 60.0, said.append).run(asked_to_stop)

    assert scene.troubles == []
    assert "nothing that a producer published was accepted, of 0 publishes" in said
