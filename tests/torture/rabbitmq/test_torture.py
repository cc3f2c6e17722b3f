"""`leveret torture`, twenty seconds of it: nothing is lost, everything that was started is gone, and it can fail."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from tests.rabbitmq_node import Node

import leveret
from leveret.proof.record import Healed, Struck, read
from leveret.torture.setting import Setting, perform

#: A third of what the command publishes: other tests run beside this one.
RATE = 100.0


async def test_a_torture_with_a_fault_every_five_seconds_loses_nothing(rabbitmq: Node, tmp_path: Path):
    said: list[str] = []
    setting = Setting(
        minutes=1 / 3, seed=11, every=(5, 5), rate=RATE, broker=rabbitmq.url, namespace="torture-whole",
        faults=("cut in mid-frame", "killed at a hand-over", "paused and resumed as holder", "store locked"),
        folder=tmp_path,
    )  # fmt: skip

    outcome = await perform(setting, say=said.append, asked_to_stop=asyncio.Event())

    verdict = outcome.verdict
    assert outcome.passed, [*map(str, verdict.faults), *outcome.troubles]
    assert (verdict.lost, verdict.waiting) == (0, 0)
    # Each order has two takers, and one of them returns something that has a third.
    assert verdict.accepted > 2 * RATE * 20
    assert verdict.dead
    # What the plan said is what was struck, and all of it is over.
    plan = [str(fault) for fault in setting.plan()]
    assert said[1 : 1 + len(plan)] == plan
    events = list(read(tmp_path / "record.jsonl"))
    struck = {event.fault for event in events if isinstance(event, Struck)}
    assert struck <= {event.fault for event in events if isinstance(event, Healed)}
    assert len(struck) >= 3
    assert f"seed {setting.seed}" in (tmp_path / "report.html").read_text()


async def test_a_leveret_that_acks_a_moment_before_it_stores_is_found_out(
    rabbitmq: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "broken"
    shutil.copytree(
        Path(leveret.__file__).parent, broken / "leveret", ignore=shutil.ignore_patterns("__pycache__")
    )
    intake = broken / "leveret" / "retry" / "intake.py"
    whole = intake.read_text()
    for before, after in (
        ("        namespace = self.parts.names.namespace\n        try:\n", "        delivery.ack()\n"),
        # Longer than the time between two blows: in step with them, each would fall just after a batch was stored.
        ("        return [\n            Due(", "        await self.parts.world.clock.sleep(2.0)\n"),
    ):
        assert whole.count(before) == 1
        whole = whole.replace(before, after + before)
    intake.write_text(whole)
    # The processes of the shop run this one; who strikes and judges them does not.
    monkeypatch.setenv("PYTHONPATH", str(broken))
    setting = Setting(
        minutes=0.25, seed=283, every=(1, 1), rate=RATE, soft=1.0, broker=rabbitmq.url, namespace="torture-broken",
        faults=("killed",), folder=tmp_path / "report",
    )  # fmt: skip
    # Again and again while there is load, whichever of them holds the lease.
    assert sum(fault.target.startswith("retry") and fault.at > 3 for fault in setting.plan()) >= 6

    outcome = await perform(setting, say=lambda _: None, asked_to_stop=asyncio.Event())

    assert outcome.verdict.lost > 0
    assert not outcome.passed
    assert {fault.rule for fault in outcome.verdict.faults} & {"accounted for", "conservation"}


async def test_nothing_that_a_killed_torture_has_started_outlives_it(rabbitmq: Node, tmp_path: Path):
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leveret.cli", "torture", "--minutes", "5", "--rate", "20", "--faults", "none",
        "--broker", rabbitmq.url, "--namespace", "torture-killed", "--report", str(tmp_path / "report"),
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    assert command.stderr is not None
    async with asyncio.timeout(60):
        while b"accepted" not in await command.stderr.readline():
            pass
    started = children(command.pid)
    assert len(started) == 9
    # One that is paused cannot see that its parent is gone.
    os.kill(started[0], signal.SIGSTOP)

    command.kill()
    await command.wait()

    until = time.monotonic() + 10
    while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until, left
        await asyncio.sleep(0.05)


async def test_ctrl_c_ends_the_load_and_judges_what_there_is(rabbitmq: Node, tmp_path: Path):
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "leveret.cli", "torture", "--minutes", "5", "--rate", "20", "--faults", "none",
        "--broker", rabbitmq.url, "--namespace", "torture-ended", "--report", str(tmp_path / "report"),
        stdout=PIPE, stderr=PIPE, start_new_session=True,
    )  # fmt: skip
    assert command.stderr is not None
    async with asyncio.timeout(60):
        while b"accepted" not in await command.stderr.readline():
            pass

    # A terminal sends it to all that were started.
    os.killpg(command.pid, signal.SIGINT)
    out, _ = await asyncio.wait_for(command.communicate(), 60)

    assert command.returncode == 0
    assert out.decode().rstrip().endswith("lost 0")
    assert (tmp_path / "report" / "report.html").exists()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    told = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in told.split()]
