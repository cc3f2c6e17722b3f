"""The lives of a process, from outside: how it is started again, and when it is not any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from leveret.proof.record import FileRecord
from leveret.torture.child import ChildGone
from leveret.torture.members import Member
from leveret.torture.process import Told


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[Callable[..., Member]]:
    """Makes a member that runs these words; it is gone at the end."""
    record = FileRecord(tmp_path / "record.jsonl", "torture")
    made: list[Member] = []

    def make(*words: str, failed: Callable[[str], object] = print) -> Member:
        told = Told(
            by="", roles=["workers"], record="", broker="amqp://localhost", store="memory://", namespace="shop", seed=1
        )  # fmt: skip
        made.append(Member("workers-1", told, folder=tmp_path, record=record, failed=failed, runs=words))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        await each.kill()
    record.close()


async def test_a_process_that_ends_at_each_start_is_given_up_and_who_waits_for_it_is_told(member, tmp_path):
    troubles: list[str] = []
    broken = member("/bin/sh", "-c", "echo no such thing >&2; exit 3", failed=troubles.append)

    async with asyncio.timeout(30):
        with pytest.raises(ChildGone, match="workers-1 is not started again: 3 lives in a row"):
            await broken.up()
        # A fault that waits for its next life goes on as well.
        await broken.back(broken.life)

    assert not broken.is_up
    log = tmp_path / "workers-1.log"
    assert troubles == [
        *(f"workers-1 {n} ended with 3; its last words, in {log}: no such thing" for n in (1, 2, 3)),
        "workers-1 is not started again: 3 lives in a row have ended as none should",
    ]


async def test_a_process_that_there_is_no_program_for_is_given_up_too(member):
    troubles: list[str] = []
    broken = member("/nowhere/python", failed=troubles.append)

    async with asyncio.timeout(30):
        with pytest.raises(ChildGone, match="workers-1 is not started again"):
            await broken.up()

    assert troubles[0].startswith("workers-1 1 cannot be started: ")
    assert "/nowhere/python" in troubles[0]


async def test_lives_that_were_ended_from_outside_do_not_count(member):
    troubles: list[str] = []
    struck = member("/bin/sh", "-c", "echo {}; read line; exit 3", failed=troubles.append)

    async with asyncio.timeout(30):
        for life in range(1, 5):
            await struck.back(life - 1)
            struck.child.process.kill()
        await struck.back(4)

    assert struck.is_up
    assert troubles == []


async def test_a_process_that_does_not_get_ready_is_not_waited_for_for_ever(member, monkeypatch):
    silent = member("/bin/sh", "-c", "echo no broker yet >&2; echo >&2; read line")

    with pytest.raises(
        TimeoutError, match=r"^workers-1 1 is not ready after 2 s; its last words, .*: no broker yet$"
    ):
        await silent.up(2.0)
    monkeypatch.setattr("leveret.torture.members.UP", 0.1)
    with pytest.raises(TimeoutError, match=r"^workers-1 1 is not ready after 0\.1 s"):
        await silent.back(0)
